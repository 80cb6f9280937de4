"""Priority classes: names to numbers, with the four that KAI ships.

Place in the flow: PriorityClass objects ─**priorities**─▶ grouping. Invariant: the four names mean something even
where nobody has created the objects; an object of that name wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuyard.model.jobs import DEFAULT_PRIORITY
from gpuyard.worlds.kubernetes.objects import PriorityClass

TRAIN: Final = "train"
BUILD: Final = "build"
INFERENCE: Final = "inference"

BUILT_IN: Final = {TRAIN: 50, "build-preemptible": 75, BUILD: 100, INFERENCE: 125}

FIRM_FROM: Final = 100
"""From this priority on a job is not preemptible, unless it says otherwise."""


class Priorities:
    """What each name of a class is worth."""

    def __init__(self, classes: Iterable[PriorityClass] = ()) -> None:
        known = tuple(classes)
        self._values = BUILT_IN | {one.metadata.name: one.value for one in known}
        self.default = min((one.value for one in known if one.global_default), default=DEFAULT_PRIORITY)
        """Of a job whose class does not exist: the cluster's own default, the smallest where it has several."""

    def of(self, name: str) -> int | None:
        """The value of a class; None where there is no such class."""
        return self._values.get(name)


def preemptible_by(priority: int) -> bool:
    """Whether a job that says nothing about it may be preempted."""
    return priority < FIRM_FROM
