"""A fleet file that changes while it is in use: a good change counts, a bad one is told and changes nothing."""

from pathlib import Path

import pytest

from gpuyard.errors import InputError
from gpuyard.fakegpu.reload import FleetFile, Loaded, Refused

ONE = "pools: {a: {nodes: 1, product: T4}}\n"
TWO = "pools: {a: {nodes: 2, product: T4}}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(ONE)
    return path


def test_nothing_changes_where_nobody_writes(path: Path) -> None:
    file = FleetFile(path)
    assert file.poll() is None
    assert len(file.fleet.machines) == 1


def test_a_good_change_counts_once(path: Path) -> None:
    file = FleetFile(path)
    path.write_text(TWO)
    assert file.poll() == Loaded(file.fleet)
    assert len(file.fleet.machines) == 2
    assert file.poll() is None


def test_a_bad_change_keeps_the_old_fleet_and_says_so_once(path: Path) -> None:
    file = FleetFile(path)
    path.write_text("pools: {a: {nodes: 2, product: T44}}\n")
    refused = file.poll()
    assert isinstance(refused, Refused)
    assert str(refused).splitlines()[0] == f'{path}:1:32: unknown product "T44"; did you mean "T4"?'
    assert str(refused).splitlines()[-1] == "  the fleet from before this change still runs"
    assert file.error is refused.error
    assert len(file.fleet.machines) == 1
    assert file.poll() is None


def test_the_next_good_change_counts_again(path: Path) -> None:
    file = FleetFile(path)
    path.write_text("nonsense: 1\n")
    file.poll()
    path.write_text(TWO)
    assert isinstance(file.poll(), Loaded)
    assert file.error is None


def test_going_back_after_a_bad_change_clears_the_error(path: Path) -> None:
    file = FleetFile(path)
    path.write_text("nonsense: 1\n")
    file.poll()
    path.write_text(ONE)
    assert isinstance(file.poll(), Loaded)
    assert file.error is None


def test_a_file_put_in_its_place_counts(path: Path) -> None:
    file = FleetFile(path)
    other = path.with_name("new.yaml")
    other.write_text(TWO)
    other.replace(path)
    assert isinstance(file.poll(), Loaded)


def test_a_file_that_is_gone_keeps_the_old_fleet(path: Path) -> None:
    file = FleetFile(path)
    path.unlink()
    refused = file.poll()
    assert isinstance(refused, Refused)
    assert "no such file" in str(refused)
    assert file.poll() is None
    path.write_text(TWO)
    assert isinstance(file.poll(), Loaded)


def test_a_file_that_was_only_touched_changes_nothing(path: Path) -> None:
    file = FleetFile(path)
    path.write_text(ONE)
    assert file.poll() is None


def test_a_file_that_is_bad_from_the_start_is_refused(path: Path) -> None:
    path.write_text("nonsense: 1\n")
    with pytest.raises(InputError, match="unknown field"):
        FleetFile(path)
