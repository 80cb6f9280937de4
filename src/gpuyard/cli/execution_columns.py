"""How executions of data jobs look in lists, and one of them to a person."""

from __future__ import annotations

from collections.abc import Iterator

from gpuyard.cli.listing import Column, Kind
from gpuyard.cli.terminal import one_line
from gpuyard.cli.times import exact, since
from gpuyard.wire.data_jobs import DataJobExecution

_COLOURS = {"running": "green", "user_error": "red", "platform_error": "red"}

EXECUTIONS: Kind[DataJobExecution] = Kind(
    DataJobExecution,
    (
        Column("ID", lambda one, at: one.id),
        Column("JOB", lambda one, at: one.job_name),
        Column("STATUS", lambda one, at: one.status),
        Column("TYPE", lambda one, at: one.type),
        Column("STARTED", lambda one, at: since(one.start_time, at), lambda one: exact(one.start_time)),
        Column("ENDED", lambda one, at: since(one.end_time, at), lambda one: exact(one.end_time)),
        Column("BY", lambda one, at: one.started_by),
        Column("VERSION", lambda one, at: one.deployment.job_version or "", wide=True),
        Column("MESSAGE", lambda one, at: one.message),
    ),
    lambda one: one.id,
    lambda one: _COLOURS.get(one.status),
)


def described(one: DataJobExecution) -> Iterator[str]:
    rows = {
        "execution": one.id,
        "job": one.job_name,
        "status": one.status,
        "type": one.type,
        "started": exact(one.start_time),
        "ended": exact(one.end_time),
        "started by": one.started_by,
        "version": one.deployment.job_version or "",
        "message": one.message,
    }
    return (one_line(f"{name:11} {value}") for name, value in rows.items() if value)
