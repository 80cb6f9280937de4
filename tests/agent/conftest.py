"""A manager and a machine for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.certificates import Authority
from tests.agent.machines import Machine
from tests.agent.manager import Manager


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def manager(authority: Authority) -> Iterator[Manager]:
    with Manager(authority) as made:
        yield made


@pytest.fixture
def idle_machine(tmp_path: Path, authority: Authority, manager: Manager) -> Iterator[Machine]:
    """Its agent is not started yet."""
    made = Machine(tmp_path / "home", authority, manager)
    try:
        yield made
    finally:
        made.clear_up()


@pytest.fixture
def machine(idle_machine: Machine) -> Machine:
    """Without GPUs."""
    return idle_machine.start()
