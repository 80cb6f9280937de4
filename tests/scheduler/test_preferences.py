"""Where tasks would rather be: a choice among nodes that fit, and nothing more."""

from __future__ import annotations

from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.model.jobs import Job, LabelRule, Operator, Preference, Task, TaskState
from gpuyard.model.nodes import Node, Taint
from gpuyard.model.plan import Bind
from gpuyard.model.snapshot import NodeSeen, Snapshot
from gpuyard.policies.policy import NodePlacement
from gpuyard.scheduler.cycle import plan as plan_on
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.ledger import Ledger
from tests.builders import a_cluster, a_job, a_node
from tests.replay import Books, tolerates
from tests.scheduler.judge import leaf_queues, neighbourly, started_on, unwelcome, within_bounds
from tests.scheduler.test_properties import ALLOCATE, thorough
from tests.strategies import clusters, some

PREFERENCES = (
    Preference(1, (LabelRule("zone", Operator.IN, ("z1",)),)),
    Preference(3, (LabelRule("rack", Operator.IN, ("r2", "r3")),)),
    Preference(150, (LabelRule("zone", Operator.EXISTS), LabelRule("rack", Operator.NOT_IN, ("r1",)))),
)


def wish(node: Node, task: Task) -> int:
    where = task.request.where
    wanted = [one.weight for one in where.preferences if all(rule.accepts(node.labels) for rule in one.rules)]
    soft = [taint for taint in node.taints if taint.soft]
    return sum(wanted) - 100 * sum(not any(tolerates(one, taint) for one in where.tolerations) for taint in soft)


def alone(cluster: Snapshot, preferences: tuple[Preference, ...]) -> tuple[Snapshot, Job] | None:
    """The cluster with just one job of one task waiting, which has these preferences."""
    running = [job for job in cluster.jobs if all(task.state is not TaskState.PENDING for task in job.tasks)]
    for job in cluster.jobs:
        plain = len(job.tasks) == 1 and job.group.topology is None and not neighbourly(job)
        if plain and job.tasks[0].state is TaskState.PENDING and job.queue in leaf_queues(cluster):
            request = job.tasks[0].request
            request = replace(request, where=replace(request.where, preferences=preferences))
            choosy = replace(job, tasks=(replace(job.tasks[0], request=request),))
            return replace(cluster, jobs=(*running, choosy)), choosy
    return None


@thorough
@given(clusters(), st.lists(some(*PREFERENCES), max_size=3), st.sampled_from(NodePlacement))
def test_a_task_gets_a_node_it_wants_most_of_those_that_would_hold_it(
    cluster: Snapshot, preferences: list[Preference], placement: NodePlacement
) -> None:
    found = alone(cluster, tuple(preferences))
    if found is None:
        return
    snapshot, job = found
    binds = [
        one for one in schedule(snapshot, replace(ALLOCATE, node_placement=placement)).actions if one.job == job.id
    ]
    for bind in binds:
        if isinstance(bind, Bind):
            chosen = next(node for node in snapshot.nodes if node.name == bind.node)
            better = [node for node in snapshot.nodes if wish(node, job.tasks[0]) > wish(chosen, job.tasks[0])]
            event(f"{len(better)} nodes wanted more")
            assert [node.name for node in better if would_hold(snapshot, job, node)] == []


def would_hold(snapshot: Snapshot, job: Job, node: Node) -> bool:
    trial = Books(snapshot)
    return started_on(trial, job, job.tasks[0], node.name) and within_bounds(trial, job) and not unwelcome(trial, job)


def test_a_preference_follows_a_node_that_gets_another_label() -> None:
    nodes = a_node("a").gpus(1), a_node("b").gpus(1)
    wants = a_job("j").job()
    where = replace(wants.tasks[0].request.where, preferences=(PREFERENCES[0],))
    choosy = replace(wants, tasks=(replace(wants.tasks[0], request=replace(wants.tasks[0].request, where=where)),))
    ledger = Ledger.of(replace(a_cluster().having(*nodes).queue("team").snapshot(), jobs=(choosy,)))
    assert [action.node for action in plan_on(ledger).actions if isinstance(action, Bind)] == ["a"]
    ledger.apply([NodeSeen(a_node("b").gpus(1).label("zone", "z1").node())])
    assert [action.node for action in plan_on(ledger).actions if isinstance(action, Bind)] == ["b"]
    ledger.apply([NodeSeen(replace(a_node("b").gpus(1).label("zone", "z1").node(), taints=(Taint("old", soft=True),)))])
    assert [action.node for action in plan_on(ledger).actions if isinstance(action, Bind)] == ["a"]
