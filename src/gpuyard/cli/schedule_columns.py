"""How schedules look in lists."""

from __future__ import annotations

from datetime import datetime

from gpuyard.cli.listing import Column, Kind
from gpuyard.cli.times import exact, since, until
from gpuyard.wire.rest import ScheduleObject

_COLOURS = {"suspended": "red", "paused": "yellow"}


def _last(schedule: ScheduleObject, at: datetime) -> str:
    run = schedule.last_run
    return f"{since(run.submitted_at, at)} ago" if run else ""


def why(schedule: ScheduleObject) -> str:
    """Why it stands still, or why its last time had no run."""
    if schedule.why:
        return "; ".join(why.text for why in schedule.why)
    skip, run = schedule.last_skip, schedule.last_run
    newest = skip is not None and (run is None or skip.planned_at > run.planned_at)
    return f"skipped {skip.text}" if skip is not None and newest else ""


SCHEDULES: Kind[ScheduleObject] = Kind(
    ScheduleObject,
    (
        Column("NAME", lambda schedule, at: schedule.name),
        Column("TEAM", lambda schedule, at: schedule.team),
        Column("OWNER", lambda schedule, at: schedule.owner),
        Column("STATE", lambda schedule, at: schedule.state),
        Column("CRON", lambda schedule, at: schedule.cron),
        Column("TIME-ZONE", lambda schedule, at: schedule.time_zone),
        Column(
            "NEXT",
            lambda schedule, at: until(schedule.next_at, at),
            lambda schedule: exact(schedule.next_at),
            key=lambda schedule: schedule.next_at.timestamp() if schedule.next_at else float("inf"),
        ),
        Column(
            "LAST",
            _last,
            lambda schedule: exact(schedule.last_run.submitted_at if schedule.last_run else None),
            key=lambda schedule: schedule.last_run.submitted_at.timestamp() if schedule.last_run else 0.0,
        ),
        Column("JOB", lambda schedule, at: schedule.last_run.job if schedule.last_run else ""),
        Column("JOB-STATE", lambda schedule, at: schedule.last_run.state if schedule.last_run else ""),
        Column("GPUS", lambda schedule, at: schedule.gpus, wide=True),
        Column("OVERLAP", lambda schedule, at: schedule.overlap, wide=True),
        Column("MISSED", lambda schedule, at: schedule.missed, wide=True),
        Column("REVISION", lambda schedule, at: str(schedule.revision), wide=True),
        Column("WHY", lambda schedule, at: why(schedule)),
    ),
    lambda schedule: f"{schedule.team}/{schedule.name}",
    lambda schedule: _COLOURS.get(schedule.state),
)
