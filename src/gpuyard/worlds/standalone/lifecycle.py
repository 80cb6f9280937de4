"""The life of a job, as one table. A change of state that is not in it is a bug and is found at once.

blocked ─▶ waiting ─▶ starting ─▶ running ─▶ succeeded | failed
   ▲          ▲  │                   │
  held ◀──────┘  └──── stopping ◀────┘ ─▶ waiting | suspended | held | cancelled | failed

A job of which some tasks are done and the others wait for a place is running, with nothing to stop: it is held,
suspended or cancelled at once. One that is scaled down to the tasks that are done has succeeded.
"""

from __future__ import annotations

import enum
from typing import Final

from gpuyard.errors import LedgerError


class JobState(enum.StrEnum):
    """Where a job stands, for its owner."""

    BLOCKED = "blocked"
    """Waits for other jobs, or for its turn in its array."""
    HELD = "held"
    """Its owner keeps it from starting."""
    WAITING = "waiting"
    STARTING = "starting"
    """Has its places; not everything runs yet."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Was asked to stop; `then` says what comes after."""
    SUSPENDED = "suspended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


OVER: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
"""Final: nothing leads out of these."""

IN_PLACE: Final = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})
"""Those that have tasks on machines."""


class Happening(enum.StrEnum):
    """What can happen to a job as a whole."""

    UNBLOCKED = "unblocked"
    BLOCKED = "blocked"
    HELD = "held"
    RELEASED = "released"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    PLACED = "placed"
    UP = "up"
    """All its placed tasks run."""
    STOP_ASKED = "stop-asked"
    REQUEUED = "requeued"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


_S, _H = JobState, Happening

TRANSITIONS: Final[dict[tuple[JobState, Happening], JobState]] = {
    (_S.BLOCKED, _H.UNBLOCKED): _S.WAITING,
    (_S.BLOCKED, _H.HELD): _S.HELD,
    (_S.BLOCKED, _H.CANCELLED): _S.CANCELLED,
    (_S.BLOCKED, _H.FAILED): _S.FAILED,
    (_S.HELD, _H.RELEASED): _S.WAITING,
    (_S.HELD, _H.BLOCKED): _S.BLOCKED,
    (_S.HELD, _H.CANCELLED): _S.CANCELLED,
    (_S.HELD, _H.SUCCEEDED): _S.SUCCEEDED,
    (_S.HELD, _H.FAILED): _S.FAILED,
    (_S.WAITING, _H.PLACED): _S.STARTING,
    (_S.WAITING, _H.HELD): _S.HELD,
    (_S.WAITING, _H.SUSPENDED): _S.SUSPENDED,
    (_S.WAITING, _H.CANCELLED): _S.CANCELLED,
    (_S.WAITING, _H.SUCCEEDED): _S.SUCCEEDED,
    (_S.WAITING, _H.FAILED): _S.FAILED,
    (_S.STARTING, _H.PLACED): _S.STARTING,
    (_S.STARTING, _H.UP): _S.RUNNING,
    (_S.STARTING, _H.STOP_ASKED): _S.STOPPING,
    (_S.STARTING, _H.REQUEUED): _S.WAITING,
    (_S.STARTING, _H.SUSPENDED): _S.SUSPENDED,
    (_S.STARTING, _H.HELD): _S.HELD,
    (_S.STARTING, _H.CANCELLED): _S.CANCELLED,
    (_S.STARTING, _H.SUCCEEDED): _S.SUCCEEDED,
    (_S.STARTING, _H.FAILED): _S.FAILED,
    (_S.RUNNING, _H.PLACED): _S.RUNNING,
    (_S.RUNNING, _H.STOP_ASKED): _S.STOPPING,
    (_S.RUNNING, _H.REQUEUED): _S.WAITING,
    (_S.RUNNING, _H.SUSPENDED): _S.SUSPENDED,
    (_S.RUNNING, _H.HELD): _S.HELD,
    (_S.RUNNING, _H.CANCELLED): _S.CANCELLED,
    (_S.RUNNING, _H.SUCCEEDED): _S.SUCCEEDED,
    (_S.RUNNING, _H.FAILED): _S.FAILED,
    (_S.STOPPING, _H.STOP_ASKED): _S.STOPPING,
    (_S.STOPPING, _H.REQUEUED): _S.WAITING,
    (_S.STOPPING, _H.SUSPENDED): _S.SUSPENDED,
    (_S.STOPPING, _H.HELD): _S.HELD,
    (_S.STOPPING, _H.CANCELLED): _S.CANCELLED,
    (_S.STOPPING, _H.FAILED): _S.FAILED,
    (_S.STOPPING, _H.SUCCEEDED): _S.SUCCEEDED,
    (_S.SUSPENDED, _H.RESUMED): _S.WAITING,
    (_S.SUSPENDED, _H.CANCELLED): _S.CANCELLED,
    (_S.SUSPENDED, _H.SUCCEEDED): _S.SUCCEEDED,
    (_S.SUSPENDED, _H.FAILED): _S.FAILED,
}


def after(state: JobState, happening: Happening) -> JobState:
    """The state a happening leads to."""
    try:
        return TRANSITIONS[state, happening]
    except KeyError:
        raise LedgerError(f"a job that is {state} cannot be {happening}") from None


def can(state: JobState, happening: Happening) -> bool:
    return (state, happening) in TRANSITIONS


class TaskPhase(enum.StrEnum):
    """Where one task stands."""

    WAITING = "waiting"
    PROMISED = "promised"
    """Has a place that is still being freed."""
    ASSIGNED = "assigned"
    """Its machine is told to start it, and has not said that it has."""
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    """Ended by itself, well."""


PLACED: Final = frozenset({TaskPhase.ASSIGNED, TaskPhase.RUNNING, TaskPhase.STOPPING})
"""Phases with an attempt on a machine."""
