"""Who holds the GPUs of which node, as a picture of signs. Pure.

Place in the flow: pods of a cluster ─Held─▶ **map** ─▶ terminal, docs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from gpuyard.kaidemo.lines import gpus

TAKEN: Final = "■"
FREE: Final = "·"


class Held(msgspec.Struct, frozen=True):
    """What one pod has."""

    node: str
    workload: str
    gpus: int


def map_lines(nodes: Sequence[str], size: int, held: Sequence[Held]) -> list[str]:
    """A line for each node: a sign for each GPU, and who has how many; workloads stand apart from each other."""
    bars = {node: bar(size, shares(node, held)) for node in nodes}
    wide = max(map(len, bars.values()), default=0)
    longest = max(map(len, nodes), default=0)
    return [f"{node:{longest}}  {bars[node]:{wide}}  {words(size, shares(node, held))}" for node in nodes]


def shares(node: str, held: Sequence[Held]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in held:
        if one.node == node:
            found[one.workload] = found.get(one.workload, 0) + one.gpus
    return dict(sorted(found.items(), key=lambda entry: (-entry[1], entry[0])))


def bar(size: int, shares: dict[str, int]) -> str:
    parts = [TAKEN * count for count in shares.values()]
    free = size - sum(shares.values())
    return " ".join([*parts, FREE * free] if free > 0 else parts)


def words(size: int, shares: dict[str, int]) -> str:
    free = size - sum(shares.values())
    said = [f"{name} ({gpus(count)})" for name, count in shares.items()]
    return ", ".join([*said, f"{free} free"] if free else said)
