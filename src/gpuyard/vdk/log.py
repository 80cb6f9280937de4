"""A state that is the fold of its events, kept in a store: what is answered is durable.

Place in the flow: a call ─events─▶ **log** ─entries─▶ store. Within a change each event is folded at once, so that
the next one is decided on what it left; the change is then written as a whole. Invariant: outside a change the state
is the fold of what the store holds; a change that was not written, or of which nobody knows, is read anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, get_args

import msgspec

from gpuyard.errors import StoreError
from gpuyard.worlds.standalone.store.memory import MemoryStore
from gpuyard.worlds.standalone.store.opening import open_store
from gpuyard.worlds.standalone.store.port import Entry, Store, StoredSnapshot
from gpuyard.worlds.standalone.store.quarantine import KINDS as QUARANTINE_KINDS
from gpuyard.worlds.standalone.store.quarantine import entry_of, events_for
from gpuyard.worlds.standalone.store.replay import Reading, UnknownKindError, UnusableError, replay

SNAPSHOT_EVERY: Final = 2_000
"""Entries between two snapshots: opening replays no more than about twice as many."""
KEPT_MS: Final = 90 * 24 * 3600 * 1000
"""How long entries are kept that the snapshots have made needless."""

_log = logging.getLogger(__name__)

State = TypeVar("State")
Event = TypeVar("Event", bound=msgspec.Struct)


class Story(msgspec.Struct, Generic[State, Event], frozen=True):
    """What a log needs to know of the state it keeps."""

    events: Any
    """The union of all events; each has a tag of its own."""
    empty: Callable[[], State]
    fold: Callable[[State, Event, int], None]
    """Enter an event that happened at this moment (ms)."""
    save: Callable[[State], bytes]
    load: Callable[[bytes], State]
    """Raises msgspec.MsgspecError for what another version wrote."""
    oldest_needed: Callable[[State], int | None] = lambda state: None
    """The first entry that is read after the snapshots have made it needless; it stays, whatever its age."""

    @property
    def kinds(self) -> list[str]:
        return [str(event.__struct_config__.tag) for event in get_args(self.events)]


def store_of(address: str | None, markers: Path | None = None) -> Store:
    """At this address, not open yet; None: in memory, gone with the process. `markers` as in `open_store`."""
    return MemoryStore() if address is None else open_store(address, markers)


class Log(Generic[State, Event]):
    """The state, and the store its events are in. Not thread-safe: its owner has the lock."""

    def __init__(self, store: Store, story: Story[State, Event], *, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        self._store = store
        self._story = story
        self._decoder = msgspec.json.Decoder(story.events)
        self._snapshot_every = snapshot_every
        self._pending: list[Entry] = []
        self._is_stale = False
        self._snapshot_seq = 0
        store.open()
        try:
            store.check()
            self._read_all()
        except BaseException:
            store.close()
            raise

    @property
    def state(self) -> State:
        """As it is; read anew where the last change did not get through."""
        if self._is_stale:
            self._store.open()
            self._read_all()
            self._is_stale = False
        return self._state

    @contextmanager
    def change(self) -> Iterator[State]:
        """All events entered inside are written together when it ends, or none of them has happened."""
        state = self.state
        try:
            yield state
            self._write()
        except BaseException:
            # What was folded is taken back by reading anew; whether a lost connection has written is seen then, too.
            self._is_stale = bool(self._pending)
            self._pending.clear()
            raise
        if self._seq - self._snapshot_seq >= self._snapshot_every:
            self._save_snapshot()

    def enter(self, event: Event, at_ms: int) -> None:
        """Fold one event; only inside a change."""
        kind = str(event.__struct_config__.tag)
        self._pending.append(Entry(self._seq + len(self._pending) + 1, at_ms, kind, msgspec.json.encode(event)))
        self._story.fold(self._state, event, at_ms)

    def event(self, seq: int) -> Event:
        """One event as it was written; for a state that leaves in the log what is large."""
        entries = self._store.read(seq - 1, 1)
        if not entries or entries[0].seq != seq:
            raise self._store.damaged(f"the log lacks entry {seq}", seq)
        found: Event = self._decoder.decode(entries[0].body)
        return found

    def close(self) -> None:
        self._store.close()

    def _write(self) -> None:
        if self._pending:
            self._store.append(self._pending)
            self._seq, self._at_ms = self._pending[-1].seq, self._pending[-1].at_ms
            self._pending.clear()

    def _save_snapshot(self) -> None:
        """What happened is durable without it, so an error here is none of the caller's."""
        before = self._snapshot_seq
        self._snapshot_seq = self._seq
        try:
            self._store.save_snapshot(StoredSnapshot(self._seq, self._at_ms, self._story.save(self._state)))
            needed = self._story.oldest_needed(self._state)
            up_to_seq = before if needed is None else min(before, needed - 1)
            self._store.prune(dict.fromkeys(self._story.kinds, self._at_ms - KEPT_MS), up_to_seq)
        except StoreError:
            self._is_stale = True

    # ---------------------------------------------------------------------------------------------------------- reading

    def _read_all(self) -> None:
        """The state anew; what of the log cannot be used is left out, and the log says so from then on."""
        replayed = replay(self._store, self._reading)
        self._state, self._seq, self._at_ms = replayed.state, replayed.seq, replayed.at_ms
        self._snapshot_seq = replayed.snapshot_seq
        for found in replayed.found.values():
            _log.warning("entry %d (%s) is put in quarantine: %s", found.seq, found.kind, found.why)
        for event in events_for(replayed.found.values()):
            self._seq += 1
            self._store.append([entry_of(self._seq, self._at_ms, event)])

    @property
    def _reading(self) -> Reading[State, Event | None]:
        story = self._story
        return Reading(
            empty=story.empty,
            load=story.load,
            problem=lambda state: "",
            save=story.save,
            decode=self._decode,
            fold=self._fold,
            skip=_skip,
        )

    def _decode(self, entry: Entry) -> Event | None:
        if entry.kind in QUARANTINE_KINDS:
            return None
        if entry.kind not in self._story.kinds:
            raise UnknownKindError(entry.kind)
        try:
            found: Event = self._decoder.decode(entry.body)
        except Exception as error:
            raise UnusableError(f"it cannot be read: {error}") from error
        return found

    def _fold(self, state: State, event: Event | None, entry: Entry) -> None:
        if event is not None:
            self._story.fold(state, event, entry.at_ms)


def _skip(state: object, entry: Entry) -> None:
    """A state of this kind does not know how far the log has come."""
