"""From events of schedules to state. As in fold.py, each is entered and nothing is decided.

Place in the flow: journal ─event─▶ fold ─▶ **schedule_fold** ─▶ State. Invariant: `settled_until_ms` never goes back.
"""

from __future__ import annotations

from msgspec.structs import replace

from gpuyard.worlds.standalone.consequences import state_of
from gpuyard.worlds.standalone.events import (
    ScheduleEvent,
    SchedulePaused,
    ScheduleRan,
    ScheduleRemoved,
    ScheduleResumed,
    ScheduleSet,
    ScheduleSkipped,
    ScheduleSuspended,
)
from gpuyard.worlds.standalone.lifecycle import OVER
from gpuyard.worlds.standalone.records import MAX_RUNS_KEPT, Run, ScheduleRecord, Skip, State, Suspension


def enter_schedule(state: State, event: ScheduleEvent, at_ms: int) -> None:
    match event:
        case ScheduleSet():
            state.schedules[event.schedule] = replace(written_anew(state, event, at_ms), revision=state.seq)
        case ScheduleRemoved(id):
            state.schedules.pop(id, None)
        case SchedulePaused(id):
            state.schedules[id] = replace(state.schedules[id], paused=True, revision=state.seq)
        case ScheduleResumed(id):
            known = _settled(state.schedules[id], at_ms)
            state.schedules[id] = replace(known, paused=False, suspended=None, revision=state.seq)
        case ScheduleSuspended(id, why, message, planned_at_ms):
            known = _settled(state.schedules[id], planned_at_ms)
            state.schedules[id] = replace(known, suspended=Suspension(why, at_ms, message), revision=state.seq)
        case ScheduleRan(id, planned_at_ms, job, asked):
            known = state.schedules[id] if asked else _settled(state.schedules[id], planned_at_ms)
            run = Run(planned_at_ms, at_ms, job, asked)
            state.schedules[id] = replace(known, runs=_kept(state, (*known.runs, run)))
        case ScheduleSkipped(id, planned_at_ms, why, count, earlier):
            known = _settled(state.schedules[id], planned_at_ms)
            state.schedules[id] = replace(known, last_skip=Skip(planned_at_ms, why, count, earlier))


def written_anew(state: State, event: ScheduleSet, at_ms: int) -> ScheduleRecord:
    """The schedule as it is then: what it has run stays with it, and it counts from now."""
    fresh = ScheduleRecord(event.schedule, event.recurrence, event.submission, event.written, at_ms, at_ms)
    known = state.schedules.get(event.schedule, fresh)
    return replace(
        fresh,
        settled_until_ms=max(known.settled_until_ms, at_ms),
        paused=event.paused,
        runs=known.runs,
        last_skip=known.last_skip,
    )


def _settled(schedule: ScheduleRecord, until_ms: int) -> ScheduleRecord:
    return replace(schedule, settled_until_ms=max(schedule.settled_until_ms, until_ms))


def _kept(state: State, runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """One that is not over is never forgotten: later runs wait for it."""
    old = tuple(run for run in runs[:-MAX_RUNS_KEPT] if state_of(state, run.job) not in OVER)
    return (*old, *runs[-MAX_RUNS_KEPT:])
