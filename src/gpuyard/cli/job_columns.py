"""How jobs look in lists."""

from __future__ import annotations

from datetime import datetime

from gpuyard.cli.listing import Column, Kind
from gpuyard.cli.times import exact, since, until
from gpuyard.wire.rest import JobObject

_COLOURS = {
    "running": "green",
    "starting": "cyan",
    "stopping": "yellow",
    "failed": "red",
    "held": "yellow",
    "suspended": "yellow",
}


def _tasks(job: JobObject) -> str:
    bounds = f"{job.min_tasks}-{job.tasks}" if job.min_tasks < job.tasks else str(job.tasks)
    return f"{job.running_tasks}/{bounds}"


def _time(job: JobObject, at: datetime) -> str:
    """How long it runs now, or ran last; nothing while it waits for its turn again."""
    runs = job.running_tasks or job.state == "stopping"
    return since(job.run_started_at, job.ended_at or at) if job.ended_at or runs else ""


def _start(job: JobObject, at: datetime) -> str:
    if job.started_at is None or job.state == "waiting":
        return until(job.starts_at, at)
    return ""


def _why(job: JobObject) -> str:
    notes = ["holds GPUs it does not use"] if job.idle_since and job.ended_at is None else []
    return "; ".join([*notes, *(why.text for why in job.why)])


def _number(job: JobObject) -> tuple[int, int]:
    first, _, second = job.id.partition("_")
    return int(first) if first.isdecimal() else 0, int(second) if second.isdecimal() else -1


def _stamp(moment: datetime | None) -> float:
    return moment.timestamp() if moment else 0.0


JOBS: Kind[JobObject] = Kind(
    JobObject,
    (
        Column("ID", lambda job, at: job.id, key=_number),
        Column("NAME", lambda job, at: job.name),
        Column("TEAM", lambda job, at: job.team),
        Column("USER", lambda job, at: job.user),
        Column("STATE", lambda job, at: job.state),
        Column("GPUS", lambda job, at: job.gpus, key=lambda job: (len(job.gpus.partition(".")[0]), job.gpus)),
        Column("TASKS", lambda job, at: _tasks(job)),
        Column(
            "AGE",
            lambda job, at: since(job.submitted_at, at),
            lambda job: exact(job.submitted_at),
            key=lambda job: -_stamp(job.submitted_at),
        ),
        Column("TIME", _time, lambda job: exact(job.run_started_at), key=lambda job: _stamp(job.run_started_at)),
        Column("START≈", _start, lambda job: exact(job.starts_at), key=lambda job: _stamp(job.starts_at)),
        Column("NODES", lambda job, at: ",".join(job.nodes)),
        Column("STARTS-BY", lambda job, at: exact(job.starts_by), wide=True),
        Column("ENDED", lambda job, at: exact(job.ended_at), wide=True, key=lambda job: _stamp(job.ended_at)),
        Column("EXIT", lambda job, at: "" if job.exit_code is None else str(job.exit_code), wide=True),
        Column("PRIORITY", lambda job, at: str(job.priority), wide=True, key=lambda job: job.priority),
        Column("PREEMPTIBLE", lambda job, at: "yes" if job.preemptible else "no", wide=True),
        Column("RESTARTS", lambda job, at: str(job.restarts), wide=True, key=lambda job: job.restarts),
        Column("LABELS", lambda job, at: ",".join(f"{key}={value}" for key, value in job.labels.items()), wide=True),
        Column("REASON", lambda job, at: ",".join(why.token for why in job.why), wide=True),
        Column("WHY", lambda job, at: _why(job)),
    ),
    lambda job: job.id,
    lambda job: _COLOURS.get(job.state),
)
