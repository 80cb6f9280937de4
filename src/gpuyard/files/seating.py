"""Gives running tasks of a file their nodes and devices.

Place in the flow: jobs ─pending Job, `on`, `devices_on`─▶ **seating** ─running Job─▶ cluster. What a file leaves open
is filled in the same way every time: nodes in file order, the lowest free GPUs, parts on the fullest GPU that fits.
Invariant: no device or node is booked beyond its capacity; whoever would do so is told who holds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from gpuyard.errors import InputError
from gpuyard.files.format import RunningJobSpec
from gpuyard.files.jobs import moment
from gpuyard.files.place import Place
from gpuyard.model.jobs import DeviceShare, Job, Request, Task, TaskState
from gpuyard.model.nodes import Device, Node
from gpuyard.model.quantities import CPU, GPU, MEMORY, MILLI, format_amount
from gpuyard.model.text import amount_text
from gpuyard.policies.policy import DevicePlacement
from gpuyard.scheduler.devices import choose
from gpuyard.scheduler.eligibility import may_use
from gpuyard.scheduler.nodestate import NodeFrame, NodeState
from gpuyard.scheduler.resources import GPU_AT, Resources

MAX_HOLDERS_SHOWN: Final = 5


class Seat(msgspec.Struct, frozen=True):
    """Where one task is said to be; what is empty is chosen."""

    node: str = ""
    devices: tuple[int, ...] | None = None

    @property
    def openness(self) -> int:
        """The more a file says, the earlier the task is seated, so that no choice of ours takes a place it names."""
        return 0 if self.devices is not None else 1 if self.node else 2


class Shortage(msgspec.Struct, frozen=True):
    """Why a task does not fit on a node."""

    resource: str
    what: str


class Desk:
    """One node while running tasks are put on it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        # A cordoned node keeps what runs on it.
        self.uncordoned = replace(node, cordoned=False)
        # What runs on a GPU that has since failed stays in the books, and links do not matter for what already runs.
        self.frame = NodeFrame(replace(node, devices=tuple(_plain_device(device) for device in node.devices)))
        self.state = NodeState.empty(self.frame)
        self.healthy = sum(1 << index for index, device in enumerate(node.devices) if device.healthy)
        self.holders: list[tuple[str, Request, tuple[DeviceShare, ...]]] = []

    def shares(self, request: Request, devices: tuple[int, ...] | None) -> tuple[DeviceShare, ...] | None:
        """What a task would hold here; None where it does not fit."""
        allowed = self.healthy if devices is None else sum(1 << index for index in devices)
        if self._short_of(request):
            return None
        return choose(request, self.frame, (self.state,), allowed & self._mask_of_models(request), DevicePlacement.PACK)

    def seat(self, job: str, request: Request, shares: tuple[DeviceShare, ...]) -> None:
        self.state = self.state.less(request, shares, self.frame)
        self.holders.append((job, request, shares))

    def takes(self, request: Request) -> bool:
        """Whether a task whose file names no node may be put here."""
        return may_use(self.uncordoned, request.where)

    def shortage(self, request: Request) -> Shortage:
        """Why a task does not fit, with numbers."""
        return self._short_of(request) or Shortage(GPU, self._short_of_gpus(request))

    def _short_of(self, request: Request) -> Shortage | None:
        """What besides GPUs is short, if anything."""
        state = self.state
        asked = [(CPU, request.cpu_milli, state.cpu_milli), (MEMORY, request.memory_bytes, state.memory_bytes)]
        asked += [(name, amount, state.other.get(name, 0)) for name, amount in request.other]
        for resource, need, have in asked:
            if need > have:
                return Shortage(resource, _lacking(amount_text(resource, need), format_amount(resource, have)))
        if state.slots > 0:
            return None
        return Shortage("", f"the number of tasks it takes at once is {self.node.max_tasks}")

    def _short_of_gpus(self, request: Request) -> str:
        if request.mig:
            slices = ", ".join(f"{count} x {profile}" for profile, count in request.mig)
            free = ", ".join(f"{self.state.free_slices(profile)} x {profile}" for profile, _ in request.mig)
            return _lacking(slices, free)
        if request.whole:
            free_devices = (self.state.free & self.healthy & self._mask_of_models(request)).bit_count()
            return _lacking(amount_text(GPU, request.devices * MILLI), str(free_devices))
        times = f" on each of {request.devices} GPUs" if request.devices > 1 else ""
        return (
            f"it asks for {part_text(request)}{times}, and not enough GPUs have that left for {request.sharing} tasks"
        )

    def trouble(self, request: Request, device: int) -> str:
        """Why one device cannot be held by a task; empty where it can."""
        part = self.state.parts.get(device)
        if self.node.devices[device].mig:
            return "is cut into MIG slices"
        if part is None:
            return "" if self.state.free >> device & 1 else "is taken"
        if part.sharing is not request.sharing:
            return f"is shared by {part.sharing} tasks"
        left = f"{part.memory_mib} MiB" if request.gpu_memory_mib else format_amount(GPU, part.milli)
        return f"has {left} left, and the task asks for {part_text(request)}"

    def held_by(self, resource: str, devices: tuple[int, ...] = ()) -> str:
        """`held by big (6 GPUs), small (0.5 GPU)`: who has a resource of this node, or these devices of it."""
        held: dict[str, int] = {}
        for job, request, shares in self.holders:
            amount = self._held(resource, request, [s for s in shares if not devices or s.device in devices])
            if amount:
                held[job] = held.get(job, 0) + amount
        shown = [_holder(job, resource, amount) for job, amount in list(held.items())[:MAX_HOLDERS_SHOWN]]
        more = f" and {len(held) - MAX_HOLDERS_SHOWN} more" if len(held) > MAX_HOLDERS_SHOWN else ""
        return f"held there by {', '.join(shown)}{more}" if shown else "nobody else holds any there"

    def _held(self, resource: str, request: Request, shares: list[DeviceShare]) -> int:
        """What one task has of a resource; '' counts tasks."""
        if resource == GPU:
            return Resources((), (self.node,)).of_task(request, shares, self.node)[GPU_AT]
        named = {"": 1, CPU: request.cpu_milli, MEMORY: request.memory_bytes, **dict(request.other)}
        return named.get(resource, 0)

    def _mask_of_models(self, request: Request) -> int:
        models = request.where.gpu_models
        devices = enumerate(self.node.devices)
        return sum(1 << index for index, device in devices if not models or device.model in models)


def part_text(request: Request) -> str:
    return f"{request.gpu_memory_mib} MiB" if request.gpu_memory_mib else amount_text(GPU, request.gpu_milli)


def _lacking(asked: str, free: str) -> str:
    return f"it asks for {asked}, free: {free}"


def _holder(job: str, resource: str, amount: int) -> str:
    if not resource:
        return f"{job} ({amount} {'task' if amount == 1 else 'tasks'})"
    return f"{job} ({amount_text(resource, amount)})"


def _plain_device(device: Device) -> Device:
    return replace(device, healthy=True, nvlink=0, numa=0)


def seat_running(
    jobs: list[Job], specs: list[tuple[RunningJobSpec, Place]], nodes: tuple[Node, ...]
) -> tuple[Job, ...]:
    """The same jobs with their tasks in their places."""
    desks = {node.name: Desk(node) for node in nodes}
    waiting = [
        (job, index, seat, place)
        for job, (spec, place) in zip(jobs, specs, strict=True)
        for index, seat in enumerate(_seats(job, spec, place, desks))
    ]
    waiting.sort(key=lambda entry: entry[2].openness)
    first_fit = FirstFit(desks)
    seated: dict[str, Task] = {}
    for job, index, seat, place in waiting:
        task = job.tasks[index]
        node, shares = _seated(job.id, task.request, seat, place, desks, first_fit)
        seated[task.id] = replace(task, node=node, shares=shares)
    return tuple(_started(job, spec, place, seated) for job, (spec, place) in zip(jobs, specs, strict=True))


def _started(job: Job, spec: RunningJobSpec, place: Place, seated: dict[str, Task]) -> Job:
    state = TaskState.FREEING if spec.freeing else TaskState.RUNNING
    started = moment(spec.started, place.at("started"))
    at = job.submitted_at_ms if started is None else started
    tasks = [
        replace(seated[task.id], state=state, started_at_ms=at) if task.id in seated else task for task in job.tasks
    ]
    # A file may say when a job started and not when it was submitted; the latter cannot be later.
    return replace(job, tasks=tuple(tasks), submitted_at_ms=min(job.submitted_at_ms, at))


class FirstFit:
    """How many nodes, from the first on, have no room for a request: nodes only fill up, so none is asked twice."""

    def __init__(self, desks: dict[str, Desk]) -> None:
        self._desks = list(desks.values())
        self._full: dict[Request, int] = {}

    def desk(self, request: Request) -> tuple[Desk, tuple[DeviceShare, ...]] | None:
        """The first node with room for a task, and what the task would hold there."""
        for at in range(self._full.get(request, 0), len(self._desks)):
            desk = self._desks[at]
            shares = desk.shares(request, None) if desk.takes(request) else None
            if shares is not None:
                return desk, shares
            self._full[request] = at + 1
        return None


def _seated(
    job: str, request: Request, seat: Seat, place: Place, desks: dict[str, Desk], first_fit: FirstFit
) -> tuple[str, tuple[DeviceShare, ...]]:
    if seat.node:
        desk = desks[seat.node]
        shares = desk.shares(request, seat.devices)
        if shares is None:
            raise _does_not_fit(job, request, seat, place, desk)
        desk.seat(job, request, shares)
        return seat.node, shares
    found = first_fit.desk(request)
    if found is not None:
        desk, shares = found
        desk.seat(job, request, shares)
        return desk.node.name, shares
    raise place.error(
        f'job "{job}" is said to run, but it fits on no node', "say `on` which node it runs, or list it under pending"
    )


def _does_not_fit(job: str, request: Request, seat: Seat, place: Place, desk: Desk) -> InputError:
    for device in seat.devices or ():
        trouble = desk.trouble(request, device)
        if trouble:
            what = f'job "{job}" cannot hold GPU {device} of {seat.node}: it {trouble}'
            return place.at("devices_on").error(what, desk.held_by(GPU, (device,)))
    shortage = desk.shortage(request)
    what = f'job "{job}" does not fit on {seat.node}: {shortage.what}'
    return place.at("on").error(what, desk.held_by(shortage.resource))


# -------------------------------------------------------------------------------------------------------- what is said


def _seats(job: Job, spec: RunningJobSpec, place: Place, desks: dict[str, Desk]) -> list[Seat]:
    """One seat per task that runs; tasks beyond a list or map of nodes wait."""
    nodes = list(_nodes(job, spec, place, desks))
    if job.group.node_each:
        _check_shape(job, nodes, place)
    devices = _devices(job, spec, place, len(nodes))
    return [
        Seat(node, _checked(chosen, job, index, node, place, desks))
        for index, (node, chosen) in enumerate(zip(nodes, devices, strict=True))
    ]


def _nodes(job: Job, spec: RunningJobSpec, place: Place, desks: dict[str, Desk]) -> Iterator[str]:
    here = place.at("on")
    match spec.on:
        case None:
            yield from [""] * len(job.tasks)
        case str(name):
            yield from [_known(name, here, desks)] * len(job.tasks)
        case list(names):
            _refuse_more(len(names), job, here)
            yield from (_known(name, here.at(index), desks) for index, name in enumerate(names))
        case counts:
            _refuse_more(sum(counts.values()), job, here)
            for name, count in counts.items():
                yield from [_known(name, here.at(name), desks)] * count


def _check_shape(job: Job, nodes: list[str], place: Place) -> None:
    """A job that lies on nodes with so many tasks on each: as many for each node that runs, and no node twice."""
    places = {task.id: node for task, node in zip(job.tasks, nodes, strict=False)}
    counts = Counter((task.group, places[task.id]) for task in job.tasks if task.id in places)
    each = job.group.children[0].min_tasks
    apart = len({node for _, node in counts}) == len(counts)
    if "" in nodes or not apart or any(count != each for count in counts.values()):
        what = f'job "{job.id}" has {each} task{"" if each == 1 else "s"} on each of {len(job.group.children)} nodes'
        raise place.at("on").error(what, f"say `on` which: {{node-1: {each}, node-2: {each}}}")


def _refuse_more(count: int, job: Job, place: Place) -> None:
    if count > len(job.tasks):
        what = f'job "{job.id}" has fewer tasks ({len(job.tasks)}) than places ({count})'
        raise place.error(what, "give one place per task")


def _known(name: str, place: Place, desks: dict[str, Desk]) -> str:
    if name not in desks:
        shown = ", ".join(list(desks)[:10])
        raise place.error(f'there is no node "{name}"', f"nodes: {shown}{', ...' if len(desks) > 10 else ''}")
    return name


def _devices(job: Job, spec: RunningJobSpec, place: Place, running: int) -> list[tuple[int, ...] | None]:
    here = place.at("devices_on")
    if spec.devices_on is None:
        return [None] * running
    lists = [entry for entry in spec.devices_on if isinstance(entry, list)]
    if lists and len(lists) != len(spec.devices_on):
        raise here.error("devices_on mixes numbers and lists", "write [0, 1] for one task, [[0], [1]] for several")
    per_task = lists or [[entry for entry in spec.devices_on if isinstance(entry, int)]]
    if len(per_task) != running:
        what = f"the number of lists in devices_on is {len(per_task)}, of running tasks {running}"
        raise here.error(what, "write one list per running task")
    return [tuple(indices) for indices in per_task]


def _checked(
    devices: tuple[int, ...] | None, job: Job, index: int, node: str, place: Place, desks: dict[str, Desk]
) -> tuple[int, ...] | None:
    """Devices that exist, no two the same, as many as the task asks for."""
    if devices is None:
        return None
    here = place.at("devices_on")
    request = job.tasks[index].request
    if not node:
        raise here.error("devices_on needs `on`", "say on which node these GPUs are")
    if request.mig:
        raise here.error("devices_on does not choose MIG slices", "leave it out")
    count = len(desks[node].node.devices)
    for device in devices:
        if device >= count:
            raise here.error(f"{node} has no GPU {device}: it has {count}", "GPUs are counted from 0")
    if len(set(devices)) != len(devices) or len(devices) != request.devices:
        what = f"the task asks for {amount_text(GPU, request.devices * MILLI)}, listed: {len(set(devices))}"
        raise here.error(what, "list each GPU it holds once")
    return devices
