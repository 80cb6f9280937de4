"""From readings of the manager's clock to state: a jump moves every time from which a duration is counted.

Place in the flow: journal ─event─▶ fold ─▶ **clock_fold** ─▶ State. What began five minutes before the clock was set a
month ahead began five minutes before still: nobody is charged for the month, nothing is overdue, and nothing that is
kept for a while is dropped. Dates that people set or read from a calendar (tokens, schedules, joining) stay.
Invariant: differences between moved times are those of the monotonic clock.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from gpuyard.worlds.standalone import meter
from gpuyard.worlds.standalone.events import ClockJumped, ClockRead
from gpuyard.worlds.standalone.records import MAX_JUMPS_KEPT, JobRecord, Jump, State, TaskRecord

TASK_TIMES: Final = ("assigned_at_ms", "started_at_ms", "stopping_since_ms", "ended_at_ms", "checkpoint_at_ms")
JOB_TIMES: Final = (
    "submitted_at_ms",
    "started_at_ms",
    "ended_at_ms",
    "last_evicted_at_ms",
    "stale_since_ms",
    "idle_since_ms",
)
NODE_TIMES: Final = ("silent_since_ms",)
EARLIEST_MS: Final = 1
"""A moved time stays above zero, which stands for never."""

Record = TypeVar("Record", bound=msgspec.Struct)


def enter_clock(state: State, event: ClockRead | ClockJumped, at_ms: int) -> None:
    if isinstance(event, ClockJumped):
        meter.jump(state, at_ms, event.by_ms)
        _move_all(state, event.by_ms)
        state.at_ms = at_ms
        state.jumps = _bounded((*state.jumps, Jump(state.seq, at_ms, event.by_ms)))
    state.clock = event.reading


def _move_all(state: State, by_ms: int) -> None:
    state.jobs = {id: _moved_job(job, by_ms) for id, job in state.jobs.items()}
    state.nodes = {name: _moved(node, NODE_TIMES, by_ms) for name, node in state.nodes.items()}
    state.receipts = {key: _moved(receipt, ("at_ms",), by_ms) for key, receipt in state.receipts.items()}
    state.moves = [moment_ms + by_ms for moment_ms in state.moves]
    state.jumps = tuple(_moved(jump, ("at_ms",), by_ms) for jump in state.jumps)


def _moved_job(job: JobRecord, by_ms: int) -> JobRecord:
    """The revision stays: nobody has changed the job."""
    tasks: tuple[TaskRecord, ...] = tuple(_moved(task, TASK_TIMES, by_ms) for task in job.tasks)
    form = _moved(job.form, ("submitted_at_ms",), by_ms)
    return replace(job, form=form, tasks=tasks, **_times(job, JOB_TIMES, by_ms))


def _moved(record: Record, names: tuple[str, ...], by_ms: int) -> Record:
    times = _times(record, names, by_ms)
    return replace(record, **times) if times else record


def _times(record: msgspec.Struct, names: tuple[str, ...], by_ms: int) -> dict[str, int]:
    """Zero and None stand for never."""
    return {name: max(at_ms + by_ms, EARLIEST_MS) for name in names if (at_ms := getattr(record, name))}


def _bounded(jumps: tuple[Jump, ...]) -> tuple[Jump, ...]:
    if len(jumps) <= MAX_JUMPS_KEPT:
        return jumps
    first, second, *later = jumps
    return (replace(second, by_ms=first.by_ms + second.by_ms), *later)
