"""Plans on small, tight clusters against an exact solver: there is one whenever there can be, and about as cheap."""

from __future__ import annotations

import os

import pytest

from gpuyard.vdk import DeviceRequirements, NoArrangementError
from tests.vdk.exact import cheapest, walk
from tests.vdk.tight import ASKING, Tight, act_of, id_of, manager_of, tight

GROUP = 10
GROUPS = 50 if os.environ.get("GPUYARD_LONG") == "1" else 4
MOST_DEARER = 1.05


def asked(drawn: Tight) -> tuple[DeviceRequirements, int] | None:
    """What ours answers: for which alternative, at what cost; its plan keeps the rules."""
    with manager_of(drawn) as manager:
        try:
            actions = manager.try_provision_resources(id_of((ASKING, "new")), drawn.wanted)
        except NoArrangementError:
            return None
        created = actions[-1]
        (placed,) = [job for job in manager.jobs() if job.id == created.job]
    wanted = DeviceRequirements(created.amount_milli, placed.device_type)
    return wanted, walk(drawn.question(wanted), map(act_of, actions))


def compared(seed: int) -> tuple[int, int]:
    """What ours costs, and the least there is."""
    drawn = tight(seed)
    answer = asked(drawn)
    for wanted in drawn.wanted:
        if not drawn.has_budget(wanted):
            continue
        if answer is None or answer[0] != wanted:
            assert cheapest(drawn.question(wanted)) is None, "ours found no plan"
            continue
        cheaper = cheapest(drawn.question(wanted), below=answer[1])
        return answer[1], answer[1] if cheaper is None else cheaper
    assert answer is None
    return 0, 0


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_there_is_a_plan_whenever_there_can_be_and_it_costs_about_the_least(group: int) -> None:
    found = [compared(seed) for seed in range(group * GROUP, (group + 1) * GROUP)]
    ours, least = (sum(costs) for costs in zip(*found, strict=True))
    assert 0 < least <= ours <= MOST_DEARER * least
