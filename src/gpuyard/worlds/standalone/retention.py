"""How long each kind of entry stays in the log. What state needs is in its snapshots; use is kept as daily sums.

What is said about entries in quarantine stays as long as the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, get_args

from gpuyard.worlds.standalone.events import Event
from gpuyard.worlds.standalone.records import Jump
from gpuyard.worlds.standalone.store.quarantine import KINDS as QUARANTINE_KINDS

DAY_MS: Final = 24 * 3600 * 1000
DECISIONS_MS: Final = 90 * DAY_MS
PEOPLE_MS: Final = 400 * DAY_MS

_ABOUT_PEOPLE: Final = ("teams-", "user-", "token-", "cluster-", "shared-", "lease-", "restored")
"""Who may do what, and who changed it: asked for in audits more than a year later."""

KEPT_MS: Final[dict[str, int]] = {
    kind: PEOPLE_MS if kind.startswith(_ABOUT_PEOPLE) else DECISIONS_MS
    for kind in (str(event.__struct_config__.tag) for event in get_args(Event))
    if kind not in QUARANTINE_KINDS
}


def oldest_kept(now_ms: int) -> dict[str, int]:
    """Kind → the moment before which its entries may go."""
    return {kind: now_ms - kept_ms for kind, kept_ms in KEPT_MS.items()}


class Span(NamedTuple):
    """Entries that were dated by one setting of the clock."""

    after_seq: int
    up_to_seq: int
    """Belongs to it."""
    now_ms: int
    """What the time would be by that setting."""


def spans_of(jumps: Sequence[Jump], now_ms: int, up_to_seq: int) -> Iterator[Span]:
    """All entries up to one, so that the age of each is told by the clock that dated it."""
    after_seq, ahead_ms = 0, sum(jump.by_ms for jump in jumps)
    for jump in jumps:
        if after_seq < (last := min(jump.seq - 1, up_to_seq)):
            yield Span(after_seq, last, now_ms - ahead_ms)
        after_seq, ahead_ms = jump.seq - 1, ahead_ms - jump.by_ms
    if after_seq < up_to_seq:
        yield Span(after_seq, up_to_seq, now_ms)
