"""What rules between tasks promise, on clusters full of them; the judge works rules out from their definitions."""

from __future__ import annotations

from typing import Final

from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.model.jobs import NOBODY, TaskState
from gpuyard.model.plan import Bind, Evict, Promise
from gpuyard.model.reasons import NODES, Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import DEFAULT, Step
from gpuyard.scheduler.cycle import plan as plan_on
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.verify import verify
from tests.company_by_force import objections, open_nodes, staying, unwanted
from tests.replay import Books, closed, replay, replay_steps
from tests.scheduler.test_properties import thorough
from tests.sociable import sociable_clusters
from tests.strategies import histories, shuffled

ALLOCATE: Final = replace(DEFAULT, steps=(Step.ALLOCATE,))


@thorough
@given(sociable_clusters())
def test_nobody_is_placed_against_a_rule(cluster: Snapshot) -> None:
    """Whoever was promised a place before, and keeps it, is judged in another test."""
    promised = {task.id for job in cluster.jobs for task in job.tasks if task.state is TaskState.PROMISED}
    for books, action in replay_steps(schedule(cluster, ALLOCATE), cluster):
        if isinstance(action, Bind | Promise) and action.task not in promised:
            job = books.jobs[action.job]
            task = next(task for task in job.tasks if task.id == action.task)
            event(f"{len(task.request.where.neighbours)} near or apart, {len(task.request.where.spreads)} even")
            now = isinstance(action, Bind)
            assert objections(books.snapshot(), job, task, books.nodes[action.node], now) == []


@thorough
@given(sociable_clusters())
def test_a_promise_is_kept_only_in_good_company(cluster: Snapshot) -> None:
    """Those whose promise cannot be kept are told first, and are no company any more."""
    for books, action in replay_steps(schedule(cluster, ALLOCATE), cluster):
        job = books.jobs[action.job]
        task = next(task for task in job.tasks if task.id == action.task)
        if isinstance(action, Bind) and task.state is TaskState.PROMISED:
            assert objections(books.snapshot(), job, task, books.nodes[action.node], now=True) == []


@thorough
@given(sociable_clusters())
def test_nobody_comes_to_meet_whom_it_must_be_apart_from_whoever_gives_way(cluster: Snapshot) -> None:
    after = replay(schedule(cluster), cluster).snapshot()
    nodes = {node.name: node for node in cluster.nodes}
    before = {task.id: task for job in cluster.jobs for task in job.tasks}
    for one in staying(after):
        if before[one.task.id].node != one.task.node:
            met = list(unwanted(after, staying(after, one.task), one.job, one.task, nodes[one.task.node]))
            assert met == [], f"{one.task.id} has come to {one.task.node}"


@thorough
@given(sociable_clusters())
def test_no_single_task_waits_while_an_idle_place_no_rule_forbids_would_hold_it(cluster: Snapshot) -> None:
    plan = schedule(cluster, ALLOCATE)
    taken_back = {action.job for action in plan.actions if isinstance(action, Evict)}
    books = replay(plan, cluster)
    for job in books.jobs.values():
        single = len(job.tasks) == 1 and job.tasks[0].state is TaskState.PENDING
        if single and job.queue != NOBODY and job.id not in taken_back:
            assert idle_places(books, job.id) == []


def idle_places(books: Books, id: str) -> list[str]:
    snapshot, job = books.snapshot(), books.jobs[id]
    (task,) = job.tasks
    return [
        node.name
        for node in snapshot.nodes
        if books.room(task.request, node.name) is not None and not objections(snapshot, job, task, node, now=True)
    ]


@thorough
@given(sociable_clusters())
def test_what_is_said_about_rules_is_so(cluster: Snapshot) -> None:
    """Of jobs of one task: how many nodes the rules leave it, and that they are named where they leave none."""
    plan = schedule(cluster, ALLOCATE)
    taken_back = {action.job for action in plan.actions if isinstance(action, Evict)}
    after = replay(plan, cluster).snapshot()
    for job in after.jobs:
        if len(job.tasks) > 1 or job.queue == NOBODY or job.id in taken_back:
            continue
        told = [reason for reason in plan.reasons_for(job.id) if reason.resource == NODES]
        left = open_nodes(after, job, job.tasks[0], now=False)
        matching = [node for node in after.nodes if not closed(node, job.tasks[0].request.where)]
        for reason in told:
            event(f"rules leave {len(left)} of {len(matching)} nodes")
            assert (reason.token, reason.have, reason.need) == (Token.NO_MATCHING_NODE, len(left), len(matching))
        hopeless = any(reason.token is Token.TOO_LARGE for reason in plan.reasons_for(job.id))
        if job.tasks[0].state is TaskState.PENDING and matching and not left and not hopeless:
            assert told, f"nobody says that rules keep {job.id} from every node"


@thorough
@given(st.data())
def test_a_ledger_that_has_followed_rules_equals_a_fresh_one(data: st.DataObject) -> None:
    before = data.draw(sociable_clusters())
    changes, after = data.draw(histories(before))
    followed = Ledger.of(before)
    for change in changes:
        plan_on(followed, ALLOCATE)
        followed.apply((change,))
    assert followed.facts() == Ledger.of(after).facts()
    assert plan_on(followed) == schedule(after)


@given(st.data())
def test_many_changes_at_once_are_followed_like_one_after_the_other(data: st.DataObject) -> None:
    before = data.draw(sociable_clusters())
    changes, after = data.draw(histories(before))
    followed = Ledger.of(before)
    followed.apply(changes)
    assert followed.facts() == Ledger.of(after).facts()
    assert plan_on(followed) == schedule(after)


@given(st.data())
def test_the_same_rules_in_any_order_give_the_same_plan(data: st.DataObject) -> None:
    cluster = data.draw(sociable_clusters())
    assert schedule(data.draw(shuffled(cluster))) == schedule(cluster)


@thorough
@given(sociable_clusters())
def test_a_plan_made_under_rules_holds_on_the_snapshot_it_was_made_for(cluster: Snapshot) -> None:
    assert [verdict.why for verdict in verify(schedule(cluster), cluster) if not verdict.holds] == []


@given(sociable_clusters())
def test_planning_leaves_what_is_followed_as_it_was(cluster: Snapshot) -> None:
    ledger = Ledger.of(cluster)
    facts = ledger.facts()
    plan_on(ledger)
    assert ledger.facts() == facts
