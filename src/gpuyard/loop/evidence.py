"""Which objects an exception was about: those the functions worked on that it came through.

Place in the flow: an exception ─▶ **evidence** ─suspects─▶ search, which tries each. A suspect is no more than that:
nothing is left out before planning has been seen to work without it.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Final

from gpuyard.loop.stand_ins import Kind, Subject
from gpuyard.model.jobs import Job
from gpuyard.model.nodes import Node
from gpuyard.model.queues import Queue
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.nodestate import NodeFrame
from gpuyard.scheduler.queuebook import QueueFrame

MAX_FRAMES: Final = 40
"""Calls that are looked at, from the one that raised outwards."""
MAX_SUSPECTS: Final = 6


def suspects(error: Exception) -> tuple[Subject, ...]:
    """Return the nodes, jobs and queues that the calls of an exception held, those of the innermost call first."""
    calls = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-MAX_FRAMES:]
    held = (value for frame in reversed(calls) for value in frame.f_locals.values())
    return tuple(dict.fromkeys(subject for value in held for subject in _subjects(value)))[:MAX_SUSPECTS]


def _subjects(value: object) -> Iterator[Subject]:
    match value:
        case Job():
            yield Subject(Kind.JOB, value.id)
        case Waiter():
            yield Subject(Kind.JOB, value.job.id)
        case Node():
            yield Subject(Kind.NODE, value.name)
        case NodeFrame():
            yield Subject(Kind.NODE, value.node.name)
        case Queue() | QueueFrame():
            yield Subject(Kind.QUEUE, value.name)
