"""Our own machines as a world: what the journal's events change for the scheduler, and plans as events.

Place in the flow: journal ─events─▶ **world** ─changes─▶ loop ─actions─▶ **world** ─events─▶ journal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuyard.model.plan import Action
from gpuyard.model.snapshot import Change, MovesCounted, NodeGone, NodeSeen, QueuesSet, Snapshot, TimePassed
from gpuyard.worlds.standalone.events import ClockJumped, Event, JobsForgotten, JobSubmitted, TeamsSet
from gpuyard.worlds.standalone.journal import Journal
from gpuyard.worlds.standalone.lifecycle import OVER, TaskPhase
from gpuyard.worlds.standalone.planning import events_of
from gpuyard.worlds.standalone.records import JobRecord
from gpuyard.worlds.standalone.snapshot import STUCK_AFTER_MS, changes_of, moves_last_hour, node_seen_as, snapshot_of
from gpuyard.worlds.standalone.store.port import Entry


class Standalone:
    """The port of the loop on a journal."""

    def __init__(self, journal: Journal, now_ms: Callable[[], int]) -> None:
        self.journal = journal
        self.now_ms = now_ms
        self._jobs: dict[str, None] = {}
        self._nodes: dict[str, None] = {}
        self._queues = False
        self._moves = -1
        self._said_ms = 0
        self._stopping = {job.id for job in journal.state.jobs.values() if _is_stopping(job)}
        journal.listeners.append(self._heard)

    @property
    def changed(self) -> bool:
        """Whether there is anything new to plan for."""
        return bool(self._jobs or self._nodes or self._queues)

    def snapshot(self) -> Snapshot:
        self._jobs, self._nodes, self._queues = {}, {}, False
        self._said_ms = self.now_ms()
        return snapshot_of(self.journal.state, self._said_ms)

    def observe(self) -> Sequence[Change]:
        state = self.journal.state
        self._look_at_the_clock()
        changes: list[Change] = [TimePassed(self._said_ms)]
        self._look_at_the_late()
        if self._queues:
            changes.append(QueuesSet(state.queues))
        for name in self._nodes:
            node = state.nodes.get(name)
            if node is None:
                changes.append(NodeGone(name))
            elif node.seen:
                changes.append(NodeSeen(node_seen_as(node)))
        moves = moves_last_hour(state, self._said_ms)
        if moves != self._moves:
            self._moves = moves
            changes.append(MovesCounted(moves))
        for id in self._jobs:
            changes.extend(changes_of(id, state.jobs.get(id), self._said_ms))
        self._jobs, self._nodes, self._queues = {}, {}, False
        return changes

    def act(self, actions: Sequence[Action]) -> None:
        state = self.journal.state
        self.journal.record(events_of(state, actions, state.cycle + 1), self.now_ms())

    def _heard(self, event: Event, _: Entry) -> None:
        match event:
            case JobSubmitted(record):
                self._jobs[record.id] = None
            case JobsForgotten(jobs):
                self._jobs.update(dict.fromkeys(jobs))
            case TeamsSet():
                self._queues = True
            case ClockJumped():
                # Their times have moved with it.
                self._jobs.update({id: None for id, job in self.journal.state.jobs.items() if job.state not in OVER})
            case _:
                self._note(event)

    def _note(self, event: Event) -> None:
        job, node = getattr(event, "job", None), getattr(event, "node", None)
        if isinstance(job, str):
            self._jobs[job] = None
            record = self.journal.state.jobs.get(job)
            (self._stopping.add if record and _is_stopping(record) else self._stopping.discard)(job)
        elif isinstance(node, str):
            self._nodes[node] = None

    def _look_at_the_clock(self) -> None:
        """One that was an hour ahead and is set back is right again: what seemed late by it is not."""
        now_ms = self.now_ms()
        if now_ms < self._said_ms:
            self._jobs.update(dict.fromkeys(sorted(self._stopping)))
        self._said_ms = now_ms

    def _look_at_the_late(self) -> None:
        """What should have stopped long ago is not counted on any more."""
        for id in self._stopping:
            record = self.journal.state.jobs.get(id)
            since = (
                min((task.stopping_since_ms for task in record.tasks if task.stopping_since_ms), default=0)
                if record
                else 0
            )
            if record and since and self._said_ms - since > record.work.grace_ms + STUCK_AFTER_MS:
                self._jobs[id] = None


def _is_stopping(record: JobRecord) -> bool:
    return any(task.phase is TaskPhase.STOPPING for task in record.tasks)
