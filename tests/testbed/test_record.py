"""Records: found again, refused where they cannot be, gone as the last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuyard.errors import KubeTestbedError
from gpuyard.testbed import record as records
from gpuyard.testbed.record import (
    RECORD,
    Record,
    check_name,
    find_record,
    forget,
    names,
    node_number,
    read_record,
    working_on,
    write_record,
)
from tests.testbed.samples import a_record


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(records, "ROOT", tmp_path / "testbeds")
    return tmp_path / "testbeds"


def test_a_record_that_was_written_is_found_again() -> None:
    record = a_record(name="one")
    write_record(record)
    assert read_record("one") == record
    assert names() == ["one"]


def test_a_record_is_for_root_alone() -> None:
    write_record(a_record())
    assert (a_record().folder / RECORD).stat().st_mode & 0o777 == 0o600


def test_what_is_not_there_is_told_with_what_is() -> None:
    write_record(a_record(name="one"))
    with pytest.raises(KubeTestbedError, match='no testbed "two"') as told:
        read_record("two")
    assert told.value.fix == "there are: one"


def test_a_broken_record_is_named() -> None:
    write_record(a_record(name="one"))
    (a_record(name="one").folder / RECORD).write_text("{")
    with pytest.raises(KubeTestbedError, match="record of testbed one cannot be read"):
        find_record("one")


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "a" * 21, "-a", "a-", "a.b"])
def test_a_name_that_could_be_a_path_or_is_too_long_is_refused(name: str) -> None:
    with pytest.raises(KubeTestbedError, match="cannot be the name of a testbed"):
        check_name(name)


def test_forgetting_removes_the_folder_whole(root: Path) -> None:
    record = a_record(name="one")
    write_record(record)
    (record.folder / "node-1" / "log").mkdir(parents=True)
    (record.folder / "kubeconfig").write_text("x")
    forget(record)
    assert list(root.iterdir()) == []


def test_two_at_once_do_not_work_on_one_testbed(root: Path) -> None:
    with working_on("one"):
        child = os.fork()
        if child == 0:  # pragma: no cover - another process, as it has to be
            try:
                with working_on("one"):
                    os._exit(0)
            except KubeTestbedError as error:
                os._exit(7 if f"process {os.getppid()} is at work" in str(error) else 8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_the_mark_of_one_machine_is_not_that_of_another() -> None:
    record = a_record(nodes=12)
    assert record.marked("node-1") not in "".join(f"{k}={v}" for k, v in record.environment("node-11").items())
    assert record.marked("node-1") in "".join(f"{k}={v}" for k, v in record.environment("node-1").items())
    assert record.marked() in record.marked("node-1")


def test_a_node_that_is_not_there_is_told_with_those_that_are() -> None:
    record: Record = a_record(nodes=2)
    assert node_number(record, "node-2") == 2
    with pytest.raises(KubeTestbedError, match='no node "node-3"\n  it has node-1, node-2'):
        node_number(record, "node-3")
