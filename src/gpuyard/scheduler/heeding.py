"""How much of what a job would only rather have is heeded: all of it, then less, so that it makes nobody wait or go.

Place in the flow: `placement` tries to place a chunk in these ways in turn; the first with which all of it starts now
is taken, else the first with which it waits for places that are being freed. Invariant: a chunk that could start if it
preferred nothing starts, so that no step after it looks for somebody who gives way for a preference.
"""

from __future__ import annotations

import enum

from gpuyard.model.jobs import TaskGroup
from gpuyard.policies.policy import NodePlacement
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.jobbook import Waiter


class Heed(enum.Enum):
    """What is heeded."""

    ALL = "all"
    NOT_COMPANY = "not-company"
    """What tasks want of nodes and domains, not whom they would rather be near to or apart from."""
    NOTHING = "nothing"
    """Only what binds."""


ALL_ONLY = (Heed.ALL,)


def ways_to_heed(draft: Draft, waiter: Waiter) -> tuple[Heed, ...]:
    """The ways that can make a difference to a job: for most there is one."""
    ways: tuple[Heed, ...] = (Heed.ALL, Heed.NOT_COMPANY) if waiter.choosy else ALL_ONLY
    # A single task finds the best node that fits; of several the first may take the only place that another fits on.
    return (*ways, Heed.NOTHING) if len(waiter.shapes) > 1 and _prefers(draft, waiter) else ways


def _prefers(draft: Draft, waiter: Waiter) -> bool:
    if waiter.job.spread or draft.policy.node_placement is NodePlacement.TOPOLOGY or _prefers_domains(waiter.job.group):
        return True
    return any(draft.eligibility.ranks(shape.request.where) is not None for shape in dict.fromkeys(waiter.shapes))


def _prefers_domains(group: TaskGroup) -> bool:
    if group.topology is not None and group.topology.preferred is not None:
        return True
    return any(map(_prefers_domains, group.children))
