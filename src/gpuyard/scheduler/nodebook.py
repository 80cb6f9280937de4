"""All nodes: what is free on each now, and what will be once everything that is ending has ended.

Place in the flow: built by the ledger, forked by a draft. Nodes are kept sorted by name, so the first of equals is
the one whose name comes first. `now` is the state of every node; `later` exists only for nodes where something is
being freed or promised. Invariant: a task is bound only where it fits both now and later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuyard.model.jobs import DeviceShare, Job, Request, Task, TaskState
from gpuyard.model.nodes import Node
from gpuyard.scheduler.columns import Columns
from gpuyard.scheduler.devices import lowest_devices
from gpuyard.scheduler.nodestate import NodeFrame, NodeState

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
        self.columns = Columns(self.frames, self.now)

    def fork(self) -> NodeBook:
        """A copy that can change apart. States are shared: they are replaced, never changed."""
        copy = NodeBook.__new__(NodeBook)
        copy.frames, copy.at, copy.tasks_on = self.frames, self.at, self.tasks_on
        copy.now = self.now.copy()
        copy.later = self.later.copy()
        copy.columns = self.columns.fork(copy.now)
        return copy

    def load_all(self) -> None:
        """Book everything that is on any node, for the first time."""
        self.now.extend([NodeState.empty(frame) for frame in self.frames])
        for position, tasks in enumerate(self.tasks_on):
            if tasks:
                self._load_node(position, self.now[position])

    def load(self, touched: Iterable[int]) -> None:
        """Book anew everything that is on the given nodes."""
        for position in touched:
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
            if not task.shares and task.request.devices:
                nameless.append((job.id, task))
                continue
            state.add(task.request, task.shares, frame)
        for _, task in sorted(nameless, key=lambda entry: (entry[0], entry[1].id)):
            state.add(task.request, lowest_devices(state, frame, task.request), frame)
        self.now[position] = state
        if transient:
            self.later[position] = self._later_state(frame, tasks)
        else:
            self.later.pop(position, None)

    def _later_state(self, frame: NodeFrame, tasks: list[tuple[Task, Job]]) -> NodeState:
        state = NodeState.empty(frame)
        staying = [entry for entry in tasks if entry[0].state is not TaskState.FREEING]
        for task, _ in sorted(staying, key=lambda entry: (not entry[0].shares, entry[1].id, entry[0].id)):
            nameless = not task.shares and task.request.devices
            shares = lowest_devices(state, frame, task.request) if nameless else task.shares
            state.add(task.request, shares, frame)
        return state
