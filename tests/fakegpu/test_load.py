"""The table of tasks: it grows and shrinks with what runs, and draws depend on nothing else."""

import numpy as np
import pytest

from gpuyard.fakegpu import load as load_module
from gpuyard.fakegpu.load import WHOLE_SHARE, Load, Needs, Start
from gpuyard.fakegpu.profile import Phase, Profile, steady

NEEDS = Needs(own_bytes=0, whole_bytes=1 << 30, room_bytes=1 << 30, share=WHOLE_SHARE, unit=0)


def test_rows_are_used_again() -> None:
    load = Load(seed=0)
    for number in range(1000):
        (row,) = load.add([Start(0, number, steady(50), NEEDS)], at_ms=0).tolist()
        load.remove(row)
    assert len(load.gpu) == 64


def test_more_tasks_than_rows_keep_what_they_have() -> None:
    load = Load(seed=0)
    rows = [int(load.add([Start(gpu, gpu, steady(gpu % 101), NEEDS)], at_ms=0)[0]) for gpu in range(200)]
    assert load.percent[rows].tolist() == [gpu % 101 for gpu in range(200)]
    assert load.gpu[rows].tolist() == list(range(200))


def test_profiles_of_tasks_that_have_ended_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "MAX_UNUSED_PHASES", 100)
    load = Load(seed=0)
    stays = load.add([Start(0, 7, Profile((Phase(1000, 10, 10), Phase(None, 60, 60))), NEEDS)], at_ms=0)
    for number in range(500):
        load.remove(int(load.add([Start(0, 1, Profile((Phase(number + 1, 5, 5),)), NEEDS)], at_ms=0)[0]))
    assert len(load.phases) <= 110
    load.change(stays, np.array([1000]))
    assert load.percent[stays].tolist() == [60]
