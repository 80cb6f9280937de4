"""Random clusters for the properties: small, crowded, and full of corners.

Every snapshot drawn is legal: what runs was put where the simple bookkeeper of `tests.replay` found room, so no device
holds more than it has. Quotas and limits may be anything: a queue may hold more than it is allowed, because an owner
may lower them while jobs run.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, TypeVar

from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.model.jobs import (
    ANYWHERE,
    DESPITE_CORDON,
    NOBODY,
    Job,
    LabelRule,
    Neighbour,
    Operator,
    Preference,
    Request,
    Sharing,
    SoftNeighbour,
    SoftSpread,
    Spread,
    Task,
    TaskGroup,
    TaskState,
    Toleration,
    TopologyRule,
    Where,
    on_nodes,
)
from gpuyard.model.nodes import Device, MigSlices, Node, Taint, Topology
from gpuyard.model.quantities import CPU, GPU, MILLI, gpu_model_resource
from gpuyard.model.queues import AffinityScope, Queue, QueueShare, QueueUsage
from gpuyard.model.snapshot import (
    Change,
    JobGone,
    JobSeen,
    NodeGone,
    NodeSeen,
    QueuesSet,
    Snapshot,
    TimePassed,
    UsageSet,
)
from tests.replay import HELD_LATER, HELD_NOW, Held, View, follow, on_node, room, view

GIB: Final = 1 << 30
MODELS: Final = {"H100": 81_559, "A100": 40_960, "T4": 15_109}
"""Real sizes, which no power of two divides, so that rounding matters."""
FABRIC: Final = Topology("fabric", ("zone", "rack"))
MAX_QUEUE_LEVELS: Final = 3
TREES: Final = (*["one"] * 4, *["gang"] * 3, *["elastic"] * 2, *["roles"] * 2, "nodes", "deep", "incomplete")
"""What jobs look like, the usual more often."""
TAINTS: Final = (
    (Taint("dedicated", "lab"),),
    (Taint("dedicated", "lab", effect="NoExecute"),),
    (Taint("busy", soft=True),),
)
STARTED_STATES: Final = (
    *[TaskState.RUNNING] * 6,
    *[TaskState.FREEING] * 3,
    TaskState.PROMISED,
    TaskState.STUCK,
)

WEB_OR_DB: Final = LabelRule("app", Operator.IN, ("web", "db"))

T = TypeVar("T")


def some(*values: T) -> st.SearchStrategy[T]:
    """One of these; made once, because making a strategy costs more than drawing from it."""
    strategy: st.SearchStrategy[T] = _sampled(*values)
    return strategy


@lru_cache(typed=True)
def _sampled(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


def rarely(value: bool = True) -> st.SearchStrategy[bool]:
    return some(*[not value] * 9, value)


# --------------------------------------------------------------------------------------------------------- nodes


@st.composite
def device_sets(draw: st.DrawFn) -> tuple[Device, ...]:
    """The GPUs of one node: mostly alike, as machines are, with the odd sick or sliced one among them."""
    model = draw(some(*sorted(MODELS)))
    device = Device(model, MODELS[model], shareable=draw(rarely(False)))
    devices = [device] * draw(st.integers(0, 8))
    for index in range(len(devices)):
        match draw(some(*["plain"] * 12, "sick", "sliced", "linked")):
            case "sick":
                devices[index] = replace(device, healthy=False)
            case "sliced":
                devices[index] = replace(device, mig=draw(slice_sets))
            case "linked":
                devices[index] = replace(device, nvlink=1)
    return tuple(devices)


slice_sets = some(
    (MigSlices("1g.10gb", 7),),
    (MigSlices("3g.40gb", 2),),
    (MigSlices("1g.10gb", 2), MigSlices("2g.20gb", 1)),
)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    return Node(
        name,
        devices=draw(device_sets()),
        cpu_milli=draw(some(4_000, 64_000, 64_000)),
        memory_bytes=draw(some(16 * GIB, 512 * GIB)),
        max_tasks=draw(some(110, 110, 110, 3)),
        other=draw(some((), (), (("nic", 2),))),
        labels={"zone": draw(some("z1", "z2")), "rack": draw(some("r1", "r2", "r3"))},
        taints=draw(some(*[()] * 9, *TAINTS)),
        cordoned=draw(rarely()),
        ready=draw(rarely(False)),
    )


@st.composite
def machines(draw: st.DrawFn) -> tuple[Node, ...]:
    return tuple(draw(nodes(f"n{number}")) for number in range(1, draw(st.integers(1, 6)) + 1))


# -------------------------------------------------------------------------------------------------------- queues


@st.composite
def queue_trees(draw: st.DrawFn) -> tuple[Queue, ...]:
    """One to six queues in one to three levels."""
    queues: list[Queue] = []
    level: dict[str | None, int] = {None: 0}
    for number in range(draw(st.integers(1, 6))):
        name = f"q{number}"
        parent = draw(some(*(p for p, depth in level.items() if depth < MAX_QUEUE_LEVELS)))
        level[name] = level[parent] + 1
        shares = draw(queue_shares())
        queues.append(Queue(name, parent, shares, draw(some(100, 100, 50, 200)), number, overcommit=True))
    return tuple(queues)


@st.composite
def queue_shares(draw: st.DrawFn) -> tuple[QueueShare, ...]:
    shares = [
        QueueShare(
            GPU,
            quota=draw(amounts(16)),
            limit=draw(amounts(16)),
            weight_milli=draw(some(1000, 1000, 0, 500, 3000)),
        )
    ]
    if draw(some(False, False, True)):
        shares.append(QueueShare(gpu_model_resource("H100"), quota=draw(amounts(4)), limit=draw(amounts(8))))
    if draw(rarely()):
        shares.append(QueueShare(CPU, limit=draw(some(2_000, 8_000))))
    if draw(rarely()):
        shares.append(QueueShare("nic", limit=1))
    return tuple(shares)


def amounts(half_gpus: int) -> st.SearchStrategy[int | None]:
    return st.none() | st.none() | st.integers(0, half_gpus).map(lambda halves: halves * MILLI // 2)


def leaf_names(queues: tuple[Queue, ...]) -> list[str]:
    parents = {queue.parent for queue in queues}
    return [queue.name for queue in queues if queue.name not in parents]


# ---------------------------------------------------------------------------------------------------------- jobs


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """One request of any kind."""
    request = draw(gpu_requests)
    if request.shared:
        request = replace(request, sharing=draw(some(Sharing.TIME_SLICED, Sharing.TIME_SLICED, Sharing.MPS)))
    return replace(
        request,
        cpu_milli=draw(some(0, 500, 1000, 3000)) or (0 if request.devices or request.mig else 500),
        memory_bytes=draw(some(0, 0, GIB, 9 * GIB)),
        other=draw(some(*[()] * 9, (("nic", 1),))),
        where=draw(wheres()),
    )


gpu_requests: Final[st.SearchStrategy[Request]] = st.one_of(
    st.integers(1, 4).map(lambda count: Request(devices=count)),
    some(1, 1, 2, 8).map(lambda count: Request(devices=count)),
    st.builds(Request, devices=some(1, 1, 1, 2), gpu_milli=some(100, 125, 250, 333, 500, 600, 999)),
    st.builds(
        Request,
        devices=some(1, 1, 1, 2),
        gpu_milli=st.just(0),
        gpu_memory_mib=some(1, 4_096, 10_000, 40_960, 60_000),
    ),
    st.builds(Request, mig=some((("1g.10gb", 1),), (("1g.10gb", 3),), (("3g.40gb", 1),), (("2g.20gb", 1),))),
    st.just(Request()),
)


@st.composite
def wheres(draw: st.DrawFn) -> Where:
    match draw(
        some(
            *["anywhere"] * 13, "models", "zone", "rack", "tolerant", "apart", "near", "rules", "even", "prefer", "soft"
        )
    ):
        case "models":
            return Where(gpu_models=draw(some(("H100",), ("A100", "T4"))))
        case "zone":
            return Where(any_of=((LabelRule("zone", Operator.IN, ("z1",)),),))
        case "rack":
            return Where(any_of=((LabelRule("rack", Operator.NOT_IN, ("r1",)),),))
        case "tolerant":
            effect = draw(some("", "", "NoSchedule", "NoExecute"))
            return Where(tolerations=(Toleration("dedicated", effect=effect), *draw(some((), (DESPITE_CORDON,)))))
        case "apart":
            return Where(neighbours=(Neighbour((("app", "web"),), "zone", apart=True),))
        case "near":
            return Where(neighbours=(Neighbour((("app", "web"),), "zone"),))
        case "rules":
            return Where(neighbours=(Neighbour((), "hostname", draw(some(True, False)), (WEB_OR_DB,)),))
        case "prefer":
            rack, zone = LabelRule("rack", Operator.IN, ("r2",)), LabelRule("zone", Operator.NOT_IN, ("z1",))
            return Where(preferences=(Preference(draw(some(1, 200)), (rack,)), Preference(3, (zone,))))
        case "soft":
            near = SoftNeighbour(draw(some(-5, 5)), draw(some("zone", "hostname")), (WEB_OR_DB,))
            return Where(soft_neighbours=(near,), soft_spreads=draw(some((), (SoftSpread(3, "rack", (WEB_OR_DB,)),))))
        case "even":
            return Where(spreads=(Spread("zone", draw(some(1, 2)), (WEB_OR_DB,)),))
    return ANYWHERE


@st.composite
def job_trees(draw: st.DrawFn, request: Request) -> tuple[TaskGroup, list[tuple[str, Request]]]:
    """A tree of groups, and for each task its leaf and what it asks for."""
    match draw(some(*TREES)):
        case "gang":
            count = draw(st.integers(2, 5))
            return TaskGroup(min_tasks=count, topology=draw(rules())), [("", request)] * count
        case "elastic":
            count = draw(st.integers(2, 5))
            gang = draw(st.integers(1, count - 1))
            return TaskGroup(min_tasks=gang, topology=draw(rules())), [("", request)] * count
        case "roles":
            return draw(roles(request))
        case "nodes":
            nodes, each = draw(st.integers(1, 3)), draw(st.integers(1, 3))
            tree = on_nodes(nodes, each, draw(st.integers(1, nodes)), draw(rules()))
            return tree, [(child.name, request) for child in tree.children for _ in range(each)]
        case "deep":
            left, tasks = draw(roles(request))
            right = TaskGroup("c", min_tasks=1)
            inner = replace(left, name="ab", topology=draw(rules()))
            return TaskGroup(children=(inner, right), min_groups=draw(some(None, 1))), [*tasks, ("c", request)]
        case "incomplete":
            return TaskGroup(min_tasks=3), [("", request)] * 2
    return TaskGroup(topology=draw(rules())), [("", request)]


@st.composite
def roles(draw: st.DrawFn, request: Request) -> tuple[TaskGroup, list[tuple[str, Request]]]:
    other = draw(requests())
    counts = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    children = tuple(
        TaskGroup(name, min_tasks=draw(st.integers(1, count)), topology=draw(rules()))
        for name, count in zip("ab", counts, strict=True)
    )
    tree = TaskGroup(children=children, min_groups=draw(some(None, None, 1)), topology=draw(rules()))
    return tree, [("a", request)] * counts[0] + [("b", other)] * counts[1]


def rules() -> st.SearchStrategy[TopologyRule | None]:
    kinds = [
        TopologyRule("fabric", required="zone"),
        TopologyRule("fabric", required="rack"),
        TopologyRule("fabric", required="zone", preferred="rack"),
        TopologyRule("fabric", preferred="rack"),
    ]
    return some(*[None] * 16, *kinds)


@st.composite
def jobs(draw: st.DrawFn, id: str, queues: list[str]) -> Job:
    """A job nobody has started yet."""
    tree, asked = draw(job_trees(draw(requests())))
    labels = draw(some((), (), (("app", "db"),)))
    tasks = tuple(Task(f"{id}-{index}", request, group, labels=labels) for index, (group, request) in enumerate(asked))
    if draw(rarely()):
        tasks = (replace(tasks[0], state=TaskState.GATED), *tasks[1:])
    return Job(
        id,
        draw(some(*queues * 8, "nowhere", NOBODY)),
        tasks,
        tree,
        priority=draw(some(50, 50, 50, 25, 100)),
        preemptible=draw(some(True, True, True, False)),
        submitted_at_ms=draw(st.integers(0, 5)),
        labels=draw(some((), (), (("app", "web"),))),
        spread=draw(rarely()),
    )


@st.composite
def started(draw: st.DrawFn, job: Job, machines: tuple[Node, ...], now: View, later: View) -> Job:
    """The job with some of its tasks where there is room for them; `now` and `later` learn what it holds."""
    state = draw(some(*STARTED_STATES))
    first = draw(st.integers(0, len(machines) - 1))
    # A promised place may still be in use; every other place must be free both now and later.
    views = (later,) if state is TaskState.PROMISED else (now, later)
    tasks = []
    for task in job.tasks:
        place = find_place(task.request, (*machines[first:], *machines[:first]), views)
        if task.state is TaskState.PENDING and place is not None and draw(rarely(False)):
            task = replace(task, state=state, node=place.node, shares=place.shares, started_at_ms=1)
            record(job.id, task, now, later)
        tasks.append(task)
    return replace(job, tasks=tuple(tasks))


def find_place(request: Request, machines: tuple[Node, ...], views: tuple[View, ...]) -> Held | None:
    for node in machines:
        shares = room(node, request, *(on_node(view, node.name) for view in views))
        if shares is not None:
            return Held("", "", request, node.name, shares)
    return None


def record(job: str, task: Task, now: View, later: View) -> None:
    held = Held(job, task.id, task.request, task.node, task.shares)
    if task.state in HELD_NOW:
        now[task.id] = held
    if task.state in HELD_LATER:
        later[task.id] = held


# ----------------------------------------------------------------------------------------------------- snapshots


@st.composite
def clusters(draw: st.DrawFn, max_jobs: int = 12) -> Snapshot:
    """A legal cluster with some jobs running, some ending and some waiting."""
    hardware, queues = draw(machines()), draw(queue_trees())
    now: View = {}
    later: View = {}
    drawn: list[Job] = []
    for number in range(draw(st.integers(1, max_jobs))):
        job = draw(jobs(f"j{number}", leaf_names(queues)))
        drawn.append(draw(started(job, hardware, now, later)) if draw(some(True, False, False)) else job)
    return Snapshot(hardware, queues, tuple(drawn), (FABRIC,), now_ms=draw(some(0, 60_000)))


@st.composite
def shuffled(draw: st.DrawFn, snapshot: Snapshot) -> Snapshot:
    """The same facts in another order; the tasks of a job keep theirs, because it means something."""
    return replace(
        snapshot,
        nodes=tuple(draw(st.permutations(snapshot.nodes))),
        queues=tuple(draw(st.permutations(snapshot.queues))),
        jobs=tuple(draw(st.permutations(snapshot.jobs))),
    )


# ------------------------------------------------------------------------------------------------------- changes


@st.composite
def histories(draw: st.DrawFn, snapshot: Snapshot, max_changes: int = 6) -> tuple[tuple[Change, ...], Snapshot]:
    """Some changes that may really follow one another, and the snapshot after them."""
    changes: list[Change] = []
    for number in range(draw(st.integers(1, max_changes))):
        change = draw(next_change(snapshot, number))
        changes.append(change)
        snapshot = follow(snapshot, change)
    return tuple(changes), snapshot


@st.composite
def next_change(draw: st.DrawFn, snapshot: Snapshot, number: int) -> Change:
    kinds = ["new job", "queues", "scope", "time", "usage", "new node", "node"] + ["job"] * 4 * bool(snapshot.jobs)
    match draw(some(*kinds)):
        case "new job":
            return JobSeen(draw(jobs(f"new{number}", leaf_names(snapshot.queues))))
        case "job":
            return draw(changed_job(snapshot))
        case "queues":
            return QueuesSet(draw(queue_trees()))
        case "scope":
            other = replace(draw(st.sampled_from(snapshot.queues)), affinity_scope=draw(some(None, *AffinityScope)))
            return QueuesSet(tuple(other if queue.name == other.name else queue for queue in snapshot.queues))
        case "usage":
            names = some(*(queue.name for queue in snapshot.queues))
            return UsageSet((QueueUsage(draw(names), GPU, draw(some(0, 100_000, 900_000))),))
        case "new node":
            return NodeSeen(draw(nodes(f"new{number}")))
        case "node":
            return draw(changed_node(snapshot))
    return TimePassed(snapshot.now_ms + 1000)


@st.composite
def changed_job(draw: st.DrawFn, snapshot: Snapshot) -> Change:
    """One job starts, ends, is gone, or is wanted more."""
    job = draw(st.sampled_from(snapshot.jobs))
    match draw(some("start", "start", "end", "back", "gone", "priority", "protected")):
        case "start":
            now, later = view(snapshot.jobs, HELD_NOW), view(snapshot.jobs, HELD_LATER)
            return JobSeen(draw(started(job, snapshot.nodes, now, later)) if snapshot.nodes else job)
        case "end":
            return JobSeen(with_states(job, TaskState.RUNNING, TaskState.FREEING))
        case "back":
            return JobSeen(sent_back(job))
        case "gone":
            return JobGone(job.id)
        case "protected":
            return JobSeen(replace(job, protected=not job.protected))
    return JobSeen(replace(job, priority=draw(some(10, 50, 90))))


@st.composite
def changed_node(draw: st.DrawFn, snapshot: Snapshot) -> Change:
    """One node closes, opens, loses a GPU, gets another label or taint, or leaves, whatever runs on it."""
    if not snapshot.nodes:
        return TimePassed(snapshot.now_ms + 1)
    node = draw(st.sampled_from(snapshot.nodes))
    match draw(some("cordon", "ready", "label", "taint", "sick", "one sick", "other", "size", "gone")):
        case "cordon":
            return NodeSeen(replace(node, cordoned=not node.cordoned))
        case "ready":
            return NodeSeen(replace(node, ready=not node.ready))
        case "label":
            return NodeSeen(
                replace(node, labels=dict(draw(some((), (("zone", "z1"),), (("zone", "z2"), ("rack", "r1"))))))
            )
        case "taint":
            return NodeSeen(replace(node, taints=draw(some((), *TAINTS))))
        case "other":
            return NodeSeen(replace(node, other=(("nic", 1),), max_tasks=draw(some(1, 110))))
        case "size":
            return NodeSeen(replace(node, cpu_milli=draw(some(1_000, 64_000)), devices=draw(device_sets())))
        case "one sick":
            devices = tuple(replace(d, healthy=d.healthy != (at == 0)) for at, d in enumerate(node.devices))
            return NodeSeen(replace(node, devices=devices))
        case "sick":
            return NodeSeen(replace(node, devices=tuple(replace(d, healthy=not d.healthy) for d in node.devices)))
    return NodeGone(node.name)


def with_states(job: Job, old: TaskState, new: TaskState) -> Job:
    tasks = tuple(replace(task, state=new) if task.state is old else task for task in job.tasks)
    return replace(job, tasks=tasks)


def sent_back(job: Job) -> Job:
    """Every task waits again."""
    tasks = tuple(replace(task, state=TaskState.PENDING, node="", shares=()) for task in job.tasks)
    return replace(job, tasks=tasks)
