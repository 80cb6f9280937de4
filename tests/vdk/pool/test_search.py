"""Reshuffles on clusters that are too large for an exact answer: whatever is planned keeps the rules."""

from __future__ import annotations

from collections import Counter

import pytest

from gpuyard.vdk import NoArrangementError
from tests.vdk.exact import walk
from tests.vdk.pools import a_pool, ask, start, told
from tests.vdk.tight import ASKING, LARGE, act_of, id_of, manager_of, tight

CLUSTERS = 12


@pytest.mark.slow
def test_plans_for_large_clusters_keep_the_rules() -> None:
    seen: Counter[str] = Counter()
    for seed in range(CLUSTERS):
        drawn = tight(seed, LARGE)
        with manager_of(drawn) as manager:
            for wanted in drawn.wanted:
                try:
                    actions = manager.try_provision_resources(id_of((ASKING, "new")), wanted)
                except NoArrangementError:
                    seen["refused"] += 1
                    continue
                acts = list(map(act_of, actions))
                walk(drawn.question(wanted), acts)
                seen.update({act.kind for act in acts})
                manager.fail(actions[0].plan, 1)
    assert min(seen["delete"], seen["move"], seen["create"]) > 0, seen


def test_a_cheap_deletion_is_not_lost_among_many_that_look_cheaper() -> None:
    """Of many jobs that could be moved only if others made room; one that may simply be deleted is enough."""
    pool = a_pool(*[1] * 100, a=100, b=0, c=1)
    for number in range(99):
        start(pool, f"a/{number:03}", 0.6)
    start(pool, "b/old", 0.6)
    for number in range(100):
        start(pool, f"a/s{number:03}", 0.4)
    assert told(ask(pool, "c/new", 0.6)) == ["delete b/old", "create c/new m99:0"]
