"""What a person does with a database while no manager runs: look into it, leave entries out, take them back, accept it.

Place in the flow: `gpuyard store` ─▶ **these** ─▶ store. Looking needs no lock; what changes the log is a writer, so it
is refused while a manager runs. Invariant: nothing is taken away; what is changed is an entry of its own in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from typing import Final

import msgspec

from gpuyard.errors import StoreError
from gpuyard.worlds.standalone.store.chain import Link
from gpuyard.worlds.standalone.store.port import Entry, Quarantined
from gpuyard.worlds.standalone.store.quarantine import (
    KINDS,
    EntriesQuarantined,
    EntriesReleased,
    entry_of,
    shortened,
)
from gpuyard.worlds.standalone.store.sql_store import SqlStore

PAGE: Final = 1_000

Judge = Callable[[Entry], str]
"""Why an entry cannot be used; an empty text where nothing speaks against it."""


class Inspected(msgspec.Struct, frozen=True):
    """One entry as it is kept."""

    seq: int
    at_ms: int
    kind: str
    actor: str
    team: str
    objects: tuple[str, ...]
    body: str
    """As text; what is not text is shown as \\x.."""
    checksum: str
    """In hexadecimal: the digest before it, then its own."""
    intact: bool
    quarantined: bool
    why: str
    """Why it is in quarantine, or cannot be used; empty: nothing speaks against it."""


class Wanted(msgspec.Struct, frozen=True):
    """Which entries are looked at."""

    first: int = 1
    last: int = 0
    """0: to the end."""
    kinds: Collection[str] = ()
    quarantined: bool = False
    """Only those that are in quarantine, damaged or cannot be used."""
    limit: int = 100


def inspect(store: SqlStore, wanted: Wanted, judge: Judge) -> Iterator[Inspected]:
    """The entries that are wanted, oldest first; a database that is damaged shows what of it can be read."""
    count, after_seq = 0, wanted.first - 1
    with store.reading() as (read, quarantine):
        while links := read(after_seq, PAGE):
            for link in links:
                after_seq = link.entry.seq
                if count >= wanted.limit or (wanted.last and after_seq > wanted.last):
                    return
                shown = _shown(link, quarantine.entries.get(after_seq), judge)
                if _is_wanted(shown, wanted):
                    count += 1
                    yield shown


def _is_wanted(shown: Inspected, wanted: Wanted) -> bool:
    return (not wanted.kinds or shown.kind in wanted.kinds) and (not wanted.quarantined or bool(shown.why))


def _shown(link: Link, held: Quarantined | None, judge: Judge) -> Inspected:
    entry = link.entry
    why = held.why if held else "it is not what was written: its checksum differs" if not link.intact else judge(entry)
    return Inspected(
        entry.seq,
        entry.at_ms,
        entry.kind,
        entry.actor,
        entry.team,
        entry.objects,
        entry.body.decode("utf-8", "backslashreplace"),
        link.checksum.hex(),
        link.intact,
        held is not None,
        why,
    )


def put_in_quarantine(store: SqlStore, seqs: Sequence[int], why: str, at_ms: int, actor: str) -> list[Quarantined]:
    """Leave these entries out from the next start on."""
    with closing(store):
        store.open()
        found = [shortened(_to_hold(store, seq, why)) for seq in dict.fromkeys(seqs)]
        event = EntriesQuarantined(tuple(found))
        store.append([entry_of(store.last_seq() + 1, at_ms, event, actor)])
        store.mend_index()
    return found


def _to_hold(store: SqlStore, seq: int, why: str) -> Quarantined:
    if not 1 <= seq <= store.last_seq():
        raise StoreError(f"there is no entry {seq}: the log has {store.last_seq()}", fix="see: gpuyard store inspect")
    if seq in store.quarantine().entries:
        raise StoreError(f"entry {seq} is in quarantine already", fix="see: gpuyard store inspect --quarantined")
    link = store.link(seq)
    if link is None:
        return Quarantined(seq, "", why or "it is missing", damaged=True)
    entry = link.entry
    if link.intact and entry.kind in KINDS:
        raise StoreError(f"entry {seq} is itself about a quarantine", fix="take that back: gpuyard store release SEQ")
    if not link.intact:
        return Quarantined(seq, entry.kind, why or "its checksum differs", damaged=True, checksum=link.checksum.hex())
    if store.holds_in_snapshots_only(seq):
        raise StoreError(
            f"what entry {seq} did is in every snapshot, and older entries were taken away by retention",
            fix="restore a backup from before that entry",
        )
    return Quarantined(seq, entry.kind, why or "an operator said so", checksum=link.checksum.hex())


def release(store: SqlStore, seqs: Sequence[int], at_ms: int, actor: str) -> None:
    """Use these entries again from the next start on; what still cannot be used then goes back into quarantine."""
    with closing(store):
        store.open()
        held = store.quarantine().entries
        for seq in seqs:
            if seq not in held:
                raise StoreError(f"entry {seq} is not in quarantine", fix="see: gpuyard store inspect --quarantined")
            if held[seq].damaged:
                raise StoreError(f"entry {seq} is damaged, and cannot be used again", fix="restore a backup")
        event = EntriesReleased(tuple(dict.fromkeys(seqs)))
        store.append([entry_of(store.last_seq() + 1, at_ms, event, actor)])


def accept(store: SqlStore, mark: Callable[[int], Entry]) -> int:
    """Go on with what the database holds, although this machine knew more of it; the number of its last entry.

    `mark` makes the entry that says so, as after a restore. An empty database, and a part of one, has no such entry.
    """
    with closing(store):
        known = store.marker.read()
        store.open(accept=True)
        goes_on = known is not None and store.last_seq() and not store.place.part
        store.accept()
        if goes_on:
            store.append([mark(store.last_seq() + 1)])
        return store.last_seq()
