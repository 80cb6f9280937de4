"""The best any placement could do on a tiny cluster: an exact search, to measure the planner against.

Jobs are taken in the planner's own order, and each is accepted if *some* arrangement of it and of all accepted before
it exists; what runs stays where it is. Only GPUs count here: no other resource is scarce in these cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from gpuyard.model.quantities import MILLI

Rack = tuple[tuple[int, ...], ...]
"""What is free: for every node, in falling order, the thousandths left of each device, in falling order."""


class Piece(NamedTuple):
    """One task: so many devices of one node, so much of each."""

    devices: int
    milli: int

    @property
    def total(self) -> int:
        return self.devices * self.milli


def accepted(free: Sequence[Sequence[int]], jobs: Sequence[Sequence[Piece]]) -> list[int]:
    """Which jobs, by position, the best arrangement serves."""
    rack = canonical(free)
    pieces: list[Piece] = []
    chosen: list[int] = []
    for position, job in enumerate(jobs):
        if arrangement_exists(rack, [*pieces, *job]):
            pieces += job
            chosen.append(position)
    return chosen


def arrangement_exists(rack: Rack, pieces: Sequence[Piece]) -> bool:
    """Whether all pieces fit at once. The largest go first, because they have the fewest places."""
    ordered = sorted(pieces, key=lambda piece: (piece.milli, piece.devices), reverse=True)
    return search(rack, tuple(ordered), set())


def search(rack: Rack, pieces: tuple[Piece, ...], dead: set[tuple[Rack, int]]) -> bool:
    """Depth first; equal nodes and equal devices are tried once, and a dead end is remembered."""
    if not pieces:
        return True
    if (rack, len(pieces)) in dead or hopeless(rack, pieces):
        return False
    if any(search(after, pieces[1:], dead) for after in placements(rack, pieces[0])):
        return True
    dead.add((rack, len(pieces)))
    return False


def hopeless(rack: Rack, pieces: tuple[Piece, ...]) -> bool:
    """Too little is left in all, or too few untouched devices for what needs them whole."""
    left = sum(sum(node) for node in rack)
    whole = sum(device == MILLI for node in rack for device in node)
    wanted_whole = sum(piece.devices for piece in pieces if piece.milli == MILLI)
    return left < sum(piece.total for piece in pieces) or whole < wanted_whole


def placements(rack: Rack, piece: Piece) -> Iterator[Rack]:
    """Every different way to put one piece, the tightest first."""
    for index in reversed(range(len(rack))):
        if index + 1 < len(rack) and rack[index] == rack[index + 1]:
            continue
        for after in node_placements(rack[index], piece):
            yield canonical((*rack[:index], after, *rack[index + 1 :]))


def node_placements(node: tuple[int, ...], piece: Piece) -> Iterator[tuple[int, ...]]:
    usable = [device for device in node if device >= piece.milli]
    tried: set[tuple[int, ...]] = set()
    for taken in combinations(reversed(usable), piece.devices):
        if taken not in tried:
            tried.add(taken)
            yield less(node, taken, piece.milli)


def less(node: tuple[int, ...], taken: tuple[int, ...], milli: int) -> tuple[int, ...]:
    devices = list(node)
    for device in taken:
        devices.remove(device)
    return tuple(sorted([*devices, *(device - milli for device in taken)], reverse=True))


def canonical(free: Sequence[Sequence[int]]) -> Rack:
    return tuple(sorted((tuple(sorted(node, reverse=True)) for node in free), reverse=True))
