"""Which devices go well together: the answer to a kubelet that is about to choose some.

Place in the flow: available devices ─**plugin_preference**─▶ ids. Pure. Invariant: the answer has what must be in it,
nothing that is not available, and the asked number. Of all such sets the one whose devices are closest to each other
wins; among equals the one that tears the least away from what stays, so that pairs are left for those who want pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import comb
from typing import Final

from gpuyard.fakegpu.kubernetes.plugin_offer import PluginDevice
from gpuyard.fakegpu.links import Level, closeness, level

MAX_SETS: Final = 2_000
"""Sets that are all looked at; where there are more, sets are grown device by device."""
MAX_STARTS: Final = 64
"""Devices such a set is grown from."""

Chosen = tuple[int, ...]


def preferred(available: Sequence[PluginDevice], must_include: Iterable[str], size: int) -> list[str]:
    """The ids of `size` devices; those that must be there first."""
    must = set(must_include)
    first = tuple(at for at, device in enumerate(available) if device.id in must)
    wires = _Wires(available)
    others = [at for at in range(len(available)) if at not in first]
    wanted = max(0, min(size - len(first), len(others)))
    if comb(len(others), wanted) <= MAX_SETS:
        sets = [(*first, *more) for more in combinations(others, wanted)]
    else:
        starts = [first] if first else [(at,) for at in others[:MAX_STARTS]]
        sets = [wires.grown(start, len(first) + wanted) for start in starts]
    return [available[at].id for at in max(sets, key=wires.worth)]


class _Wires:
    """How close every two of some devices are."""

    def __init__(self, devices: Sequence[PluginDevice]) -> None:
        self._close = [[between(one, other) for other in devices] for one in devices]
        self._to_all = [sum(row) for row in self._close]

    def worth(self, chosen: Chosen) -> tuple[int, int]:
        """How close they are to each other; then how little they have to do with all others."""
        inner = sum(self._close[one][other] for one, other in combinations(chosen, 2))
        return inner, -sum(self._to_all[at] for at in chosen)

    def grown(self, start: Chosen, size: int) -> Chosen:
        """With the device that is closest to those it has, again and again."""
        chosen = list(start)
        gain = [sum(self._close[at][one] for one in chosen) for at in range(len(self._close))]
        left = [at for at in range(len(self._close)) if at not in start]
        while len(chosen) < size:
            best = max(left, key=lambda at: (gain[at], -self._to_all[at], -at))
            left.remove(best)
            chosen.append(best)
            for at in left:
                gain[at] += self._close[at][best]
        return tuple(chosen)


def between(one: PluginDevice, other: PluginDevice) -> int:
    """NVLinks join GPUs of one product only; instances of one GPU are as close as can be."""
    if one.id == other.id:
        return 0
    if one.gpu == other.gpu:
        return closeness(Level.SAME_GPU, one.nvlinks)
    return closeness(level(one.seat, other.seat), one.nvlinks if one.product == other.product else 0)
