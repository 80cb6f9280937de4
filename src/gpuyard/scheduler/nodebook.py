"""All nodes: what is free on each now, and what will be once everything that is ending has ended.

Place in the flow: built by the ledger, forked by a draft. Nodes are kept sorted by name, so the first of equals is
the one whose name comes first. `now` is the state of every node; `later` exists only for nodes where something is
being freed or promised. Invariant: a task is bound only where it fits both now and later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import overload

from gpuyard.model.jobs import DeviceShare, Job, Request, Task, TaskState
from gpuyard.model.nodes import Node
from gpuyard.model.quantities import MILLI
from gpuyard.scheduler.columns import Columns
from gpuyard.scheduler.devices import lowest_devices
from gpuyard.scheduler.eligibility import is_open_to
from gpuyard.scheduler.nodestate import Booked, NodeFrame, NodeState

Undo = tuple[int, NodeState, NodeState | None]
"""A node and its two states before a change."""


class NodeBook:
    """The states of all nodes."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.frames = [NodeFrame(node) for node in sorted(nodes, key=lambda node: node.name)]
        self.at = {frame.node.name: position for position, frame in enumerate(self.frames)}
        self.now: list[NodeState] = []
        """Filled by `load_all` once the tasks are known."""
        self.later: dict[int, NodeState] = {}
        self.tasks_on: list[list[tuple[Task, Job]]] = [[] for _ in self.frames]
        self.assigned: dict[tuple[str, str], tuple[DeviceShare, ...]] = {}
        """Devices booked for tasks whose world does not say which they hold."""
        self._sound: dict[int, bool] = {}
        self._broken: set[tuple[str, str]] = set()
        """Promised places that cannot come free: their node is closed, or somebody who stays holds them."""
        self.columns = Columns(self.frames, self.now)
        self._later_columns: Columns | None = None

    def fork(self) -> NodeBook:
        """A copy that can change apart. States are shared: they are replaced, never changed."""
        copy = NodeBook.__new__(NodeBook)
        copy.frames, copy.at, copy.tasks_on = self.frames, self.at, self.tasks_on
        copy.assigned, copy._sound, copy._broken = self.assigned, self._sound, self._broken
        copy.now = self.now.copy()
        copy.later = self.later.copy()
        copy.columns = self.columns.fork(copy.now)
        copy._later_columns = None
        return copy

    def fork_with_tasks(self) -> NodeBook:
        """A copy on which tasks may also come and go."""
        copy = self.fork()
        copy.tasks_on = [tasks.copy() for tasks in self.tasks_on]
        copy.assigned, copy._sound, copy._broken = self.assigned.copy(), self._sound.copy(), self._broken.copy()
        return copy

    def reframe(self, frame: NodeFrame, position: int) -> None:
        """Another node in the place of one of the same name; what is on it must be booked anew."""
        self.frames = self.frames.copy()
        self.frames[position] = frame
        self.columns.reframe(self.frames)

    def later_columns(self) -> Columns:
        """Columns of every node as it will be once what is ending has ended; made when first asked for."""
        if self._later_columns is None:
            self._later_columns = self.columns.beside(_LaterStates(self), self.later)
        return self._later_columns

    def load_all(self) -> None:
        """Book everything that is on any node, for the first time."""
        self.now.extend([NodeState.empty(frame) for frame in self.frames])
        for position, tasks in enumerate(self.tasks_on):
            if tasks:
                self._load_node(position, self.now[position])

    def load(self, touched: Iterable[int]) -> None:
        """Book anew everything that is on the given nodes."""
        for position in touched:
            self._sound.pop(position, None)
            self._load_node(position, NodeState.empty(self.frames[position]))
            self.columns.journal.append(position)

    def bind(self, position: int, request: Request, shares: Sequence[DeviceShare]) -> Undo:
        """Take a place now (and so also later)."""
        undo = position, self.now[position], self.later.get(position)
        frame = self.frames[position]
        self.now[position] = undo[1].less(request, shares, frame)
        if undo[2] is not None:
            self.later[position] = undo[2].less(request, shares, frame)
        self.columns.journal.append(position)
        return undo

    def promise(self, position: int, request: Request, shares: Sequence[DeviceShare]) -> Undo:
        """Take a place as it will be once what is ending there has ended."""
        undo = position, self.now[position], self.later.get(position)
        before = undo[2] if undo[2] is not None else undo[1]
        self.later[position] = before.less(request, shares, self.frames[position])
        self.columns.journal.append(position)
        return undo

    def evict(self, position: int, tasks: Iterable[Booked]) -> Undo:
        """Count on places that are held now being free later."""
        undo = position, self.now[position], self.later.get(position)
        before = undo[2] if undo[2] is not None else undo[1]
        self.later[position] = before.without(tasks, self.frames[position])
        self.columns.journal.append(position)
        return undo

    def put(self, position: int, state: NodeState) -> None:
        """Say what is free on a node, whatever is booked: for books of a moment to come."""
        self.now[position] = state
        self.columns.journal.append(position)

    def unbind(self, position: int, request: Request, shares: Sequence[DeviceShare]) -> Undo:
        """Free now a place that was taken in vain; later it is free already."""
        undo = position, self.now[position], self.later.get(position)
        self.now[position] = undo[1].plus(request, shares, self.frames[position])
        self.columns.journal.append(position)
        return undo

    def start(self, position: int, request: Request, shares: Sequence[DeviceShare]) -> Undo:
        """Take now a place that was promised before: later it is taken already."""
        undo = position, self.now[position], self.later.get(position)
        self.now[position] = undo[1].less(request, shares, self.frames[position])
        self.columns.journal.append(position)
        return undo

    def held(self, job: Job, task: Task) -> tuple[DeviceShare, ...]:
        """The devices a placed task holds, as they are booked."""
        if task.shares or not _has_devices(task.request):
            return task.shares
        return self.assigned.get((job.id, task.id), ())

    def is_broken(self, job: Job, task: Task) -> bool:
        """Whether a promise can no longer be kept."""
        return task.node not in self.at or (job.id, task.id) in self._broken

    def sound(self, position: int) -> bool:
        """Whether no device of a node is held twice. Where a world reports that, taking one task off frees nothing."""
        known = self._sound.get(position)
        if known is None:
            known = self._sound[position] = self._is_sound(position)
        return known

    def _is_sound(self, position: int) -> bool:
        if self._all_on_different_devices(position):
            return True
        whole = parts = 0
        for task, job in self.tasks_on[position]:
            if task.state is TaskState.PROMISED:
                continue
            for share in task.shares or self.held(job, task):
                bit = 0 if share.mig else 1 << share.device
                if share.gpu_milli == MILLI:
                    if (whole | parts) & bit:
                        return False
                    whole |= bit
                elif whole & bit:
                    return False
                else:
                    parts |= bit
        return True

    def _all_on_different_devices(self, position: int) -> bool:
        """The quick look, which is enough for most nodes."""
        seen = count = 0
        for task, _ in self.tasks_on[position]:
            if not task.shares and _has_devices(task.request):
                return False
            for share in task.shares:
                seen |= 1 << share.device
                count += 1
        return seen.bit_count() == count

    def undo(self, change: Undo) -> None:
        position, now, later = change
        self.now[position] = now
        if later is None:
            self.later.pop(position, None)
        else:
            self.later[position] = later
        self.columns.journal.append(position)

    def facts(self) -> tuple[object, ...]:
        return tuple(
            (frame.node.name, self.now[i].facts(), self.later[i].facts() if i in self.later else None)
            for i, frame in enumerate(self.frames)
        )

    def _load_node(self, position: int, state: NodeState) -> None:
        """Book the tasks of a node on its empty state."""
        frame = self.frames[position]
        tasks = self.tasks_on[position]
        transient = False
        nameless: list[tuple[str, Task]] = []
        for task, job in tasks:
            if task.state is not TaskState.RUNNING and task.state is not TaskState.STUCK:
                transient = True
                if task.state is TaskState.PROMISED:
                    continue
            if not task.shares and _has_devices(task.request):
                nameless.append((job.id, task))
                continue
            state.add(task.request, task.shares, frame)
        for job_id, task in sorted(nameless, key=lambda entry: (entry[0], entry[1].id)):
            shares = self.assigned[job_id, task.id] = lowest_devices(state, frame, task.request)
            state.add(task.request, shares, frame)
        self.now[position] = state
        if transient:
            self.later[position] = self._later_state(frame, tasks)
        else:
            self.later.pop(position, None)

    def _later_state(self, frame: NodeFrame, tasks: list[tuple[Task, Job]]) -> NodeState:
        state = NodeState.empty(frame)
        staying = [entry for entry in tasks if entry[0].state is not TaskState.FREEING]
        promised = TaskState.PROMISED
        for task, job in sorted(staying, key=lambda entry: (entry[0].state is promised, entry[1].id, entry[0].id)):
            if task.state is promised and not task.shares and _has_devices(task.request):
                self.assigned[job.id, task.id] = lowest_devices(state, frame, task.request)
            if task.state is not promised or self._can_be_kept(frame, state, job, task):
                state.add(task.request, self.held(job, task), frame)
        return state

    def _can_be_kept(self, frame: NodeFrame, state: NodeState, job: Job, task: Task) -> bool:
        shares = self.held(job, task)
        usable = is_open_to(frame.node, task.request.where.tolerations)
        usable = usable and all(share.mig or frame.whole_mask >> share.device & 1 for share in shares)
        kept = usable and len(shares) >= _count(task.request) and state.holds(task.request, shares)
        (self._broken.discard if kept else self._broken.add)((job.id, task.id))
        return kept


def _has_devices(request: Request) -> bool:
    """Whether whoever asks so holds GPUs or slices of them, whether its world says which or not."""
    return bool(request.devices or request.mig)


def _count(request: Request) -> int:
    """Shares that a task with this request has."""
    return request.devices + sum([count for _, count in request.mig])


class _LaterStates(Sequence[NodeState]):
    """The state every node will have."""

    def __init__(self, nodes: NodeBook) -> None:
        self._now, self._later = nodes.now, nodes.later

    @overload
    def __getitem__(self, position: int) -> NodeState: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[NodeState]: ...

    def __getitem__(self, position: int | slice) -> NodeState | Sequence[NodeState]:
        if isinstance(position, slice):
            return [self[at] for at in range(*position.indices(len(self)))]
        return self._later.get(position) or self._now[position]

    def __len__(self) -> int:
        return len(self._now)
