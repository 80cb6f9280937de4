"""What every store refuses before it touches its database, so that all of them refuse the same.

Invariant: the numbers of a batch follow each other; words are short and hold no NUL, which PostgreSQL cannot keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gpuyard.errors import StoreConflictError, StoreError
from gpuyard.worlds.standalone.store.port import DailySum, Entry

MAX_WORD_CHARS: Final = 256
MAX_BATCH: Final = 250_000
MAX_OBJECTS: Final = 1000
MAX_INTEGER: Final = 2**63 - 1


def check_entries(entries: Sequence[Entry]) -> None:
    if len(entries) > MAX_BATCH:
        raise StoreError(f"{len(entries)} entries in one append; at most {MAX_BATCH} are taken", fix="append in parts")
    first = entries[0].seq
    for place, entry in enumerate(entries):
        if entry.seq != first + place:
            raise StoreConflictError(f"entry {entry.seq} does not follow entry {first + place - 1}")
        if len(entry.objects) > MAX_OBJECTS:
            raise StoreError(f"entry {entry.seq} is about {len(entry.objects)} objects; at most {MAX_OBJECTS} are kept")
        _check_integers((entry.at_ms,))
        _check_words((entry.kind, entry.actor, entry.team, *entry.objects))


def check_sums(sums: Iterable[DailySum]) -> None:
    for one in sums:
        _check_integers((one.gpu_milli_ms,))
        _check_words((one.day, one.team, one.user, one.job, one.kind, one.cause))


def not_next(first_seq: int) -> StoreConflictError:
    return StoreConflictError(
        f"entry {first_seq} is not the next of the log: somebody else has written, or this writer has lost count",
        fix="open the store again and read what is new",
    )


def _check_words(words: Iterable[str]) -> None:
    for word in words:
        if len(word) > MAX_WORD_CHARS:
            raise StoreError(f"{word[:40]!r}... has {len(word)} characters; at most {MAX_WORD_CHARS} are kept")
        if "\0" in word:
            raise StoreError(f"{word[:40]!r} holds a NUL character, which a database cannot keep")


def _check_integers(numbers: Iterable[int]) -> None:
    for number in numbers:
        if not -MAX_INTEGER <= number <= MAX_INTEGER:
            raise StoreError(f"{number} is beyond what a database can keep")
