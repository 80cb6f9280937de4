"""What is promised to those who must give way, and to those who wait for it, one promise a test.

The clusters are full ones (`tests.crowded`), the judge is `tests.replay`. A test of its own counts that everything
these promises are about really happens in the clusters drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, event, given, seed, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.model.plan import Evict, Move
from gpuyard.model.reasons import Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import DEFAULT, Policy, Step
from gpuyard.scheduler.cycle import drafted, schedule
from gpuyard.scheduler.cycle import plan as plan_on
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.verify import verify
from tests.conftest import LONG, LONG_FACTOR
from tests.crowded import crowded_clusters, policies, scattered_clusters
from tests.replay import COUNTED, after, counted, counted_firm, queue_charges, replay, satisfied, tasks_by_leaf
from tests.scheduler.blocks_judge import (
    EVICTED_FOR,
    WITHOUT_BENEFICIARY,
    asked_by,
    by_beneficiary,
    fair_shares,
    gave_way,
    givers,
    holds_more_than_owed,
    holds_what_is_owed,
    job_of,
    left_after,
    may_all_be_lost,
    placed,
    preempt_min_runtime_ms,
    reclaim_min_runtime_ms,
    started_at_ms,
    whole_before,
)
from tests.scheduler.judge import share_of, touched
from tests.strategies import clusters, histories, shuffled

ALLOCATE: Final = (Step.ALLOCATE,)
RECLAIM: Final = replace(DEFAULT, steps=(Step.ALLOCATE, Step.RECLAIM))
PREEMPT: Final = replace(DEFAULT, steps=(Step.ALLOCATE, Step.PREEMPT))
CONSOLIDATE: Final = replace(DEFAULT, steps=(Step.ALLOCATE, Step.CONSOLIDATE))
MORE_CYCLES: Final = 5
CROWDED_EXAMPLES: Final = 30

anywhere: Final = st.one_of(crowded_clusters(), crowded_clusters(), scattered_clusters(), clusters())
full: Final = st.one_of(crowded_clusters(), scattered_clusters())


Test = TypeVar("Test", bound=Callable[..., None])


def crowded(test: Test) -> Test:
    """A crowded cluster takes longer to draw than others, so fewer are drawn for each promise."""
    marked: Test = pytest.mark.slow(settings(max_examples=CROWDED_EXAMPLES * (LONG_FACTOR if LONG else 1))(test))
    return marked


def consolidating(policy: Policy) -> Policy:
    return replace(policy, steps=CONSOLIDATE.steps)


# ---------------------------------------------------------------------------------------------- it really happens


@pytest.mark.slow
def test_the_clusters_drawn_make_every_step_happen_often_enough() -> None:
    """Without this, the other tests could pass because nothing ever gives way."""
    seen: Counter[object] = Counter()

    @seed(4)
    @settings(
        max_examples=200,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(crowded_clusters(), crowded_clusters(), scattered_clusters()), policies)
    def count(cluster: Snapshot, policy: Policy) -> None:
        plan = schedule(cluster, policy)
        seen.update({action.reason.token for action in plan.actions})
        for block in gave_way(plan, cluster):
            gang = len(block.job.tasks) > 1
            request = block.job.tasks[0].request
            seen.update({("rest of a gang" if block.is_rest else "surplus")} if gang else {"single"})
            seen.update(
                kind
                for kind, there in {
                    "fraction": request.shared and not request.gpu_memory_mib,
                    "memory": bool(request.gpu_memory_mib),
                    "slices": bool(request.mig),
                }.items()
                if there
            )

    count()
    least = {
        Token.RECLAIMED: 15,
        Token.PREEMPTED: 15,
        Token.MOVED: 5,
        "single": 30,
        "surplus": 5,
        "rest of a gang": 5,
        "fraction": 5,
        "memory": 1,
        "slices": 1,
    }
    assert {what: seen[what] for what, enough in least.items() if seen[what] < enough} == {}, seen


# ------------------------------------------------------------------------------------------------------ capacity


@crowded
@given(anywhere, policies)
def test_no_device_is_booked_beyond_its_capacity_at_any_step_of_giving_way(cluster: Snapshot, policy: Policy) -> None:
    replay(schedule(cluster, policy), cluster)


@crowded
@given(anywhere, policies)
def test_nothing_that_is_moved_stays_where_it_is(cluster: Snapshot, policy: Policy) -> None:
    plan = schedule(cluster, policy)
    for block in gave_way(plan, cluster):
        at = {task.id: (task.node, task.shares) for task in block.job.tasks}
        for action in block.actions:
            assert not isinstance(action, Move) or at[action.task] != (action.node, action.shares)


# ------------------------------------------------------------------------------------------------- for whose sake


@crowded
@given(anywhere, policies)
def test_an_eviction_for_another_job_names_it_and_that_job_is_placed(cluster: Snapshot, policy: Policy) -> None:
    plan = schedule(cluster, policy)
    for block in gave_way(plan, cluster):
        if block.reason.token in EVICTED_FOR:
            event("gave way")
            assert block.reason.beneficiary in placed(plan)


@crowded
@given(anywhere, policies)
def test_an_eviction_for_nobody_is_of_a_kind_the_promise_lists(cluster: Snapshot, policy: Policy) -> None:
    """A place promised and taken back stopped nobody's work: it may go for any reason a start can be refused for."""
    for block in gave_way(schedule(cluster, policy), cluster):
        if not block.was_only_promised:
            assert block.reason.beneficiary or block.reason.token in WITHOUT_BENEFICIARY


@crowded
@given(anywhere, policies)
def test_nobody_gives_way_who_may_not_be_preempted_but_a_checkpointable_job_may_be_moved(
    cluster: Snapshot, policy: Policy
) -> None:
    for block in gave_way(schedule(cluster, policy), cluster):
        if block.was_only_promised or block.job.preemptible or block.reason.token in WITHOUT_BENEFICIARY:
            continue
        event("moved although firm")
        assert block.job.checkpointable
        assert all(isinstance(action, Move) for action in block.actions)


@crowded
@given(full, policies)
def test_whoever_waits_out_a_preemption_delay_makes_nobody_give_way(cluster: Snapshot, policy: Policy) -> None:
    for beneficiary in by_beneficiary(schedule(cluster, policy), cluster):
        job = job_of(cluster, beneficiary)
        since_ms = max(job.submitted_at_ms, job.last_evicted_at_ms or 0)
        assert cluster.now_ms >= since_ms + job.preemption_delay_ms


# --------------------------------------------------------------------------------------------------------- gangs


@crowded
@given(anywhere, policies)
def test_no_gang_is_left_below_its_minimum_by_an_eviction(cluster: Snapshot, policy: Policy) -> None:
    """So what it has above its minimum goes before the rest, and the rest goes whole."""
    plan = schedule(cluster, policy)
    books = replay(plan, cluster)
    for before in {block.job.id: job_of(cluster, block.job.id) for block in gave_way(plan, cluster)}.values():
        up = tasks_by_leaf(books.jobs[before.id], lambda task: task.state in COUNTED)
        if whole_before(before) and up.total():
            event("a part went")
            assert satisfied(before.group, up)


# ------------------------------------------------------------------------------------------------------- reclaim


@crowded
@given(crowded_clusters(), policies)
def test_no_block_is_reclaimed_from_a_queue_that_holds_only_what_it_is_owed(cluster: Snapshot, policy: Policy) -> None:
    plan = schedule(cluster, policy)
    for block in gave_way(plan, cluster):
        if block.reason.token is Token.RECLAIMED:
            taker = job_of(cluster, block.reason.beneficiary)
            asked = asked_by(cluster, plan, taker.id)
            for queue in givers(cluster, block.job.queue, taker.queue):
                event("reclaimed")
                assert holds_more_than_owed(cluster, block.held, queue, asked)


@crowded
@given(crowded_clusters())
def test_an_over_fed_queue_does_not_shuffle_an_under_fed_one(cluster: Snapshot) -> None:
    """Who is moved might have been stopped, or lies in queues that still hold all they are owed."""
    plan = schedule(cluster, RECLAIM)
    for beneficiary, blocks in by_beneficiary(plan, cluster).items():
        taker = job_of(cluster, beneficiary)
        asked = asked_by(cluster, plan, beneficiary)
        if not may_all_be_lost(cluster, blocks, taker.queue, asked):
            left = left_after(cluster, [block for block in blocks if not block.moved], blocks[0].held)
            for block in blocks:
                event("moved though not to be stopped")
                for queue in givers(cluster, block.job.queue, taker.queue):
                    assert not block.moved or holds_what_is_owed(cluster, left, queue, asked)


@crowded
@given(crowded_clusters())
def test_whoever_takes_back_stays_within_its_fair_share(cluster: Snapshot) -> None:
    plan = schedule(cluster, RECLAIM)
    fair = fair_shares(cluster, RECLAIM.usage_weight_milli)
    for beneficiary, blocks in by_beneficiary(plan, cluster).items():
        queue = job_of(cluster, beneficiary).queue
        for resource, amount in asked_by(cluster, plan, beneficiary).items():
            if resource in fair[queue]:
                assert blocks[0].held[queue][resource] + amount <= fair[queue][resource]


@crowded
@given(crowded_clusters())
def test_what_is_reclaimed_comes_from_other_queues(cluster: Snapshot) -> None:
    for block in gave_way(schedule(cluster, RECLAIM), cluster):
        assert block.job.queue != job_of(cluster, block.reason.beneficiary).queue


@crowded
@given(crowded_clusters())
def test_reclaim_leaves_young_jobs_their_minimum(cluster: Snapshot) -> None:
    for block in gave_way(schedule(cluster, RECLAIM), cluster):
        taker = job_of(cluster, block.reason.beneficiary)
        safe_ms = reclaim_min_runtime_ms(cluster, block.job.queue, taker.queue)
        assert not block.is_rest or cluster.now_ms >= started_at_ms(block.job) + safe_ms


# ------------------------------------------------------------------------------------------------------- preempt


@crowded
@given(crowded_clusters())
def test_only_jobs_of_strictly_lower_priority_in_the_same_queue_are_preempted(cluster: Snapshot) -> None:
    for block in gave_way(schedule(cluster, PREEMPT), cluster):
        taker = job_of(cluster, block.reason.beneficiary)
        event("preempted")
        assert block.job.queue == taker.queue
        assert block.job.priority < taker.priority


@crowded
@given(crowded_clusters())
def test_preempt_leaves_young_jobs_their_minimum(cluster: Snapshot) -> None:
    for block in gave_way(schedule(cluster, PREEMPT), cluster):
        safe_ms = preempt_min_runtime_ms(cluster, block.job.queue)
        assert not block.is_rest or cluster.now_ms >= started_at_ms(block.job) + safe_ms


# --------------------------------------------------------------------------------------------------- consolidate


@crowded
@given(full, policies)
def test_consolidation_leaves_nobody_without_a_place(cluster: Snapshot, policy: Policy) -> None:
    plan = schedule(cluster, consolidating(policy))
    books = replay(plan, cluster)
    assert not [action for action in plan.actions if isinstance(action, Evict)]
    for job in cluster.jobs:
        before, now = (tasks_by_leaf(one, lambda task: task.state in COUNTED) for one in (job, books.jobs[job.id]))
        assert now >= before


@crowded
@given(full, policies)
def test_whoever_opted_out_or_is_too_young_is_not_moved_by_consolidation(cluster: Snapshot, policy: Policy) -> None:
    for block in gave_way(schedule(cluster, consolidating(policy)), cluster):
        event("moved")
        assert block.job.may_move
        assert cluster.now_ms >= started_at_ms(block.job) + policy.consolidation.min_runtime_ms


@crowded
@given(full, policies)
def test_consolidation_keeps_within_every_budget(cluster: Snapshot, policy: Policy) -> None:
    blocks = list(gave_way(schedule(cluster, consolidating(policy)), cluster))
    budget = policy.consolidation
    by_queue = Counter(block.job.queue for block in blocks for _ in block.actions)
    by_job = Counter(block.job.id for block in blocks for _ in block.actions)
    of_queue = {queue.name: queue.disruption_budget for queue in cluster.queues}
    of_job = {job.id: job.disruption_budget for job in cluster.jobs}
    hourly = None if budget.max_moves_per_hour is None else max(0, budget.max_moves_per_hour - cluster.moves_last_hour)
    bounds = [(by_queue.total(), budget.max_moves_per_cycle), (by_queue.total(), hourly)]
    bounds += [(count, of_queue[queue]) for queue, count in by_queue.items()]
    bounds += [(count, of_job[job]) for job, count in by_job.items()]
    assert not [(count, most) for count, most in bounds if most is not None and count > most]


@crowded
@given(full, policies)
def test_no_single_consolidation_costs_more_work_than_the_policy_allows(cluster: Snapshot, policy: Policy) -> None:
    most = policy.consolidation.max_price
    for blocks in by_beneficiary(schedule(cluster, consolidating(policy)), cluster).values():
        lost = 0
        for block in blocks:
            job = block.job
            since_ms = max(started_at_ms(job), job.checkpoint_at_ms or 0) - job.restart_ms
            lost += block.amounts["gpu"] * (cluster.now_ms - since_ms)
        assert most is None or lost <= most * 1000


# -------------------------------------------------------------------------------------------------------- queues


@crowded
@given(anywhere, policies)
def test_no_queue_that_gets_something_is_over_its_limit_once_the_plan_is_carried_out(
    cluster: Snapshot, policy: Policy
) -> None:
    books = replay(schedule(cluster, policy), cluster)
    held = queue_charges(books.snapshot(), counted)
    for queue, resource, _ in touched(cluster, books):
        limit = share_of(cluster, queue, resource).limit
        assert limit is None or held[queue][resource] <= limit, f"{queue} holds too much {resource}"


@crowded
@given(anywhere, policies)
def test_giving_way_does_not_help_a_firm_job_over_its_quota(cluster: Snapshot, policy: Policy) -> None:
    books = replay(schedule(cluster, policy), cluster)
    firm = queue_charges(books.snapshot(), counted_firm)
    for queue, resource, job in touched(cluster, books):
        quota = share_of(cluster, queue, resource).quota
        assert job.preemptible or quota is None or firm[queue][resource] <= quota


# --------------------------------------------------------------------------------------------- nothing by the way


@crowded
@given(anywhere, policies)
def test_a_search_that_fails_changes_nothing(cluster: Snapshot, policy: Policy) -> None:
    """Nobody stopped, moved or held back in favour of anyone: then it is as if nothing had been tried."""
    draft = drafted(Ledger.of(cluster), policy)
    plan = draft.finish()
    if not draft.beneficiaries and not any(isinstance(action, Evict | Move) for action in plan.actions):
        event("nobody gave way")
        assert plan.actions == schedule(cluster, replace(policy, steps=ALLOCATE)).actions


@crowded
@given(st.data())
def test_the_same_facts_in_any_order_make_the_same_jobs_give_way(data: st.DataObject) -> None:
    cluster, policy = data.draw(full), data.draw(policies)
    assert schedule(data.draw(shuffled(cluster)), policy) == schedule(cluster, policy)


@crowded
@given(st.data())
def test_a_followed_ledger_makes_the_same_jobs_give_way_as_a_fresh_one(data: st.DataObject) -> None:
    before, policy = data.draw(full), data.draw(policies)
    changes, now = data.draw(histories(before))
    followed = Ledger.of(before)
    for change in changes:
        plan_on(followed, policy)
        followed.apply((change,))
    assert plan_on(followed, policy) == schedule(now, policy)


@crowded
@given(anywhere, policies)
def test_a_plan_that_makes_jobs_give_way_holds_on_the_snapshot_it_was_made_for(
    cluster: Snapshot, policy: Policy
) -> None:
    plan = schedule(cluster, policy)
    assert [verdict for verdict in verify(plan, cluster) if not verdict.holds] == []


# -------------------------------------------------------------------------------------------------- nothing flaps


@crowded
@given(full, policies, st.booleans())
def test_nothing_flaps_over_five_more_cycles(cluster: Snapshot, policy: Policy, keeps_promises: bool) -> None:
    """Without new jobs nobody is stopped for one that was stopped, moved or taken back for it: there is no to and fro.

    A job may be disturbed more than once, each time for another, or as an elastic job grows by one task a cycle."""
    gave_way_to: set[tuple[str, str]] = set()
    for _ in range(1 + MORE_CYCLES):
        plan = schedule(cluster, policy)
        blocks = [block for block in gave_way(plan, cluster) if block.reason.beneficiary]
        stopped = {(block.job.id, block.reason.beneficiary) for block in blocks if not block.moved}
        back = {(victim, job) for victim, job in stopped if (job, victim) in gave_way_to}
        assert not back, f"{back} had it the other way round before"
        gave_way_to |= {(block.job.id, block.reason.beneficiary) for block in blocks}
        cluster = after(plan, cluster, keeps_promises)
