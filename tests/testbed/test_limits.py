"""The machine's limit: raised with the first testbed, put back with the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuyard.testbed import limits
from gpuyard.testbed import record as records
from gpuyard.testbed.limits import WANTED, put_limits_back, raise_limits
from gpuyard.testbed.record import forget, write_record
from tests.testbed.samples import a_record


@pytest.fixture(autouse=True)
def instances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "max_user_instances"
    path.write_text("128\n")
    (tmp_path / "testbeds").mkdir()
    monkeypatch.setattr(limits, "INSTANCES", path)
    monkeypatch.setattr(records, "ROOT", tmp_path / "testbeds")
    return path


def test_it_is_raised_with_the_first_and_put_back_with_the_last(instances: Path) -> None:
    for name in ("one", "two"):
        write_record(a_record(name=name))
        raise_limits()
    assert instances.read_text() == str(WANTED)
    forget(a_record(name="one"))
    put_limits_back()
    assert instances.read_text() == str(WANTED)
    forget(a_record(name="two"))
    put_limits_back()
    assert instances.read_text() == "128"
    assert list(records.ROOT.iterdir()) == []


def test_a_value_that_is_enough_is_left_alone(instances: Path) -> None:
    instances.write_text("100000\n")
    raise_limits()
    put_limits_back()
    assert instances.read_text() == "100000\n"


def test_a_value_that_somebody_has_set_since_is_left_alone(instances: Path) -> None:
    raise_limits()
    instances.write_text("9999")
    put_limits_back()
    assert instances.read_text() == "9999"
