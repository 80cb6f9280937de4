"""What a change would make different: who starts, stops, moves, stays and waits. The answer of `what-if`, as data.

Place in the flow: two plans ─scheduler.what_if─▶ **Difference** ─▶ text, for people.
"""

from __future__ import annotations

import msgspec

from gpuyard.model.reasons import Reason


class Affected(msgspec.Struct, frozen=True, gc=False):
    """A job to which something else happens than without the change."""

    job: str
    queue: str


class Started(Affected, frozen=True, gc=False):
    """Tasks that get a place after the change, and have or get none without it."""

    tasks: int
    nodes: tuple[str, ...]
    promised: bool = False
    """True where the place is still being freed."""


class Stopped(Affected, frozen=True, gc=False):
    """Running tasks that keep their place without the change, and lose it after."""

    tasks: int
    nodes: tuple[str, ...]
    reason: Reason | None = None
    """None: the change takes the job away."""


class Moved(Affected, frozen=True, gc=False):
    """Tasks that have a place either way, but another one."""

    tasks: int
    sources: tuple[str, ...]
    nodes: tuple[str, ...]
    reason: Reason | None = None
    """Why what runs must move; None where the tasks do not run yet and just start elsewhere."""


class Staying(Affected, frozen=True, gc=False):
    """Running tasks that keep their place after the change, and stop or move without it."""

    tasks: int
    nodes: tuple[str, ...]
    moves: bool = False
    """True where without the change they have another place; False where they have none."""


class NowWaiting(Affected, frozen=True, gc=False):
    """A job that wants a place after the change and gets none, and did not wait without it."""

    reasons: tuple[Reason, ...]
    more_tasks: bool = False
    """True where the job has a place and waits for more tasks only."""


class Difference(msgspec.Struct, frozen=True, gc=False):
    """One plan against another."""

    started: tuple[Started, ...] = ()
    stopped: tuple[Stopped, ...] = ()
    moved: tuple[Moved, ...] = ()
    staying: tuple[Staying, ...] = ()
    waiting: tuple[NowWaiting, ...] = ()
    unaffected_running: int = 0
    unaffected_waiting: int = 0

    @property
    def empty(self) -> bool:
        return not (self.started or self.stopped or self.moved or self.staying or self.waiting)
