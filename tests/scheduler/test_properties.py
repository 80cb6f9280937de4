"""What the planner promises on every cluster, one promise a test.

The judge is `tests.replay`, a simple bookkeeper that shares nothing with the scheduler but the values of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.model.jobs import NOBODY, TaskState
from gpuyard.model.plan import Bind, Evict, Plan, Promise
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import DEFAULT, NodePlacement, Step
from gpuyard.scheduler.cycle import plan as plan_on
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.verify import verify
from tests.builders import a_cluster, a_job, a_node
from tests.company_by_force import is_meant, is_near, staying, unwanted
from tests.conftest import EXAMPLES, LONG, LONG_FACTOR
from tests.replay import COUNTED, counted, counted_firm, queue_charges, replay, satisfied, subgroups, tasks_by_leaf
from tests.scheduler.judge import (
    changed_jobs,
    domain_of,
    leaf_queues,
    ledger_charges,
    newly_placed,
    next_plain_chunk,
    one_node_for,
    required_groups,
    share_of,
    started_in,
    started_plain_gangs,
    tasks_in,
    touched,
    without,
)
from tests.strategies import clusters, histories, shuffled

ALLOCATE: Final = replace(DEFAULT, steps=(Step.ALLOCATE,))
THOROUGH_FACTOR: Final = 3

Test = TypeVar("Test", bound=Callable[..., None])


def thorough(test: Test) -> Test:
    """The promises most worth breaking are tried more often, outside the inner loop."""
    examples = THOROUGH_FACTOR * EXAMPLES * (LONG_FACTOR if LONG else 1)
    marked: Test = pytest.mark.slow(settings(max_examples=examples)(test))
    return marked


# ------------------------------------------------------------------------------------------------------ capacity


@given(clusters())
def test_no_device_is_booked_beyond_its_capacity_at_any_step(cluster: Snapshot) -> None:
    replay(schedule(cluster, ALLOCATE), cluster)


@thorough
@given(clusters(), st.sampled_from(NodePlacement))
def test_no_placement_policy_books_a_device_beyond_its_capacity(cluster: Snapshot, placement: NodePlacement) -> None:
    replay(schedule(cluster, replace(ALLOCATE, node_placement=placement)), cluster)


@given(clusters())
def test_the_cycle_does_not_touch_the_snapshot_or_what_runs(cluster: Snapshot) -> None:
    """What was promised, and can no longer be kept, may be taken back."""
    plan = schedule(cluster, ALLOCATE)
    promised = {task.id for job in cluster.jobs for task in job.tasks if task.state is TaskState.PROMISED}
    started = [action for action in plan.actions if not isinstance(action, Evict) or action.task not in promised]
    assert all(isinstance(action, Bind | Promise) for action in started)


# --------------------------------------------------------------------------------------------------------- gangs


@thorough
@given(clusters())
def test_a_gang_starts_whole_or_not_at_all_in_every_group_of_its_tree(cluster: Snapshot) -> None:
    for before, after in changed_jobs(cluster, replay(schedule(cluster, ALLOCATE), cluster)):
        tasks = tasks_by_leaf(after, lambda task: task.state in COUNTED)
        assert satisfied(after.group, tasks), f"{after.id} was started below its minimum"
        for group in subgroups(after.group):
            in_part = started_in(group, before, after) and not satisfied(group, tasks)
            assert not in_part, f"group {group.name} of {after.id} was started in part"


@given(clusters())
def test_nothing_of_a_gang_starts_while_its_minimum_still_waits_for_a_place(cluster: Snapshot) -> None:
    plan = schedule(cluster, ALLOCATE)
    bound = {action.job for action in plan.actions if isinstance(action, Bind)}
    for _, after in changed_jobs(cluster, replay(plan, cluster)):
        running = tasks_by_leaf(after, lambda task: task.state is TaskState.RUNNING)
        assert after.id not in bound or satisfied(after.group, running)


@thorough
@given(clusters())
def test_a_gang_that_fits_on_one_node_is_not_split(cluster: Snapshot) -> None:
    books = replay(schedule(cluster, ALLOCATE), cluster)
    for job in started_plain_gangs(cluster, books):
        nodes = {task.node for task in job.tasks}
        if len(nodes) > 1:
            event("a gang lies on several nodes")
            assert one_node_for(job, without(books, job)) is None


# -------------------------------------------------------------------------------------------------------- places


@thorough
@given(clusters())
def test_a_group_that_requires_a_level_lies_in_one_domain_of_it(cluster: Snapshot) -> None:
    books = replay(schedule(cluster, ALLOCATE), cluster)
    for old, new in changed_jobs(cluster, books):
        for group, levels in required_groups(cluster, new):
            added = {domain_of(books, task, levels) for task in tasks_in(group, new) if task not in old.tasks}
            already = {domain_of(books, task, levels) for task in tasks_in(group, old)}
            assert None not in added
            assert added <= already if already else len(added) <= 1


@thorough
@given(clusters())
def test_tasks_that_must_be_apart_never_meet(cluster: Snapshot) -> None:
    books = replay(schedule(cluster, ALLOCATE), cluster)
    after = books.snapshot()
    for job, task in newly_placed(cluster, books):
        assert list(unwanted(after, staying(after, task), job, task, books.nodes[task.node])) == []


@given(clusters())
def test_a_task_that_must_be_near_others_is(cluster: Snapshot) -> None:
    books = replay(schedule(cluster, ALLOCATE), cluster)
    for job, task in newly_placed(cluster, books):
        for rule in task.request.where.neighbours:
            near = is_near(books.snapshot(), staying(books.snapshot(), task), job, task, books.nodes[task.node], rule)
            # The first of its kind may start a domain.
            assert near or rule.apart or is_meant(job, task, rule)


# -------------------------------------------------------------------------------------------------------- queues


@thorough
@given(clusters())
def test_no_queue_is_taken_over_its_limit_at_any_level(cluster: Snapshot) -> None:
    books = replay(schedule(cluster, ALLOCATE), cluster)
    after = queue_charges(books.snapshot(), counted)
    for queue, resource, _ in touched(cluster, books):
        limit = share_of(cluster, queue, resource).limit
        assert limit is None or after[queue][resource] <= limit, f"{queue} holds too much {resource}"


@thorough
@given(clusters())
def test_what_may_not_be_preempted_stays_within_the_quota_at_every_level(cluster: Snapshot) -> None:
    books = replay(schedule(cluster, ALLOCATE), cluster)
    firm = queue_charges(books.snapshot(), counted_firm)
    for queue, resource, job in touched(cluster, books):
        quota = share_of(cluster, queue, resource).quota
        assert job.preemptible or quota is None or firm[queue][resource] <= quota


# -------------------------------------------------------------------------------------------------- conservation


@thorough
@given(clusters())
def test_no_job_waits_while_an_idle_place_it_may_use_would_hold_it(cluster: Snapshot) -> None:
    """But for one that had a promise taken back: it is planned anew in the next cycle."""
    plan = schedule(cluster, ALLOCATE)
    taken_back = {action.job for action in plan.actions if isinstance(action, Evict)}
    books = replay(plan, cluster)
    for job in books.snapshot().jobs:
        chunk = next_plain_chunk(job)
        if chunk and job.queue in leaf_queues(cluster) and job.id not in taken_back:
            node = one_node_for(job, books, chunk)
            assert node is None, f"{job.id} waits although {[task.id for task in chunk]} fit on {node}"


@given(clusters())
def test_every_job_that_waits_has_a_reason_and_is_listed_once(cluster: Snapshot) -> None:
    plan = schedule(cluster, ALLOCATE)
    listed = [job for waiting in plan.waiting for job in waiting.jobs]
    assert len(listed) == len(set(listed))
    assert all(waiting.reasons for waiting in plan.waiting)
    started = {action.job for action in plan.actions}
    for job in cluster.jobs:
        waits = job.queue != NOBODY and any(task.state is TaskState.PENDING for task in job.tasks)
        if waits and job.id not in started:
            assert plan.reasons_for(job.id), f"nobody says why {job.id} waits"


# --------------------------------------------------------------------------------------------------- determinism


@given(st.data())
def test_the_same_facts_in_any_order_give_the_same_plan(data: st.DataObject) -> None:
    cluster = data.draw(clusters())
    assert schedule(data.draw(shuffled(cluster)), ALLOCATE) == schedule(cluster, ALLOCATE)


def test_the_same_snapshot_gives_the_same_plan_wherever_its_parts_lie_in_memory() -> None:
    """Two roles cost the same; which of them explains the wait must not hang on the address of an object."""
    busy = a_job("left").fraction("0.5").on("n", 0), a_job("right").fraction("0.5").on("n", 1)
    roles = a_job("pair").gpus(1).role("whole", 1).gpu_memory(80_000).role("memory", 1)
    cluster = a_cluster().having(a_node("n").gpus(3)).jobs(*busy, roles).snapshot()
    first = schedule(cluster, ALLOCATE)
    clutter = []
    for size in range(100):
        assert schedule(cluster, ALLOCATE) == first
        clutter.append([bytearray(50 + size % 64) for _ in range(size % 17)])


@given(st.permutations(["a", "b", "c", "node-10", "node-2"]), st.integers(1, 4))
def test_of_equal_nodes_the_first_by_name_is_taken(names: list[str], gpus: int) -> None:
    cluster = a_cluster().having(*(a_node(name).gpus(4) for name in names)).jobs(a_job("j").gpus(gpus)).snapshot()
    (bind,) = schedule(cluster, ALLOCATE).actions
    assert isinstance(bind, Bind)
    assert bind.node == min(names)


@thorough
@given(clusters())
def test_what_is_nobodys_is_left_alone_and_never_waits(cluster: Snapshot) -> None:
    plan = schedule(cluster)
    spoken_of = {action.job for action in plan.actions} | {job for entry in plan.waiting for job in entry.jobs}
    assert spoken_of.isdisjoint(job.id for job in cluster.jobs if job.queue == NOBODY)


# ------------------------------------------------------------------------------------------------------- ledgers


@given(clusters())
def test_queues_are_charged_for_exactly_what_runs_and_what_the_plan_starts(cluster: Snapshot) -> None:
    books = replay(schedule(cluster, ALLOCATE), cluster)
    expected = queue_charges(books.snapshot(), counted)
    for (queue, resource), amount in ledger_charges(books.snapshot()).items():
        assert amount == expected[queue][resource]


@thorough
@given(st.data())
def test_a_followed_ledger_equals_a_fresh_one(data: st.DataObject) -> None:
    before = data.draw(clusters())
    changes, after = data.draw(histories(before))
    followed, fresh = Ledger.of(before), Ledger.of(after)
    followed.apply(changes)
    assert followed.facts() == fresh.facts()
    assert plan_on(followed, ALLOCATE) == plan_on(fresh, ALLOCATE)


@given(st.data())
def test_a_ledger_that_has_planned_in_between_equals_a_fresh_one(data: st.DataObject) -> None:
    before = data.draw(clusters())
    changes, after = data.draw(histories(before))
    followed = Ledger.of(before)
    for change in changes:
        plan_on(followed, ALLOCATE)
        followed.apply((change,))
    assert followed.facts() == Ledger.of(after).facts()
    assert plan_on(followed, ALLOCATE) == schedule(after, ALLOCATE)


@given(clusters())
def test_planning_leaves_the_ledger_as_it_was(cluster: Snapshot) -> None:
    ledger = Ledger.of(cluster)
    facts = ledger.facts()
    plan_on(ledger, ALLOCATE)
    assert ledger.facts() == facts


# -------------------------------------------------------------------------------------------------- verification


@given(clusters())
def test_a_plan_holds_on_the_snapshot_it_was_made_for(cluster: Snapshot) -> None:
    plan = schedule(cluster, ALLOCATE)
    assert [verdict.why for verdict in verify(plan, cluster) if not verdict.holds] == []


@thorough
@given(st.data())
def test_what_still_holds_of_an_old_plan_overbooks_nothing(data: st.DataObject) -> None:
    before = data.draw(clusters())
    plan = schedule(before, ALLOCATE)
    _, after = data.draw(histories(before))
    verdicts = verify(plan, after)
    assert len(verdicts) == len(plan.actions)
    assert all(verdict.holds or verdict.why for verdict in verdicts)
    kept = tuple(action for action, verdict in zip(plan.actions, verdicts, strict=True) if verdict.holds)
    replay(Plan(kept), after)
