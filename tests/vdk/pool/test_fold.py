"""A state that was saved and read again is the same state: it shows the same, and decides the same."""

from __future__ import annotations

import msgspec
import pytest

from gpuyard.vdk import GpuResourceManager, ProvisionError
from gpuyard.vdk.pool.fold import story
from tests.vdk.driving import EXPIRY_MS, Driver, everything
from tests.vdk.pools import ask, told


def answer(pool: GpuResourceManager, amount: float) -> list[str] | str:
    try:
        return told(ask(pool, "a/next", amount))
    except ProvisionError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(2000, 2006))
def test_a_snapshot_holds_all_that_decides(seed: int) -> None:
    clock = [0]
    first, second = (GpuResourceManager(clock=lambda: clock[0], expiry_ms=EXPIRY_MS) for _ in range(2))
    Driver(seed, first, clock=clock).run(40)
    told_story = story()
    second._log._state = told_story.load(told_story.save(first._log.state))
    assert everything(second) == everything(first)
    for amount in (0.5, 1, 2):
        assert answer(second, amount) == answer(first, amount)


def test_a_snapshot_of_another_version_is_told_apart() -> None:
    with pytest.raises(msgspec.MsgspecError):
        story().load(msgspec.msgpack.encode({"machines": "none"}))
