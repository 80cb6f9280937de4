"""The log as the manager writes it: events are entered in the state at once, and are durable a moment later.

Place in the flow: decide, planning, reports ─events─▶ **journal** ─entries─▶ store. Nobody outside is told of anything
before it is durable: answers, agents and watchers wait for `durable_seq`. Invariant: the state is the fold of all
entries, written and pending; what is recorded together, with all that follows from it, is entered as a whole or not at
all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from gpuyard.errors import GpuyardError, NotRecordedError, StoreConflictError
from gpuyard.worlds.standalone.acceptable import event_problem
from gpuyard.worlds.standalone.consequences import follow_ups
from gpuyard.worlds.standalone.events import (
    Event,
    JobSubmitted,
    Noted,
    Restored,
    ScheduleRan,
    TasksPlaced,
    TasksPromised,
    TasksStopped,
    kind_of,
)
from gpuyard.worlds.standalone.fold import fold
from gpuyard.worlds.standalone.reading import READING
from gpuyard.worlds.standalone.records import State
from gpuyard.worlds.standalone.snapshot_draft import SnapshotDraft
from gpuyard.worlds.standalone.store.port import Entry, Quarantine, Quarantined, Store, Verification
from gpuyard.worlds.standalone.store.quarantine import events_for
from gpuyard.worlds.standalone.store.replay import replay
from gpuyard.worlds.standalone.undo import Watch

SNAPSHOT_EVERY: Final = 5_000
"""Entries between two snapshots: a restart replays no more than about twice as many."""

Listener = Callable[[Event, Entry], None]


def _in_words(error: Exception) -> str:
    return str(error) if isinstance(error, GpuyardError) else f"{type(error).__name__}: {error}"


def _job_of(event: Event) -> str:
    job = getattr(event, "job", "")
    return str(getattr(job, "id", job))


def restored(seq: int, at_ms: int) -> Entry:
    """What is entered after a backup that was put back."""
    event = Restored()
    return Entry(seq, at_ms, kind_of(event), msgspec.json.encode(event))


class Journal:
    """The state, and what of its log is not yet written."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.pending: list[Entry] = []
        self.durable_seq = state.seq
        self.snapshot_seq = 0
        self.snapshot_every = SNAPSHOT_EVERY
        self.quarantine = Quarantine()
        """Entries that are kept and not used, as the store knows them."""
        self.verification: Verification | None = None
        """What was looked at before the start."""
        self.found: tuple[Quarantined, ...] = ()
        """Entries that the last start could not use, to be entered in quarantine."""
        self.listeners: list[Listener] = []
        """Told of every event once all that is recorded together is entered, before it is durable."""
        self._watch = Watch(state)

    def record(self, events: Iterable[Event], at_ms: int, actor: str = "") -> int:
        """Enter events and all that follows from them, and return the number of the last.

        Raise what the events' maker raises, or NotRecordedError where one of them cannot be folded or planned on. Then
        nothing is entered: neither what came before it, nor what would have followed.
        """
        entered: list[tuple[Event, Entry]] = []
        self._watch.begin()
        try:
            for event in events:
                follow = deque([event])
                while follow:
                    following = follow.popleft()
                    entered.append((following, self._enter(following, at_ms, actor)))
                    follow.extend(self._follow_ups(following))
        except BaseException:
            self._watch.undo()
            raise
        self.pending += [entry for _, entry in entered]
        for event, entry in entered:
            for listener in self.listeners:
                listener(event, entry)
        return self.state.seq

    def _enter(self, event: Event, at_ms: int, actor: str) -> Entry:
        problem = event_problem(event)
        if problem:
            raise NotRecordedError(kind_of(event), problem, _job_of(event))
        try:
            seq = self.state.seq + 1
            team, objects = concerns(self.state, event)
            entry = Entry(seq, at_ms, kind_of(event), msgspec.json.encode(event), actor, team, objects)
            fold(self.state, event, seq, at_ms)
        except Exception as error:
            raise NotRecordedError(kind_of(event), _in_words(error), _job_of(event)) from error
        return entry

    def _follow_ups(self, event: Event) -> list[Event]:
        try:
            return list(follow_ups(self.state, event))
        except Exception as error:
            why = f"what follows from it: {_in_words(error)}"
            raise NotRecordedError(kind_of(event), why, _job_of(event)) from error

    def enter_found(self, at_ms: int) -> None:
        """Say in the log what a start could not use, so that the next one comes to the same state."""
        found, self.found = self.found, ()
        self.record(events_for(found), at_ms)

    def take_pending(self) -> list[Entry]:
        """What is to be written next, all together."""
        pending, self.pending = self.pending, []
        return pending

    @property
    def wants_snapshot(self) -> bool:
        return self.state.seq - self.snapshot_seq >= self.snapshot_every

    def snapshot(self) -> SnapshotDraft:
        """The state as it is; to be saved only once everything before it is durable."""
        self.snapshot_seq = self.state.seq
        return SnapshotDraft.of(self.state)


def load(store: Store) -> Journal:
    """The state of a store that is open, which is checked first; what of it cannot be used is left out, and named."""
    verification = store.check()
    replayed = replay(store, READING)
    journal = Journal(replayed.state)
    journal.snapshot_seq = replayed.snapshot_seq
    journal.quarantine = store.quarantine()
    journal.verification = verification
    journal.found = tuple(replayed.found.values())
    return journal


def is_written(entries: Sequence[Entry], last_seq: int) -> bool:
    """Whether a store that was gone in the middle of an append, and is found again at `last_seq`, has the entries."""
    if last_seq not in (entries[0].seq - 1, entries[-1].seq):
        raise StoreConflictError(
            f"somebody else has written to the database: it is at entry {last_seq}, not {entries[0].seq - 1}",
            fix="only one manager may run on a database",
        )
    return last_seq == entries[-1].seq


def concerns(state: State, event: Event) -> tuple[str, tuple[str, ...]]:
    """The team an event is about, and the objects it is found by."""
    if isinstance(event, Noted):
        return event.team, (event.about, *((f"team/{event.team}",) if event.team else ()))
    objects: list[str] = []
    team = ""
    for kind in ("job", "array", "node", "user", "token"):
        value = getattr(event, kind, None)
        id = value if isinstance(value, str) else getattr(value, "id", None) or getattr(value, "name", None)
        if isinstance(id, str):
            objects.append(f"{kind}/{id}")
    job = getattr(event, "job", None)
    record = state.jobs.get(job) if isinstance(job, str) else job
    if record is not None:
        team = record.team
        objects.append(f"team/{team}")
    schedule = schedule_of(event)
    if schedule:
        team = schedule.partition("/")[0]
        objects += [f"schedule/{schedule}", f"team/{team}"]
    if isinstance(event, ScheduleRan):
        objects.append(f"{'array' if event.run in state.arrays else 'job'}/{event.run}")
    objects += [f"job/{id}" for id in _beneficiaries(event)]
    return team, tuple(dict.fromkeys(objects))


def schedule_of(event: Event) -> str:
    """The schedule an event is about: itself, or one of its runs that is submitted."""
    if isinstance(event, JobSubmitted):
        return event.job.schedule
    return str(getattr(event, "schedule", ""))


def _beneficiaries(event: Event) -> list[str]:
    match event:
        case TasksPlaced() | TasksPromised() | TasksStopped():
            return [one.why.beneficiary for one in event.tasks if one.why is not None and one.why.beneficiary]
    return []
