"""Entries that are kept and not used: which, since when, why. The log itself says so.

Place in the flow: replay, `gpuyard store quarantine` ─event─▶ log ─▶ **quarantine** ─▶ every later read. An entry in
quarantine stays where it is, with its bytes. Invariant: the same log gives the same quarantine, so the next start, a
backup and another machine come to the same state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from gpuyard.worlds.standalone.store.port import Entry, Quarantine, Quarantined, Spoilt

QUARANTINED: Final = "entries-quarantined"
RELEASED: Final = "entries-released"
KINDS: Final = (QUARANTINED, RELEASED)
"""Entries of these kinds are the store's own. Retention leaves them, and what they name."""

MAX_IN_ONE_EVENT: Final = 500
"""Entries that one event names; more are named by several."""
MAX_WHY_CHARS: Final = 500


class EntriesQuarantined(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag=QUARANTINED):
    """These entries are kept and no longer used."""

    entries: tuple[Quarantined, ...]


class EntriesReleased(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag=RELEASED):
    """These entries are used again."""

    entries: tuple[int, ...]


_decoder: Final[msgspec.json.Decoder[EntriesQuarantined | EntriesReleased]] = msgspec.json.Decoder(
    EntriesQuarantined | EntriesReleased
)


def quarantine_of(entries: Iterable[Entry]) -> Quarantine:
    """Read the entries of our own kinds, in their order."""
    quarantine = Quarantine()
    note_all(quarantine, entries)
    return quarantine


def note_all(quarantine: Quarantine, entries: Iterable[Entry]) -> None:
    """Enter those that are of our own kinds; one that cannot be read says nothing, and is reported as damaged."""
    for entry in entries:
        if entry.kind not in KINDS:
            continue
        try:
            event = _decoder.decode(entry.body)
        except msgspec.MsgspecError:
            continue
        if isinstance(event, EntriesQuarantined):
            _add(quarantine, entry, event)
        else:
            _free(quarantine, entry, event)


def _add(quarantine: Quarantine, entry: Entry, event: EntriesQuarantined) -> None:
    for one in event.entries:
        quarantine.entries[one.seq] = one
        quarantine.at_ms[one.seq] = entry.at_ms
        if not one.damaged:
            quarantine.spoilt.append(Spoilt(one.seq, entry.seq))


def _free(quarantine: Quarantine, entry: Entry, event: EntriesReleased) -> None:
    for seq in event.entries:
        gone = quarantine.entries.pop(seq, None)
        quarantine.at_ms.pop(seq, None)
        if gone is not None and not gone.damaged:
            quarantine.spoilt.append(Spoilt(seq, entry.seq))


def events_for(found: Iterable[Quarantined]) -> list[EntriesQuarantined]:
    """As few events as hold them all."""
    every = [shortened(one) for one in found]
    starts = range(0, len(every), MAX_IN_ONE_EVENT)
    return [EntriesQuarantined(tuple(every[start : start + MAX_IN_ONE_EVENT])) for start in starts]


def shortened(one: Quarantined) -> Quarantined:
    return msgspec.structs.replace(one, why=one.why[:MAX_WHY_CHARS])


def entry_of(seq: int, at_ms: int, event: EntriesQuarantined | EntriesReleased, actor: str = "") -> Entry:
    """The event as an entry of the log."""
    kind = str(type(event).__struct_config__.tag)
    return Entry(seq, at_ms, kind, msgspec.json.encode(event), actor)
