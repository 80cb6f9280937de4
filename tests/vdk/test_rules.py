"""Long random sequences of calls, every answer judged by an independent model of the rules (`rules.py`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuyard.vdk import GpuResourceManager
from gpuyard.vdk.model import PlanState
from tests.vdk.driving import EXPIRY_MS, Driver

pytestmark = pytest.mark.slow

LONG = os.environ.get("GPUYARD_LONG") == "1"
GROUP = 10
TURNS = 100


def a_manager(clock: list[int], address: str | None = None) -> GpuResourceManager:
    return GpuResourceManager(address, clock=lambda: clock[0], expiry_ms=EXPIRY_MS)


@pytest.mark.parametrize("group", range(60 if LONG else 3))
def test_every_answer_keeps_the_rules(group: int) -> None:
    for seed in range(group * GROUP, (group + 1) * GROUP):
        clock = [0]
        with a_manager(clock) as manager:
            Driver(seed, manager, clock=clock).run(TURNS)


@pytest.mark.parametrize("seed", range(500, 560 if LONG else 503))
def test_a_platform_may_use_the_three_calls_alone(seed: int) -> None:
    """It takes every plan as done when it is answered, and never confirms; nothing is taken back behind its back."""
    clock = [0]
    with a_manager(clock) as manager:
        driver = Driver(seed, manager, clock=clock)
        driver.turns = [driver.provision] * 6 + [driver.end] * 3 + [driver.mark]
        driver.a_known_name = lambda: driver.chance.choice(sorted(driver.rules.planned()) or [("a", "never")])  # type: ignore[method-assign]
        driver.run(TURNS)
        assert all(plan.state is not PlanState.ROLLED_BACK for plan in manager.plans(open_only=False))


@pytest.mark.parametrize("seed", range(1000, 1060 if LONG else 1004))
def test_a_manager_that_is_opened_again_answers_as_one_that_never_was_closed(seed: int, tmp_path: Path) -> None:
    clock, address = [0], str(tmp_path / "pool.db")
    with a_manager(clock) as steady:
        driver = Driver(seed, steady, a_manager(clock, address), clock=clock)
        for _ in range(TURNS // 10):
            driver.run(10)
            driver.managers.pop().close()
            driver.managers.append(a_manager(clock, address))
            driver.check()
        driver.managers.pop().close()
