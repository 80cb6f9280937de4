"""What a cycle decided: ordered actions, and why everything else still waits.

A plan is data. It is verified against the newest state before anything is done about it.
"""

from __future__ import annotations

import msgspec

from gpuyard.model.jobs import DeviceShare
from gpuyard.model.reasons import Reason


class Bind(msgspec.Struct, frozen=True, gc=False, tag="bind"):
    """Start this task here, now."""

    job: str
    task: str
    node: str
    shares: tuple[DeviceShare, ...]
    reason: Reason


class Promise(msgspec.Struct, frozen=True, gc=False, tag="promise"):
    """This task gets this place as soon as it is free; nothing starts yet."""

    job: str
    task: str
    node: str
    shares: tuple[DeviceShare, ...]
    reason: Reason


class Evict(msgspec.Struct, frozen=True, gc=False, tag="evict"):
    """Stop this task; the reason names for whose sake."""

    job: str
    task: str
    node: str
    reason: Reason


class Move(msgspec.Struct, frozen=True, gc=False, tag="move"):
    """Stop this task and start it again elsewhere."""

    job: str
    task: str
    source: str
    node: str
    shares: tuple[DeviceShare, ...]
    reason: Reason


class Resize(msgspec.Struct, frozen=True, gc=False, tag="resize"):
    """Change what a running task holds in place."""

    job: str
    task: str
    shares: tuple[DeviceShare, ...]
    reason: Reason


Action = Bind | Promise | Evict | Move | Resize


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """Jobs of one queue that wait for the same reasons, in the order they would be served."""

    queue: str
    jobs: tuple[str, ...]
    reasons: tuple[Reason, ...]


class Plan(msgspec.Struct, frozen=True, gc=False):
    """The decision of one cycle."""

    actions: tuple[Action, ...] = ()
    waiting: tuple[Waiting, ...] = ()

    def reasons_for(self, job: str) -> tuple[Reason, ...]:
        """Why a job waits; empty where it does not."""
        for waiting in self.waiting:
            if job in waiting.jobs:
                return waiting.reasons
        return ()
