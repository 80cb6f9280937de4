"""Every set of a few blocks, the best first: the last resort of a search that is greedy otherwise.

Place in the flow: where few blocks may go at all, and none of the sets that were priced node by node could be had, each
set is looked at. So a small cluster misses nothing; a large one has more blocks than this and is not slowed down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Final

from gpuyard.scheduler.blocks import Block, Judge

FEW_BLOCKS: Final = 9


def legal_sets(blocks: Sequence[Block], judge: Callable[[], Judge]) -> Iterator[list[Block]]:
    """Sets that are allowed to go together: the smallest shortfall first, then the lowest cost."""
    if len(blocks) > FEW_BLOCKS:
        return
    found: list[tuple[int, int, int, list[Block]]] = []
    for size in range(1, len(blocks) + 1):
        for chosen in combinations(blocks, size):
            judging = judge()
            if _closed(chosen) and judging.allows(chosen):
                cost = sum(block.cost for block in chosen)
                found.append((judging.shortfall(chosen), cost, len(found), list(chosen)))
    yield from (chosen for _, _, _, chosen in sorted(found, key=lambda entry: entry[:3]))


def _closed(chosen: Sequence[Block]) -> bool:
    """Whether whatever a job gives up first goes too."""
    inside = {id(block) for block in chosen}
    return all(id(one) in inside for block in chosen for one in block.before)
