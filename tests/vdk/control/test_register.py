"""The register of data jobs: what is answered is kept, what is needed can be read, what grows has a bound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuyard.errors import RefusedError
from gpuyard.vdk import log
from gpuyard.vdk.control import register as module
from gpuyard.vdk.control.needs import Needs, read_needs
from gpuyard.vdk.control.register import MAX_VERSIONS, REWRITTEN_MS, Register, needs_of
from gpuyard.vdk.control.sources import Sources, unpacked_zip
from gpuyard.vdk.control.state import Deployment, JobDefinition, JobKey, Version
from gpuyard.worlds.standalone.store.address import beside
from tests.vdk.control.folders import config, packed

KEY = JobKey("vision", "train-model")


def sources(text: str = "") -> Sources:
    return unpacked_zip(packed({"config.ini": config("vision", gpus="0.5"), "10_a.py": text}))


def upload(register: Register, made: Sources, at_ms: int = 10, in_use: tuple[str, ...] = ()) -> str:
    version = Version(made.version, at_ms, "ann", read_needs(made.text("config.ini") or ""))
    register.upload(KEY, made, version, in_use)
    return version.digest


def deploy(register: Register, digest: str) -> JobDefinition:
    return register.deploy(KEY, Deployment(digest, True, 20, "ann"))


@pytest.fixture
def register() -> Iterator[Register]:
    with closing(Register.open(None)) as opened:
        opened.create(JobDefinition(KEY, 1, "ann"))
        yield opened


def test_everything_is_there_again_after_it_was_opened_anew(tmp_path: Path) -> None:
    address = str(tmp_path / "data-jobs.db")
    with closing(Register.open(address)) as first:
        first.create(JobDefinition(KEY, 1, "ann", "trains"))
        made = sources("x")
        deploy(first, upload(first, made))
        first.set_properties(KEY, {"since": "2026", "n": [1, {"a": None}]}, 30)
        seen = first.job(KEY), first.properties(KEY)
    with closing(Register.open(address)) as again:
        assert (again.job(KEY), again.properties(KEY)) == seen
        assert again.archive(made.version) == made.archive
        assert needs_of(again.job(KEY), Deployment(made.version, True, 0, "")) == Needs(gpu_milli=500)


@pytest.mark.slow
def test_postgresql_holds_it_as_well(request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("postgres_server")
    address = beside(server.url(server.make_database()), "data-jobs")
    made = unpacked_zip(packed({"config.ini": config("vision"), "large.sql": "x" * (4 << 20)}))
    with closing(Register.open(address)) as first:
        first.create(JobDefinition(KEY, 1, "ann"))
        deploy(first, upload(first, made))
    with closing(Register.open(address)) as again:
        assert again.archive(made.version) == made.archive


def test_it_is_opened_from_a_snapshot_as_from_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log.Log.__init__, "__kwdefaults__", {"snapshot_every": 3})
    address = str(tmp_path / "data-jobs.db")
    with closing(Register.open(address)) as first:
        first.create(JobDefinition(KEY, 1, "ann"))
        made = [sources(str(number)) for number in range(4)]
        for one in made:
            upload(first, one)
        first.set_properties(KEY, {"a": 1}, 30)
        seen = first.jobs(), first.properties(KEY)
    with closing(Register.open(address)) as again:
        assert (again.jobs(), again.properties(KEY)) == seen
        assert [again.archive(one.version) for one in made] == [one.archive for one in made]


def test_a_version_that_is_not_known_cannot_be_deployed_and_the_old_one_stays(register: Register) -> None:
    digest = upload(register, sources())
    before = deploy(register, digest)
    with pytest.raises(RefusedError, match="no version"):
        deploy(register, "0" * 64)
    assert register.job(KEY) == before


def test_the_newest_versions_and_the_deployed_one_are_kept(register: Register) -> None:
    first = upload(register, sources("0"))
    deploy(register, first)
    digests = [upload(register, sources(str(number))) for number in range(1, MAX_VERSIONS + 3)]
    kept = [version.digest for version in register.job(KEY).versions]
    assert kept == [first, *digests[-MAX_VERSIONS:]]
    assert register.archive(first) is not None
    upload(register, sources("one more"))
    assert register.archive(digests[0]) is None


def test_the_same_sources_again_are_no_new_version(register: Register) -> None:
    first, second = upload(register, sources("a")), upload(register, sources("b"))
    assert upload(register, sources("a")) == first
    assert [version.digest for version in register.job(KEY).versions] == [second, first]


def test_sources_that_run_outlive_their_job_and_go_once_nobody_needs_them(register: Register) -> None:
    digest = upload(register, sources("runs"))
    register.remove(KEY, 40)
    register.create(JobDefinition(KEY, 50, "ann"))
    upload(register, sources("later"), in_use=(digest,))
    assert register.archive(digest) is not None
    upload(register, sources("latest"))
    assert register.archive(digest) is None


def test_an_old_archive_that_is_needed_is_written_anew_before_its_entry_goes(register: Register) -> None:
    made = sources("old")
    deploy(register, upload(register, made, at_ms=10))
    entry = register._state.archives[made.version].seq
    upload(register, sources("new"), at_ms=11 + REWRITTEN_MS)
    assert register._state.archives[made.version].seq > entry
    assert register.archive(made.version) == made.archive


def test_a_job_that_goes_takes_its_properties_along(register: Register) -> None:
    register.set_properties(KEY, {"password": "x"}, 10)
    register.remove(KEY, 20)
    with pytest.raises(RefusedError, match="no data job"):
        register.properties(KEY)
    register.create(JobDefinition(KEY, 30, "bob"))
    assert register.properties(KEY) == {}


def test_what_is_there_is_not_made_again(register: Register) -> None:
    with pytest.raises(RefusedError, match="already"):
        register.create(JobDefinition(KEY, 5, "bob"))
    assert register.job(KEY).created_by == "ann"


def test_all_bounds_are_kept(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DATA_JOBS", 1)
    with pytest.raises(RefusedError, match="1 is the most"):
        register.create(JobDefinition(replace(KEY, name="another"), 5, "bob"))
    monkeypatch.setattr(module, "MAX_PROPERTIES_BYTES", 10)
    with pytest.raises(RefusedError, match="is the most"):
        register.set_properties(KEY, {"a": "x" * 20}, 5)
    monkeypatch.setattr(module, "MAX_ARCHIVES_BYTES", 1)
    with pytest.raises(RefusedError, match="is the most"):
        upload(register, sources())
    assert (register.properties(KEY), register.job(KEY).versions) == ({}, ())


def test_the_clock_set_far_ahead_takes_no_archive_that_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log.Log.__init__, "__kwdefaults__", {"snapshot_every": 3})
    made = sources("old")
    with closing(Register.open(str(tmp_path / "data-jobs.db"))) as register:
        register.create(JobDefinition(KEY, 1, "ann"))
        deploy(register, upload(register, made, at_ms=10))
        for number in range(12):
            register.set_properties(KEY, {"n": number}, 3 * REWRITTEN_MS + number)
        assert register.archive(made.version) == made.archive
        upload(register, sources("new"), at_ms=4 * REWRITTEN_MS)
        assert register.archive(made.version) == made.archive
