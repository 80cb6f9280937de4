"""A second, simple bookkeeper: replays a plan on a snapshot and finds every step that books what is not there.

It shares nothing with the scheduler but the model's values, and recounts a node from the start at every question:
slow, and easy to see right. Two views are kept. *Now* holds what really lies on a device, with everything that is
still ending; *later* holds what will lie there once all that has gone, with everything that was promised. A task that
starts must fit in both, a promise only in the latter. An eviction frees a place later; a move frees one and takes
another, which must be free by then: an order of moves that overbooks a device on the way is an error.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpuyard.model.jobs import (
    DESPITE_CORDON,
    DeviceShare,
    Job,
    Request,
    Task,
    TaskGroup,
    TaskState,
    Toleration,
    Where,
)
from gpuyard.model.nodes import Device, Node, Taint, mig_slice_milli
from gpuyard.model.plan import Action, Bind, Evict, Move, Plan, Promise, Resize
from gpuyard.model.quantities import CPU, GPU, MEMORY, MILLI, gpu_model_resource
from gpuyard.model.snapshot import (
    Change,
    JobGone,
    JobSeen,
    MovesCounted,
    NodeGone,
    NodeSeen,
    QueuesSet,
    Snapshot,
    TimePassed,
    UsageSet,
)

HELD_NOW: Final = frozenset({TaskState.RUNNING, TaskState.FREEING, TaskState.STUCK})
HELD_LATER: Final = frozenset({TaskState.RUNNING, TaskState.STUCK, TaskState.PROMISED})
COUNTED: Final = frozenset({TaskState.RUNNING, TaskState.PROMISED})
"""What a gang counts as started or certain to start."""
HOSTNAME: Final = "hostname"


class OverbookedError(AssertionError):
    """A step of a plan that cannot be."""


class Held(NamedTuple):
    """One task and what it holds on one node."""

    job: str
    task: str
    request: Request
    node: str
    shares: tuple[DeviceShare, ...]


View = dict[str, Held]
"""By task."""


class Books:
    """Both views of a cluster, and the jobs as they would be after the steps taken so far."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.nodes = {node.name: node for node in snapshot.nodes}
        self.jobs = {job.id: job for job in snapshot.jobs}
        self.now = view(snapshot.jobs, HELD_NOW)
        self.later = view(snapshot.jobs, HELD_LATER)
        self._snapshot = snapshot

    def step(self, action: Action) -> None:
        """Take one action, or raise at what makes it impossible."""
        match action:
            case Bind():
                self._start(action, TaskState.RUNNING, (self.now, self.later))
            case Promise():
                self._start(action, TaskState.PROMISED, (self.later,))
            case Evict():
                self._leave(action.job, action.task, action.node)
            case Move():
                self._leave(action.job, action.task, action.source)
                self._restart(action)
            case Resize():
                self._resize(action)

    def snapshot(self) -> Snapshot:
        return replace(self._snapshot, jobs=tuple(self.jobs[job.id] for job in self._snapshot.jobs))

    def room(self, request: Request, node: str) -> tuple[DeviceShare, ...] | None:
        """A place for one more such task on a node, free now and promised to nobody; None where there is none."""
        return room(self.nodes[node], request, on_node(self.now, node), on_node(self.later, node))

    def _start(self, action: Bind | Promise, state: TaskState, views: tuple[View, ...]) -> None:
        task = self._task(action.job, action.task)
        if task.state is not TaskState.PENDING and not (task.state is TaskState.PROMISED and state is not task.state):
            raise OverbookedError(f"{action.task} is started although it is {task.state}")
        self._check_place(task.request, action.node, action.shares, action.task)
        self.later.pop(task.id, None)
        held = Held(action.job, action.task, task.request, action.node, action.shares)
        for books in views:
            books[task.id] = held
            complain(action.task, overbooked(self.nodes[action.node], on_node(books, action.node)))
        self._replace(action.job, replace(task, state=state, node=action.node, shares=action.shares))

    def _leave(self, job: str, task_id: str, node: str) -> None:
        task = self._task(job, task_id)
        if task.state is TaskState.PROMISED and task.node == node:
            # A promise that cannot be kept is taken back: nothing runs yet.
            self.later.pop(task_id, None)
            self._replace(job, replace(task, state=TaskState.PENDING, node="", shares=()))
            return
        if task.state is not TaskState.RUNNING or task.node != node:
            raise OverbookedError(f"{task_id} is stopped on {node}, but it is {task.state} on {task.node or 'no node'}")
        del self.later[task_id]
        self._replace(job, replace(task, state=TaskState.FREEING))

    def _restart(self, action: Move) -> None:
        task = self._task(action.job, action.task)
        self._check_place(task.request, action.node, action.shares, action.task)
        self.later[task.id] = Held(action.job, action.task, task.request, action.node, action.shares)
        complain(action.task, overbooked(self.nodes[action.node], on_node(self.later, action.node)))
        self._replace(action.job, replace(task, state=TaskState.PROMISED, node=action.node, shares=action.shares))

    def _resize(self, action: Resize) -> None:
        task = self._task(action.job, action.task)
        for books in (self.now, self.later):
            books[task.id] = books[task.id]._replace(shares=action.shares)
            complain(action.task, overbooked(self.nodes[task.node], on_node(books, task.node)))
        self._replace(action.job, replace(task, shares=action.shares))

    def _task(self, job: str, task: str) -> Task:
        if job not in self.jobs:
            raise OverbookedError(f"{task} belongs to {job}, which is not there")
        for candidate in self.jobs[job].tasks:
            if candidate.id == task:
                return candidate
        raise OverbookedError(f"{job} has no task {task}")

    def _replace(self, job: str, task: Task) -> None:
        tasks = tuple(task if old.id == task.id else old for old in self.jobs[job].tasks)
        self.jobs[job] = replace(self.jobs[job], tasks=tasks)

    def _check_place(self, request: Request, name: str, shares: tuple[DeviceShare, ...], task: str) -> None:
        if name not in self.nodes:
            raise OverbookedError(f"{task} is put on {name}, which is not there")
        node = self.nodes[name]
        complain(task, [*closed(node, request.where), *ill_shaped(request, node, shares)])


def replay(plan: Plan, snapshot: Snapshot) -> Books:
    """The books after every action of a plan; raises at the first that cannot be."""
    books = Books(snapshot)
    for action in plan.actions:
        books.step(action)
    return books


def replay_steps(plan: Plan, snapshot: Snapshot) -> Iterator[tuple[Books, Action]]:
    """Every action of a plan with the books as they are before it. The books change as the steps are taken."""
    books = Books(snapshot)
    for action in plan.actions:
        yield books, action
        books.step(action)


def view(jobs: Iterable[Job], states: frozenset[TaskState]) -> View:
    return {
        task.id: Held(job.id, task.id, task.request, task.node, task.shares)
        for job in jobs
        for task in job.tasks
        if task.state in states
    }


def on_node(books: View, node: str) -> list[Held]:
    return [held for held in books.values() if held.node == node]


def complain(task: str, problems: list[str]) -> None:
    if problems:
        raise OverbookedError(f"{task}: {'; '.join(problems)}")


# ---------------------------------------------------------------------------------------- what lies on one node


def overbooked(node: Node, held: list[Held]) -> list[str]:
    """Everything that is held beyond what a node has."""
    problems = [problem for index in range(len(node.devices)) for problem in device_overbooked(node, index, held)]
    if len(held) > node.max_tasks:
        problems.append(f"{node.name} takes {node.max_tasks} tasks, not {len(held)}")
    has = node_amounts(node)
    for resource, amount in sum((task_amounts(one.request) for one in held), Counter[str]()).items():
        if amount > has[resource]:
            problems.append(f"{node.name} has {has[resource]} of {resource}, not {amount}")
    return problems


def device_overbooked(node: Node, index: int, held: list[Held]) -> list[str]:
    """What is wrong with one device: too much compute, memory or slices, or company that must not be."""
    device, name = node.devices[index], f"device {index} of {node.name}"
    shares = [(one.request, share) for one in held for share in one.shares if share.device == index]
    slices = Counter(share.mig for _, share in shares if share.mig)
    parts = [(request, share) for request, share in shares if not share.mig]
    problems = [
        f"{name} has {slices_of(device)[profile]} of {profile}, not {count}"
        for profile, count in slices.items()
        if count > slices_of(device)[profile]
    ]
    if parts and device.mig:
        problems.append(f"{name} is cut into slices and not handed out otherwise")
    if sum(share.gpu_milli for _, share in parts) > MILLI:
        problems.append(f"{name} is booked beyond its compute")
    if sum(mib_of(request, device) for request, _ in parts) > device.memory_mib:
        problems.append(f"{name} is booked beyond its memory")
    if len(parts) > 1 and any(request.whole for request, _ in parts):
        problems.append(f"{name} is held whole and shared")
    if len({request.sharing for request, _ in parts}) > 1:
        problems.append(f"{name} is shared in two ways at once")
    return problems


def mib_of(request: Request, device: Device) -> int:
    """The memory a task holds of a device: what it asked for, or its share of all there is, rounded down."""
    return request.gpu_memory_mib or request.gpu_milli * device.memory_mib // MILLI


def slices_of(device: Device) -> Counter[str]:
    return Counter({slices.profile: slices.count for slices in device.mig})


def node_amounts(node: Node) -> Counter[str]:
    return Counter({CPU: node.cpu_milli, MEMORY: node.memory_bytes, **dict(node.other)})


def task_amounts(request: Request) -> Counter[str]:
    return Counter({CPU: request.cpu_milli, MEMORY: request.memory_bytes, **dict(request.other)})


# -------------------------------------------------------------------------------------- where a new task may go


def closed(node: Node, where: Where) -> list[str]:
    """Why a node takes no new task of this kind."""
    closed_to_it = not node.ready or (node.cordoned and DESPITE_CORDON not in where.tolerations)
    problems = [f"{node.name} is closed"] if closed_to_it else []
    for taint in node.taints:
        if not taint.soft and not any(tolerates(one, taint) for one in where.tolerations):
            problems.append(f"{node.name} is tainted {taint.key}")
    if where.any_of and not any(all(rule.accepts(node.labels) for rule in rules) for rules in where.any_of):
        problems.append(f"{node.name} is not what was asked for")
    return problems


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    same_key = toleration.key in ("", taint.key)
    return same_key and toleration.value in (None, taint.value) and toleration.effect in ("", taint.effect)


def usable(device: Device, request: Request) -> bool:
    """Whether a device would do for a request if nobody else were there."""
    if not device.healthy or (request.where.gpu_models and device.model not in request.where.gpu_models):
        return False
    if request.mig:
        return bool(device.mig)
    return not device.mig and (request.whole or device.shareable)


def ill_shaped(request: Request, node: Node, shares: tuple[DeviceShare, ...]) -> list[str]:
    """Whether a task was given anything but what it asked for."""
    problems = [
        f"device {share.device} of {node.name} will not do"
        for share in shares
        if share.device >= len(node.devices) or not usable(node.devices[share.device], request)
    ]
    if problems:
        return problems
    got, wanted = Counter(share.mig for share in shares if share.mig), Counter(dict(request.mig))
    if got != wanted:
        problems.append(f"it got the slices {dict(got)}, not {dict(wanted)}")
    parts = [share for share in shares if not share.mig]
    if len({share.device for share in parts}) != len(parts) or len(parts) != request.devices:
        problems.append(f"it got devices {[share.device for share in parts]}, not {request.devices} different ones")
    for share in parts:
        expected = DeviceShare(share.device, request.gpu_milli, mib_of(request, node.devices[share.device]))
        if share != expected:
            problems.append(f"it got {share}, not {expected}")
    return problems


def room(node: Node, request: Request, *views: list[Held]) -> tuple[DeviceShare, ...] | None:
    """The first place on a node that a request fits, beside what each of these views holds there."""
    if closed(node, request.where):
        return None
    shares = slice_room(node, request, *views) if request.mig else part_room(node, request, *views)
    if shares is None:
        return None
    new = Held("", "", request, node.name, shares)
    return shares if all(not overbooked(node, [*held, new]) for held in views) else None


def part_room(node: Node, request: Request, *views: list[Held]) -> tuple[DeviceShare, ...] | None:
    shares = []
    for index, device in enumerate(node.devices):
        share = DeviceShare(index, request.gpu_milli, mib_of(request, device))
        new = Held("", "", request, node.name, (share,))
        if usable(device, request) and all(not device_overbooked(node, index, [*held, new]) for held in views):
            shares.append(share)
    return tuple(shares[: request.devices]) if len(shares) >= request.devices else None


def slice_room(node: Node, request: Request, *views: list[Held]) -> tuple[DeviceShare, ...] | None:
    shares: list[DeviceShare] = []
    for profile, count in request.mig:
        free = [
            DeviceShare(index, mig_slice_milli(profile), 0, profile)
            for index, device in enumerate(node.devices)
            if usable(device, request)
            for _ in range(min(slices_of(device)[profile] - taken(held, index, profile) for held in views))
        ]
        if len(free) < count:
            return None
        shares += free[:count]
    return tuple(shares)


def taken(held: list[Held], index: int, profile: str) -> int:
    return sum(share.device == index and share.mig == profile for one in held for share in one.shares)


# ------------------------------------------------------------------------------------------------ gangs and queues


def satisfied(group: TaskGroup, started: Mapping[str, int]) -> bool:
    """Whether a group has its minimum, given how many tasks of each leaf count."""
    if group.leaf:
        return started.get(group.name, 0) >= group.min_tasks
    needed = len(group.children) if group.min_groups is None else group.min_groups
    return sum(satisfied(child, started) for child in group.children) >= needed


def leaves(group: TaskGroup) -> Iterator[TaskGroup]:
    if group.leaf:
        yield group
    for child in group.children:
        yield from leaves(child)


def subgroups(group: TaskGroup) -> Iterator[TaskGroup]:
    yield group
    for child in group.children:
        yield from subgroups(child)


def tasks_by_leaf(job: Job, counts: Callable[[Task], bool]) -> Counter[str]:
    return Counter(task.group for task in job.tasks if counts(task))


def charge(request: Request, shares: tuple[DeviceShare, ...], node: Node | None) -> Counter[str]:
    """What a placed task counts against its queue; memory counts by the device it lies on, rounded up."""
    amounts = task_amounts(request)
    for share in shares:
        device = node.devices[share.device] if node and share.device < len(node.devices) else None
        counted = share_milli(request, share, device)
        amounts[GPU] += counted
        if device:
            amounts[gpu_model_resource(device.model)] += counted
    return +amounts


def share_milli(request: Request, share: DeviceShare, device: Device | None) -> int:
    if share.mig:
        return mig_slice_milli(share.mig)
    if request.gpu_memory_mib and device and device.memory_mib:
        return -(-MILLI * request.gpu_memory_mib // device.memory_mib)
    return share.gpu_milli


def path(snapshot: Snapshot, queue: str) -> list[str]:
    """A queue and its ancestors."""
    parents = {one.name: one.parent for one in snapshot.queues}
    names: list[str] = []
    name: str | None = queue
    while name in parents and name not in names:
        assert name is not None
        names.append(name)
        name = parents[name]
    return names


def counted(_: Job, task: Task) -> bool:
    return task.state in COUNTED


def counted_firm(job: Job, task: Task) -> bool:
    """What counts and may not be preempted."""
    return task.state in COUNTED and not job.preemptible


def queue_charges(snapshot: Snapshot, counts: Callable[[Job, Task], bool]) -> dict[str, Counter[str]]:
    """What each queue holds, its descendants included, counting only some tasks."""
    nodes = {node.name: node for node in snapshot.nodes}
    charges: dict[str, Counter[str]] = defaultdict(Counter)
    for job in snapshot.jobs:
        for task in job.tasks:
            if counts(job, task):
                amounts = charge(task.request, task.shares, nodes.get(task.node))
                for queue in path(snapshot, job.queue):
                    charges[queue].update(amounts)
    return charges


# ------------------------------------------------------------------------------------------------------- changes


def after(plan: Plan, snapshot: Snapshot, keeps_promises: bool, passed_ms: int = 1000) -> Snapshot:
    """The cluster a moment after a plan was carried out: who was started or moved runs, who was evicted waits again.

    A task that was promised a place keeps the promise or goes back to wait, as a world may do either.
    """
    jobs = replay(plan, snapshot).jobs
    moved = {action.task for action in plan.actions if isinstance(action, Move)}
    evicted = {action.task for action in plan.actions if isinstance(action, Evict)}
    now_ms = snapshot.now_ms + passed_ms
    played = []
    for old in snapshot.jobs:
        tasks = []
        for before, task in zip(old.tasks, jobs[old.id].tasks, strict=True):
            waits = replace(task, state=TaskState.PENDING, node="", shares=(), started_at_ms=0)
            if task.id in evicted:
                task = waits
            elif task.id in moved or (task.state is TaskState.RUNNING and before.state is not TaskState.RUNNING):
                task = replace(task, state=TaskState.RUNNING, started_at_ms=now_ms)
            elif task.state is TaskState.FREEING:
                task = replace(task, state=TaskState.SUCCEEDED, node="", shares=())
            elif task.state is TaskState.PROMISED and not keeps_promises:
                task = waits
            tasks.append(task)
        stopped = any(task.id in evicted for task in tasks)
        played.append(
            replace(old, tasks=tuple(tasks), last_evicted_at_ms=snapshot.now_ms if stopped else old.last_evicted_at_ms)
        )
    return replace(snapshot, jobs=tuple(played), now_ms=now_ms)


def follow(snapshot: Snapshot, change: Change) -> Snapshot:
    """The snapshot after one change."""
    match change:
        case NodeSeen(node):
            others = tuple(old for old in snapshot.nodes if old.name != node.name)
            return replace(snapshot, nodes=(*others, node))
        case NodeGone(name):
            return replace(snapshot, nodes=tuple(node for node in snapshot.nodes if node.name != name))
        case JobSeen(job):
            kept = tuple(old for old in snapshot.jobs if old.id != job.id)
            return replace(snapshot, jobs=(*kept, job))
        case JobGone(id):
            return replace(snapshot, jobs=tuple(job for job in snapshot.jobs if job.id != id))
        case QueuesSet(queues):
            return replace(snapshot, queues=queues)
        case UsageSet(usage):
            return replace(snapshot, usage=usage)
        case TimePassed(now_ms):
            return replace(snapshot, now_ms=now_ms)
        case MovesCounted(moves):
            return replace(snapshot, moves_last_hour=moves)
