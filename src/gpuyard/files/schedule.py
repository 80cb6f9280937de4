"""A schedule file: a job that comes again.

Place in the flow: body ─tree─▶ shape ─ScheduleFileSpec─▶ **schedule** ─ScheduleFile─▶ a SetSchedule intent. The job in
it is read as any other. Invariant: the expression and the time zone of what is returned are known ones.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from gpuyard.files.cron import check_cron, check_zone
from gpuyard.files.durations import read_duration
from gpuyard.files.format import ScheduleFileSpec
from gpuyard.files.jobs import Surroundings
from gpuyard.files.place import Place
from gpuyard.files.shape import shaped
from gpuyard.files.work import WorkFile, read_work
from gpuyard.model.recurrence import (
    DEFAULT_MISSED_LIMIT_MS,
    DEFAULT_TIME_ZONE,
    MAX_MISSED_LIMIT_MS,
    Missed,
    Overlap,
    Recurrence,
)

KIND: Final = "schedule"


class ScheduleFile(msgspec.Struct, frozen=True):
    """What a schedule file says."""

    recurrence: Recurrence
    work: WorkFile
    written: str
    """Its job, as JSON."""
    paused: bool | None = None


def read_schedule(place: Place, around: Surroundings, name: str) -> ScheduleFile:
    """The schedule at the top of a file or body; its runs are called as it is, unless its job says otherwise."""
    spec = shaped(place, ScheduleFileSpec, KIND)
    work = read_work(place.at("job"), around)
    return ScheduleFile(
        recurrence=_recurrence(spec, place),
        work=work if spec.job.name else replace(work, name=name),
        written=msgspec.json.encode(spec.job).decode(),
        paused=spec.paused,
    )


def _recurrence(spec: ScheduleFileSpec, place: Place) -> Recurrence:
    zone = spec.time_zone or DEFAULT_TIME_ZONE
    place.at("cron").read(check_cron, spec.cron, "cron")
    place.at("time_zone").read(check_zone, zone, "time_zone")
    return Recurrence(
        cron=spec.cron,
        time_zone=zone,
        overlap=spec.overlap or Overlap.SKIP,
        missed=spec.missed or Missed.RUN_ONCE,
        missed_limit_ms=_limit(spec, place.at("missed_limit")),
    )


def _limit(spec: ScheduleFileSpec, place: Place) -> int:
    limit = read_duration(spec.missed_limit, place)
    if limit is not None and limit > MAX_MISSED_LIMIT_MS:
        raise place.error(f"missed_limit {spec.missed_limit} is longer than a year", "at most 366d")
    return DEFAULT_MISSED_LIMIT_MS if limit is None else limit
