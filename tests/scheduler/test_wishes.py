"""Which company tasks would rather have: a choice among nodes that fit, and nothing more."""

from __future__ import annotations

from typing import Final

from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.model.jobs import (
    NOBODY,
    Job,
    LabelRule,
    Operator,
    Request,
    SoftNeighbour,
    SoftSpread,
    Task,
    TaskState,
    Where,
)
from gpuyard.model.plan import Bind, Promise
from gpuyard.model.snapshot import JobGone, JobSeen, Snapshot
from gpuyard.policies.policy import DEFAULT, NodePlacement, Step
from gpuyard.scheduler.cycle import plan as plan_on
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.ledger import Ledger
from tests.builders import a_cluster, a_job, a_node
from tests.company_by_force import objections, wanted
from tests.replay import replay_steps
from tests.scheduler.test_properties import thorough
from tests.sociable import sociable_clusters, soft_rules
from tests.strategies import clusters, some

ALLOCATE: Final = replace(DEFAULT, steps=(Step.ALLOCATE,), rearrange_steps=0)
IS_WEB: Final = (LabelRule("app", Operator.IN, ("web",)),)


@st.composite
def wishful_clusters(draw: st.DrawFn) -> Snapshot:
    """What waits has wishes, and seldom rules that bind: these leave little to wish for."""
    cluster = draw(sociable_clusters())
    neighbours, spreads = draw(soft_rules())
    freely = draw(some(True, True, False))

    def wishful(task: Task) -> Task:
        if task.state is not TaskState.PENDING:
            return task
        where = replace(task.request.where, soft_neighbours=neighbours, soft_spreads=spreads)
        where = replace(where, neighbours=(), spreads=(), any_of=()) if freely else where
        return replace(task, request=replace(task.request, devices=min(1, task.request.devices), where=where))

    jobs = tuple(replace(job, tasks=tuple(map(wishful, job.tasks))) for job in cluster.jobs)
    return replace(cluster, jobs=jobs)


@thorough
@given(wishful_clusters(), st.sampled_from(NodePlacement))
def test_a_task_gets_a_node_it_wants_most_of_those_that_would_hold_it(
    cluster: Snapshot, placement: NodePlacement
) -> None:
    """Of tasks that go one by one: those of a gang would rather lie together."""
    promised = {task.id for job in cluster.jobs for task in job.tasks if task.state is TaskState.PROMISED}
    for books, action in replay_steps(schedule(cluster, replace(ALLOCATE, node_placement=placement)), cluster):
        job = books.jobs[action.job]
        if not isinstance(action, Bind) or action.task in promised or job.group.min_tasks > 1:
            continue
        task = next(task for task in job.tasks if task.id == action.task)
        before = books.snapshot()
        fitting = [node for node in before.nodes if books.room(task.request, node.name) is not None]
        fitting = [node for node in fitting if not objections(before, job, task, node, now=True)]
        wishes = {node.name: wanted(before, job, task, node) for node in fitting}
        event(f"{len(set(wishes.values()))} different wishes")
        assert wishes[action.node] == max(wishes.values())


@thorough
@given(st.one_of(clusters(), sociable_clusters(), wishful_clusters()))
def test_what_is_only_wished_for_makes_nobody_wait(cluster: Snapshot) -> None:
    for job in cluster.jobs:
        if job.queue != NOBODY and all(task.state is TaskState.PENDING for task in job.tasks) and choosy(job):
            alone = replace(cluster, jobs=tuple(one for one in cluster.jobs if one.id == job.id or runs(one)))
            heeded, unheeded = started(alone, job), started(without_wishes(alone, job), job)
            event(f"{heeded} with wishes, {unheeded} without")
            assert heeded == unheeded


def choosy(job: Job) -> bool:
    return any(task.request.where.soft_neighbours or task.request.where.soft_spreads for task in job.tasks)


def runs(job: Job) -> bool:
    return all(task.state is not TaskState.PENDING for task in job.tasks)


def started(cluster: Snapshot, job: Job) -> str:
    actions = [action for action in schedule(cluster, ALLOCATE).actions if action.job == job.id]
    if any(isinstance(action, Bind) for action in actions):
        return "started"
    return "promised" if any(isinstance(action, Promise) for action in actions) else "waits"


def without_wishes(cluster: Snapshot, job: Job) -> Snapshot:
    def plain(request: Request) -> Request:
        return replace(request, where=replace(request.where, soft_neighbours=(), soft_spreads=()))

    other = replace(job, tasks=tuple(replace(task, request=plain(task.request)) for task in job.tasks))
    return replace(cluster, jobs=tuple(other if one.id == job.id else one for one in cluster.jobs))


def wishing(name: str, *soft: SoftNeighbour | SoftSpread, gang: int = 1) -> Job:
    job = a_job(name).tasks(gang).job()
    where = Where(
        soft_neighbours=tuple(one for one in soft if isinstance(one, SoftNeighbour)),
        soft_spreads=tuple(one for one in soft if isinstance(one, SoftSpread)),
    )
    tasks = tuple(replace(task, request=replace(task.request, where=where)) for task in job.tasks)
    return replace(job, tasks=tasks, labels=(("app", "web"),))


def nodes_of(ledger: Ledger, name: str) -> list[str]:
    return [action.node for action in plan_on(ledger).actions if isinstance(action, Bind) and action.job == name]


def test_a_wish_follows_who_comes_and_goes() -> None:
    nodes = a_node("a").gpus(4), a_node("b").gpus(4)
    ledger = Ledger.of(a_cluster().having(*nodes).queue("team").snapshot())
    friend = replace(a_job("friend").on("b").job(), labels=(("app", "web"),))
    ledger.apply([JobSeen(wishing("j", SoftNeighbour(1, "hostname", IS_WEB)))])
    assert nodes_of(ledger, "j") == ["a"]
    ledger.apply([JobSeen(friend)])
    assert nodes_of(ledger, "j") == ["b"]
    ledger.apply([JobSeen(wishing("j", SoftNeighbour(-1, "hostname", IS_WEB)))])
    assert nodes_of(ledger, "j") == ["a"]
    ledger.apply([JobGone("friend")])
    assert nodes_of(ledger, "j") == ["a"]


def test_a_gang_that_cannot_be_apart_from_itself_starts_together() -> None:
    nodes = a_node("a").gpus(2), a_node("b").gpus(1)
    apart = wishing("j", SoftNeighbour(-1, "hostname", IS_WEB), gang=3)
    ledger = Ledger.of(replace(a_cluster().having(*nodes).queue("team").snapshot(), jobs=(apart,)))
    assert sorted(nodes_of(ledger, "j")) == ["a", "a", "b"]


def test_a_rule_of_one_task_about_itself_splits_nothing() -> None:
    nodes = a_node("a").gpus(2), a_node("b").gpus(2)
    pair = wishing("j", SoftNeighbour(-1, "hostname", (LabelRule("rank", Operator.IN, ("0",)),)), gang=2)
    first, second = pair.tasks
    plain = replace(second, request=replace(second.request, where=Where()))
    alone = replace(pair, tasks=(replace(first, labels=(("rank", "0"),)), plain))
    both = replace(pair, tasks=(replace(first, labels=(("rank", "0"),)), second))
    snapshot = a_cluster().having(*nodes).queue("team").snapshot()
    assert nodes_of(Ledger.of(replace(snapshot, jobs=(alone,))), "j") == ["a", "a"]
    assert nodes_of(Ledger.of(replace(snapshot, jobs=(both,))), "j") == ["a", "b"]
