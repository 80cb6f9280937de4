"""What lies in an agent's home: records, names, and how long it is kept."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from time import time
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.agent import attempts, process_runtime, records
from gpuyard.agent.daemon import low_disk
from gpuyard.agent.home import Home, folder_name, incarnation, job_folder_name, prepare
from gpuyard.agent.records import Record, record
from gpuyard.agent.supervisor import files, task
from gpuyard.errors import AgentError
from gpuyard.wire.agents import AttemptId, Isolation

words = st.text(st.characters(exclude_characters="\0=", codec="utf-8"), min_size=1, max_size=20)
values = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=200)


@given(st.lists(st.tuples(words, values)))
def test_the_supervisor_reads_what_the_agent_writes(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "record"
    made = Record(tuple(entries))
    records.write(path, made)
    assert records.read(path) == made
    seen = files.read_record(str(path))
    assert seen == {name: list(made.all(name)) for name, _ in entries}


def test_a_zero_byte_is_refused() -> None:
    with pytest.raises(AgentError, match="arg holds a zero byte"):
        records.encode(Record((("arg", "a\0b"),)))


@given(st.text(max_size=300), st.text(max_size=300))
def test_every_job_has_folders_of_its_own_inside(one: str, other: str) -> None:
    names = [folder_name(AttemptId(job, 0, 1)) for job in (one, other)]
    private = [job_folder_name(job) for job in (one, other)]
    assert (names[0] == names[1]) == (private[0] == private[1]) == (one == other)
    for name in (*names, *private):
        assert "/" not in name
        assert name not in ("", ".", "..")
        assert len(os.fsencode(name)) < 250


def test_a_home_is_closed_to_others_and_keeps_its_incarnation(tmp_path: Path) -> None:
    home = prepare(tmp_path / "home", Isolation.NONE)
    assert home.root.stat().st_mode & 0o777 == 0o700
    assert incarnation(home) == incarnation(prepare(tmp_path / "home", Isolation.NONE))


def test_a_home_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentError, match="cannot be used"):
        prepare(tmp_path / "file" / "home", Isolation.NONE)


# ---------------------------------------------------------------------------------------------------- what is kept


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return prepare(tmp_path / "home", Isolation.NONE)


def kept(home: Home, name: str, *, age_s: int, size_bytes: int = 10) -> Path:
    folder = home.kept / name
    folder.mkdir()
    (folder / "log.00000000000000000000").write_bytes(b"x" * size_bytes)
    records.write(folder / "spec", Record((("job", name),)))
    (home.jobs / job_folder_name(name)).mkdir()
    now = time()
    for path in (folder, home.jobs / job_folder_name(name)):
        os.utime(path, (now - age_s, now - age_s))
    return folder


def test_old_logs_and_private_directories_go(home: Home) -> None:
    old = kept(home, "old", age_s=8 * 24 * 3600)
    new = kept(home, "new", age_s=3600)
    process_runtime.prune(home)
    process_runtime.prune(home)
    assert not old.exists()
    assert new.exists()
    assert [folder.name for folder in home.jobs.iterdir()] == [job_folder_name("new")]


def test_of_too_many_logs_the_oldest_go(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_runtime, "KEPT_BYTES", 2_500)
    folders = [kept(home, f"job-{hours}", age_s=3600 * hours, size_bytes=1_000) for hours in range(1, 5)]
    process_runtime.prune(home)
    assert [folder.exists() for folder in folders] == [True, True, False, False]


def test_what_has_only_just_been_recorded_stays(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_runtime, "KEPT_BYTES", 0)
    folder = kept(home, "late", age_s=60)
    process_runtime.prune(home)
    assert folder.exists()


def an_unstarted(folder: Path) -> attempts.Attempt:
    folder.mkdir()
    records.write(folder / files.SPEC, record({"job": "1", "task": 0, "attempt": 1, "mark": "m"}))
    found = attempts.found(folder)
    assert found is not None
    return found


def test_a_supervisor_that_comes_while_its_folder_is_dropped_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the removal of our claim and that of the folder it could make its own: two would run."""
    attempt = an_unstarted(tmp_path / "1.0.1")
    monkeypatch.chdir(attempt.folder)
    locks: list[int | None] = []

    def removed_in_part(at: Path, **_: object) -> None:
        if at.exists():
            (at / files.STARTED).unlink()
            locks.append(task.claim(str(tmp_path / "1.0.1")))

    monkeypatch.setattr(shutil, "rmtree", removed_in_part)
    assert attempts.drop_unstarted(attempt)
    assert locks == [None]


def test_a_supervisor_claims_a_folder_once_and_then_the_agent_does_not_drop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = an_unstarted(tmp_path / "1.0.1")
    monkeypatch.chdir(attempt.folder)
    lock = task.claim(str(attempt.folder))
    assert lock is not None
    assert task.claim(str(attempt.folder)) is None
    assert not attempts.drop_unstarted(attempt)
    assert attempt.folder.exists()
    os.close(lock)


class Seen:
    """An attempt that is looked at, or cannot be."""

    def __init__(self, error: OSError | None = None) -> None:
        self.error, self.looked = error, 0

    def look(self) -> None:
        self.looked += 1
        if self.error is not None:
            raise self.error


def test_an_ending_that_cannot_be_written_keeps_nobody_else_from_being_seen() -> None:
    """On a full disk every session ended with it, and with the sessions all leases."""
    full, other = Seen(OSError(errno.ENOSPC, "No space left on device")), Seen()
    runtime = process_runtime.ProcessRuntime.__new__(process_runtime.ProcessRuntime)
    ids = AttemptId("1", 0, 1), AttemptId("2", 0, 1)
    runtime._attempts = cast("dict[AttemptId, attempts.Attempt]", dict(zip(ids, (full, other), strict=True)))
    runtime.trouble = ""
    runtime.refresh()
    assert (full.looked, other.looked) == (1, 1)
    assert "cannot write its state" in runtime.trouble


def test_how_little_room_is_left_is_told_in_few_steps() -> None:
    """Each step is an entry of the manager's log: by the MiB, they filled the disk they told of."""
    told = [low_disk(mib << 20) for mib in range(1024)]
    assert len(set(told)) == 3
    assert (told[0], told[-1]) == (
        "less than 64 MiB are free where the agent keeps its state and logs",
        "",
    )
