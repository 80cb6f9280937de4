"""Logs: cut into pieces, read as one, followed while they grow."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuyard.agent import records
from gpuyard.agent.logs import offset_since, read_part
from gpuyard.agent.records import record
from gpuyard.agent.supervisor.files import Spec, read_record
from gpuyard.agent.supervisor.log import Log
from gpuyard.wire.agents import MAX_LOG_PIECE_BYTES, AttemptId, Phase
from tests.agent.certificates import Authority
from tests.agent.machines import Machine, a_script, shared_machine
from tests.agent.manager import Manager, eventually


@pytest.fixture(scope="module")
def manager(authority: Authority) -> Iterator[Manager]:
    with Manager(authority) as made:
        yield made


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, authority: Authority, manager: Manager) -> Iterator[Machine]:
    """One serves all of these tests."""
    with shared_machine(tmp_path_factory.mktemp("shared") / "home", authority, manager) as made:
        yield made.start()


def a_log(folder: Path, monkeypatch: pytest.MonkeyPatch, *, piece_bytes: int, pieces: int) -> Log:
    monkeypatch.chdir(folder)
    records.write(folder / "spec", record({"log_piece_bytes": piece_bytes, "log_pieces": pieces}))
    return Log(Spec(read_record("spec")))


def test_pieces_are_read_as_one_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log(tmp_path, monkeypatch, piece_bytes=10, pieces=10)
    for number in range(20):
        log.write(b"line %02d\n" % number)
    whole = b"".join(b"line %02d\n" % number for number in range(20))
    assert len(list(tmp_path.glob("log.*"))) > 5
    assert read_part(tmp_path, 0, 1 << 20).data == whole
    assert read_part(tmp_path, 13, 30).data == whole[13:43]
    assert read_part(tmp_path, -12, 1 << 20).data == whole[-12:]


def test_a_disk_that_is_full_when_a_piece_is_to_begin_loses_nothing_but_what_it_has_no_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log was dead from then on, and each further word closed a file of another's."""
    log = a_log(tmp_path, monkeypatch, piece_bytes=10, pieces=10)
    log.write(b"0123456789")
    really_open = os.open

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    log.write(b"goes on in the same piece\n")
    monkeypatch.setattr(os, "open", really_open)
    with (tmp_path / "of another").open("w") as other:
        log.write(b"in the next\n")
        other.write("still open")
    assert read_part(tmp_path, 0, 1 << 20).data == b"0123456789goes on in the same piece\nin the next\n"
    assert len(list(tmp_path.glob("log.*"))) == 2


def test_the_oldest_pieces_are_dropped_and_the_rest_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(tmp_path, monkeypatch, piece_bytes=100, pieces=3)
    for number in range(1000):
        log.write(b"%09d\n" % number)
    part = read_part(tmp_path, 0, 1 << 20)
    assert len(list(tmp_path.glob("log.*"))) == 3
    assert part.size == 10_000
    assert part.data.startswith(b"%09d\n" % (part.offset // 10))
    assert part.offset + len(part.data) == part.size


def test_a_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log(tmp_path, monkeypatch, piece_bytes=1 << 20, pieces=3)
    log.write(b"x" * (2 * MAX_LOG_PIECE_BYTES))
    assert len(read_part(tmp_path, 0, 1 << 30).data) == MAX_LOG_PIECE_BYTES


@pytest.mark.parametrize("offset", [0, 5, -5, 10**12, -(10**12)])
def test_an_empty_log_has_nothing_at_any_place(tmp_path: Path, offset: int) -> None:
    assert read_part(tmp_path, offset, 10).data == b""


@pytest.mark.parametrize("offset", [100, 10**12])
def test_behind_the_end_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    a_log(tmp_path, monkeypatch, piece_bytes=100, pieces=3).write(b"short")
    assert (read_part(tmp_path, offset, 10).offset, read_part(tmp_path, offset, 10).data) == (5, b"")


@pytest.mark.slow
def test_what_was_said_since_is_found_to_the_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log(tmp_path, monkeypatch, piece_bytes=40, pieces=3)
    for at_ms in range(0, 20_000, 500):
        monkeypatch.setattr("gpuyard.agent.supervisor.log.wall_ms", lambda at_ms=at_ms: 1_000_000 + at_ms)
        log.write(b"%09d\n" % at_ms)

    def since(at_ms: int) -> bytes:
        return read_part(tmp_path, offset_since(tmp_path, 1_000_000 + at_ms), 1 << 20).data

    everything = read_part(tmp_path, 0, 1 << 20).data
    assert len(list(tmp_path.glob("times.*"))) == 3
    assert since(-5_000) == since(0) == everything
    # Notes are made once a second; what was said within the second before may be shown, too.
    assert since(18_200).splitlines()[0] in (b"000018000", b"000018500")
    assert since(19_000).splitlines()[-1] == b"000019500"
    assert since(25_000) == b""


def test_notes_of_times_become_fewer_and_never_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log(tmp_path, monkeypatch, piece_bytes=1 << 30, pieces=3)
    clock = 0

    def tick() -> int:
        return clock

    monkeypatch.setattr("gpuyard.agent.supervisor.log.wall_ms", tick)
    for number in range(10_000):
        clock = number * 1_000
        log.write(b"%09d\n" % number)
    (notes,) = tmp_path.glob("times.*")
    assert 4_096 < len(notes.read_bytes().splitlines()) < 8_192
    clock = 20_000_000
    log.write(b"late\n")
    assert read_part(tmp_path, offset_since(tmp_path, 19_000_000), 1 << 20).data == b"late\n"
    found = read_part(tmp_path, offset_since(tmp_path, 9_000_000), 1 << 20).data.splitlines()
    assert 8_995 <= int(found[0]) <= 9_000


def test_a_log_without_notes_is_shown_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_log(tmp_path, monkeypatch, piece_bytes=100, pieces=3).write(b"said\n")
    (notes,) = tmp_path.glob("times.*")
    notes.unlink()
    assert offset_since(tmp_path, 1 << 50) == 0
    notes.write_bytes(b"not a number\n12")
    assert offset_since(tmp_path, 1 << 50) == 0


def test_a_log_can_be_followed_to_its_end(machine: Machine, manager: Manager) -> None:
    task = a_script("for i in 1 2 3 4 5; do echo $i; sleep 0.2; done")
    manager.want(task)
    manager.wait_for(task.id, Phase.RUNNING)
    seen: list[bytes] = []
    offset, ended = 0, False
    while not ended:
        piece = manager.read_log(task.id, offset=offset, wait_ms=5_000)
        seen.append(piece.data)
        offset, ended = piece.offset + len(piece.data), piece.ended
    assert b"".join(seen) == b"1\n2\n3\n4\n5\n"
    assert len(seen) > 3, "it was read while it grew"


@pytest.mark.slow
def test_the_log_of_a_forgotten_attempt_is_kept(machine: Machine, manager: Manager) -> None:
    task = a_script("echo kept")
    manager.want(task)
    manager.wait_for(task.id, Phase.ENDED)
    manager.record(task.id)
    assert manager.whole_log(task.id) == b"kept\n"


@pytest.mark.slow
def test_an_unknown_log_is_told_as_such(machine: Machine, manager: Manager) -> None:
    assert "no log of nobody.0.1 is kept on node-a" in manager.read_log(AttemptId("nobody", 0, 1)).problem


@pytest.mark.slow
def test_a_log_may_be_asked_for_a_moment_before_its_attempt_is_given_to_the_machine(
    machine: Machine, manager: Manager
) -> None:
    task = a_script("echo early; sleep 60")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(manager.read_log, task.id, wait_ms=20_000)
        eventually(lambda: bool(manager.open_questions))
        manager.want(task)
        assert asked.result().data == b"early\n"


@pytest.mark.slow
def test_much_output_is_kept_whole_and_does_not_stop_the_agent(machine: Machine, manager: Manager) -> None:
    task = a_script("seq 1 300000")
    manager.want(task)
    manager.wait_for(task.id, Phase.ENDED)
    assert manager.whole_log(task.id) == b"".join(b"%d\n" % number for number in range(1, 300_001))


@pytest.mark.slow
def test_many_may_wait_for_output_at_once(machine: Machine, manager: Manager) -> None:
    task = a_script("sleep 1; echo late; sleep 60")
    manager.want(task)
    manager.wait_for(task.id, Phase.RUNNING)
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(manager.read_log(task.id, wait_ms=10_000).data)) for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [b"late\n"] * 10
