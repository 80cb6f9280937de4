"""From a log to the state it adds up to; entries that cannot be used are found, kept and left out.

Place in the flow: store ─snapshot, entries─▶ **replay** ─▶ state. A damaged entry ends it: only a person can say
whether to go on without. One that is what was written, and still cannot be read or entered, goes into quarantine by
itself, and so does each later entry that needs it. Invariant: an entry that fails leaves nothing of it in the state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from gpuyard.errors import StoreError
from gpuyard.worlds.standalone.store.port import Entry, Quarantined, Store, StoredSnapshot

READ_AT_ONCE: Final = 5_000
MAX_FOUND: Final = 1_000
"""More entries that cannot be used are no accident of one of them: the log is not what this gpuyard can read."""

_log = logging.getLogger(__name__)

State = TypeVar("State")
Event = TypeVar("Event")


class UnusableError(Exception):
    """An entry that is what was written cannot be used; the text says why."""


class UnknownKindError(Exception):
    """An entry is of a kind that this program does not know."""


class Reading(msgspec.Struct, Generic[State, Event], frozen=True):
    """What a replay needs to know of the state it makes."""

    empty: Callable[[], State]
    load: Callable[[bytes], State]
    """The state of a snapshot; any error: it cannot be used."""
    problem: Callable[[State], str]
    """Why a snapshot cannot be used although it can be read; an empty text where nothing speaks against it."""
    save: Callable[[State], bytes]
    decode: Callable[[Entry], Event]
    """The event of an entry; UnusableError, UnknownKindError."""
    fold: Callable[[State, Event, Entry], None]
    """Enter it; any error: it cannot be entered, and the state is used no more."""
    skip: Callable[[State, Entry], None]
    """Pass over an entry that is not used."""


class Replayed(msgspec.Struct, Generic[State]):
    """What a log adds up to."""

    state: State
    seq: int
    at_ms: int
    snapshot_seq: int
    found: dict[int, Quarantined]
    """Entries that cannot be used and are not in quarantine yet."""


def replay(store: Store, reading: Reading[State, Event]) -> Replayed[State]:
    """The state of a store that is open: its newest snapshot that can be used, and everything after it."""
    run = _Run(store, reading)
    while entries := store.read(run.seq, READ_AT_ONCE):
        for entry in entries:
            run.enter(entry)
    last_seq = store.last_seq()
    if run.seq != last_seq:
        raise store.damaged(f"the log ends at entry {last_seq}, but only {run.seq} can be read")
    # Whatever is newer was passed over.
    store.drop_snapshots_after(run.snapshot_seq)
    return Replayed(run.state, run.seq, run.at_ms, run.snapshot_seq, run.found)


class _Run(Generic[State, Event]):
    """How far a replay has come."""

    def __init__(self, store: Store, reading: Reading[State, Event]) -> None:
        self._store = store
        self._reading = reading
        self._known = store.quarantine().entries
        self.found: dict[int, Quarantined] = {}
        snapshot, self.state = _newest_usable(store, reading)
        self.snapshot_seq = self.seq = self._base_seq = snapshot.seq if snapshot else 0
        self.at_ms = snapshot.at_ms if snapshot else 0
        self._base = snapshot.body if snapshot else None

    def enter(self, entry: Entry) -> None:
        self._pass_missing(entry.seq)
        if not self._is_left_out(entry.seq):
            self._try(entry)
        if self._is_left_out(entry.seq):
            self._reading.skip(self.state, entry)
        self.seq, self.at_ms = entry.seq, entry.at_ms

    def _is_left_out(self, seq: int) -> bool:
        return seq in self._known or seq in self.found

    def _pass_missing(self, seq: int) -> None:
        for missing in range(self.seq + 1, seq):
            if missing not in self._known:
                why = "" if self._base_seq else ", and there is no snapshot that can be used"
                raise self._store.damaged(f"the log lacks entry {missing}: the next is {seq}{why}")

    def _try(self, entry: Entry) -> None:
        try:
            event = self._reading.decode(entry)
        except UnusableError as error:
            self._leave_out(entry, str(error))
            return
        except UnknownKindError:
            raise self._unknown(entry) from None
        try:
            self._reading.fold(self.state, event, entry)
        except Exception as error:
            self._leave_out(entry, _why(error))
            self._begin_again(entry.seq)

    def _leave_out(self, entry: Entry, why: str) -> None:
        self.found[entry.seq] = Quarantined(entry.seq, entry.kind, why)
        if len(self.found) > MAX_FOUND:
            first = next(iter(self.found.values()))
            raise self._store.damaged(
                f"more than {MAX_FOUND} entries cannot be used, the first is {first.seq} ({first.kind}): {first.why}"
            )

    def _unknown(self, entry: Entry) -> StoreError:
        found = self._store.damaged("", entry.seq)
        return StoreError(
            f'entry {entry.seq} is of the kind "{entry.kind[:40]}", which this gpuyard does not know: a newer one has'
            " written it, or no gpuyard",
            fix=f"use the gpuyard that wrote it; otherwise {found.fix}",
        )

    def _begin_again(self, before_seq: int) -> None:
        """An entry that failed may have changed a part of the state: come back to where it was, without it."""
        reading = self._reading
        self.state = reading.empty() if self._base is None else reading.load(self._base)
        seq = self._base_seq
        while seq < before_seq - 1 and (entries := self._store.read(seq, min(READ_AT_ONCE, before_seq - 1 - seq))):
            for entry in entries:
                if self._is_left_out(entry.seq):
                    reading.skip(self.state, entry)
                elif entry.seq < before_seq:
                    reading.fold(self.state, reading.decode(entry), entry)
                seq = entry.seq
        self._base, self._base_seq = reading.save(self.state), before_seq - 1


def _newest_usable(store: Store, reading: Reading[State, Event]) -> tuple[StoredSnapshot | None, State]:
    quarantine = store.quarantine()
    for snapshot in store.snapshots():
        if quarantine.spoils(snapshot.seq):
            continue
        try:
            state = reading.load(snapshot.body)
            problem = reading.problem(state)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if not problem:
            return snapshot, state
        # Written by another version, or out of range: the one before it, or the log alone, will do.
        _log.warning("the snapshot at entry %d cannot be used: %s", snapshot.seq, problem)
    return None, reading.empty()


def _why(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it is about {error.args[0]!r}, which no usable entry before it has made" if error.args else "KeyError"
    return f"it cannot be entered: {type(error).__name__}: {error}"
