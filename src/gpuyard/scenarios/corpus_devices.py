"""Which devices the tasks of a situation hold.

The files name *groups*: tasks on a node that name the same group share one device. Whole GPUs mostly have no group.
Here every group becomes a device index, and what has no group gets the lowest devices no group uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from gpuyard.model.jobs import DeviceShare, Job, Task, TaskState
from gpuyard.model.nodes import Node
from gpuyard.model.quantities import MILLI
from gpuyard.scenarios.corpus_format import InputEntry


def with_devices(jobs: Sequence[Job], nodes: Sequence[Node], situation: InputEntry) -> tuple[Job, ...]:
    """The same jobs, their placed tasks holding devices."""
    groups = {task.name: task.gpu_groups for job in situation.jobs for task in job.tasks}
    held: dict[str, tuple[DeviceShare, ...]] = {}
    for node in nodes:
        placed = [task for job in jobs for task in job.tasks if task.node == node.name]
        held |= _held_on(node, placed, groups)
    return tuple(
        replace(job, tasks=tuple(replace(task, shares=held.get(task.id, ())) for task in job.tasks)) for job in jobs
    )


def _held_on(
    node: Node, placed: Sequence[Task], groups: dict[str, tuple[str, ...]]
) -> dict[str, tuple[DeviceShare, ...]]:
    sheet = _Sheet(node, _group_devices(node, [name for task in placed for name in _groups_of(task, groups)]))
    # What still waits for its place comes last: it may lie on what is being freed.
    for task in sorted(placed, key=lambda task: (task.state is TaskState.PROMISED, not _groups_of(task, groups))):
        sheet.place(task, _groups_of(task, groups))
    return sheet.held


def _groups_of(task: Task, groups: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """A group means nothing to a task that asks for no GPU."""
    return groups[task.id] if task.request.devices else ()


def _group_devices(node: Node, names: Sequence[str]) -> dict[str, int]:
    """Numbers are indices where the node has them; every other name gets the next device that is left."""
    whole = [index for index, device in enumerate(node.devices) if not device.mig]
    by_name = {name: int(name) for name in names if name.isdigit() and int(name) in whole}
    left = (index for index in whole if index not in by_name.values())
    for name in dict.fromkeys(names):
        if name not in by_name:
            by_name[name] = next(left, whole[-1] if whole else 0)
    return by_name


class _Sheet:
    """One node while its devices are being assigned: what is left of each now, and once all that ends has ended."""

    def __init__(self, node: Node, by_group: dict[str, int]) -> None:
        self.node = node
        self.by_group = by_group
        self.now = {index: MILLI for index, device in enumerate(node.devices) if not device.mig}
        self.later = dict(self.now)
        self.held: dict[str, tuple[DeviceShare, ...]] = {}

    def place(self, task: Task, groups: Sequence[str]) -> None:
        chosen = [self.by_group[name] for name in groups][: task.request.devices]
        chosen += self._lowest(task, task.request.devices - len(chosen), chosen)
        for room in self._rooms(task):
            for device in chosen:
                room[device] -= self._weight(task, device)
        self.held[task.id] = (*(self._share(task, device) for device in chosen), *self._slices(task))

    def _rooms(self, task: Task) -> tuple[dict[int, int], ...]:
        if task.state is TaskState.FREEING:
            return (self.now,)
        return (self.later,) if task.state is TaskState.PROMISED else (self.now, self.later)

    def _lowest(self, task: Task, count: int, taken: Sequence[int]) -> list[int]:
        """The lowest devices with room; whole GPUs stay off the devices of groups while they can."""
        room = self._rooms(task)[0]
        free = [device for device in room if device not in taken and room[device] >= self._weight(task, device)]
        if task.request.whole:
            free = [device for device in free if device not in self.by_group.values()] or free
        return free[:count]

    def _weight(self, task: Task, device: int) -> int:
        memory_mib = self.node.devices[device].memory_mib
        if task.request.gpu_memory_mib and memory_mib:
            return -(-MILLI * task.request.gpu_memory_mib // memory_mib)
        return task.request.gpu_milli

    def _share(self, task: Task, device: int) -> DeviceShare:
        if task.request.gpu_memory_mib:
            return DeviceShare(device, 0, task.request.gpu_memory_mib)
        memory_mib = self.node.devices[device].memory_mib * task.request.gpu_milli // MILLI
        return DeviceShare(device, task.request.gpu_milli, memory_mib)

    def _slices(self, task: Task) -> Iterator[DeviceShare]:
        sliced = next((index for index, device in enumerate(self.node.devices) if device.mig), None)
        if sliced is None:
            return
        for profile, count in task.request.mig:
            yield from [DeviceShare(sliced, 0, 0, profile)] * count
