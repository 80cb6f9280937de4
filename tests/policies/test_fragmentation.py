"""The fragmentation gradient, against numbers worked out by hand."""

from __future__ import annotations

from gpuyard.model.jobs import Job, Request, Sharing, Task
from gpuyard.policies.fragmentation import Gradient, typical_tasks
from gpuyard.policies.policy import TypicalTask

HALF_OR_WHOLE = (TypicalTask(1, 500, weight=3), TypicalTask(1, 1000, weight=1))


def test_what_no_typical_task_can_use_is_fragmented_whole() -> None:
    # 0.3 is left: useless to halves (weight 3) and to wholes (weight 1) alike.
    assert Gradient(HALF_OR_WHOLE).fragmentation([300], 1000, "A100") == 300 * 3 + 300 * 1


def test_what_some_can_use_counts_for_the_others_only() -> None:
    # 0.5 is of use to halves; the whole GPU beside it to both; wholes cannot use the 0.5.
    assert Gradient(HALF_OR_WHOLE).fragmentation([500, 1000], 1000, "A100") == 0 * 3 + 500 * 1


def test_without_cpu_or_of_the_wrong_model_everything_is_useless() -> None:
    gradient = Gradient((TypicalTask(1, 500, cpu_milli=4000), TypicalTask(1, 500, gpu_model="H100")))
    assert gradient.fragmentation([1000], 2000, "A100") == 1000 + 1000


def test_tasks_of_several_gpus_need_as_many() -> None:
    assert Gradient((TypicalTask(2, 1000),)).fragmentation([1000, 400], 1000, "A100") == 1400


def test_a_part_goes_where_it_does_least_harm() -> None:
    # On the half-used GPU it fills the gap; on the whole one it would spoil it for tasks that need it whole.
    score, device = Gradient(HALF_OR_WHOLE).best_device([1000, 500], 1000, "A100", 500, 0)
    assert device == 1
    assert score > 50


def test_a_part_that_fits_nowhere_says_so() -> None:
    assert Gradient(HALF_OR_WHOLE).best_device([300, 0], 1000, "A100", 500, 0) == (-1, -1)


def test_scores_are_whole_numbers_around_fifty() -> None:
    assert Gradient(HALF_OR_WHOLE).score([1000], 1000, "A100", [0], 0) == 50


def test_typical_tasks_are_the_commonest_that_make_up_ninety_five_of_a_hundred() -> None:
    half = Request(devices=1, gpu_milli=500, sharing=Sharing.TIME_SLICED)
    common = [Job(f"h{n}", "q", (Task(f"h{n}-0", half),)) for n in range(96)]
    rare = [Job(f"w{n}", "q", (Task(f"w{n}-0", Request(devices=8)),)) for n in range(4)]
    assert typical_tasks([*rare, *common]) == (TypicalTask(1, 500, weight=96),)
