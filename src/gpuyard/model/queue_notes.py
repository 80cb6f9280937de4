"""What is allowed in a tree of queues and yet seldom meant: said beside an edit of teams, and by the doctor.

Place in the flow: teams as they are, or are to be ─**queue_notes**─▶ sentences. Pure. Contradictions are refused by
`queue_rules`; here nothing is wrong, but somebody will wait for what they think is theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpuyard.model.quantities import GPU
from gpuyard.model.text import amount_text


class Owed(NamedTuple):
    """What a queue is owed of all GPUs; None: all it asks for."""

    queue: str
    parent: str | None
    quota_milli: int | None


def queue_notes(owed: Sequence[Owed], capacity_milli: int) -> tuple[str, ...]:
    """Sentences; none where there is nothing to say. Without a machine the capacity is not known yet: 0."""
    return (*_more_than_there_is(owed, capacity_milli), *_never_give_back(owed))


def _more_than_there_is(owed: Sequence[Owed], capacity_milli: int) -> Iterator[str]:
    total = sum(one.quota_milli or 0 for one in owed if one.parent is None)
    if 0 < capacity_milli < total:
        yield (
            f"teams are owed {amount_text(GPU, total)} in all, and the cluster has {amount_text(GPU, capacity_milli)}: "
            "while all of them ask, not everybody gets what they are owed"
        )


def _never_give_back(owed: Sequence[Owed]) -> Iterator[str]:
    """Who is owed everything can hold everything, beside others who are owed a part of it."""
    siblings: dict[str | None, list[Owed]] = defaultdict(list)
    for one in owed:
        siblings[one.parent].append(one)
    for group in siblings.values():
        if any(one.quota_milli for one in group):
            for one in group:
                if one.quota_milli is None:
                    yield (
                        f'"{one.queue}" is owed all it asks for, so the others get nothing back that it holds; '
                        f"to have it give way: gpuyard team set {one.queue} --quota 0"
                    )
