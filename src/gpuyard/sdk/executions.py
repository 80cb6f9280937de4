"""Executions of VDK's data jobs as calls: either client sends them.

    client.send(executions.start("vision", "train-model", {"epochs": 3}))

Data jobs are made and deployed with VDK's own command line; to start and to look at them needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gpuyard.sdk.calls import Call, call
from gpuyard.wire.data_jobs import DataJobExecution, DataJobExecutionLogs, DataJobExecutionRequest

DEPLOYMENT: Final = "production"
STARTED_BY: Final = "manual/gpuyard"


def start(team: str, job: str, arguments: Mapping[str, Any] | None = None) -> Call[DataJobExecution]:
    """Start it now, or be told why it cannot: nothing is queued. Done at most once, however often it is sent."""
    path = {"team": team, "name": job, "deployment": DEPLOYMENT}
    return call("start_execution", path=path, body=DataJobExecutionRequest(STARTED_BY, dict(arguments or {})))


def list_all(team: str, job: str) -> Call[tuple[DataJobExecution, ...]]:
    """Newest first."""
    return call("list_executions", path={"team": team, "name": job})


def get(team: str, job: str, id: str) -> Call[DataJobExecution]:
    return call("get_execution", path={"team": team, "name": job, "id": id})


def cancel(team: str, job: str, id: str) -> Call[None]:
    return call("cancel_execution", path={"team": team, "name": job, "id": id})


def logs(team: str, job: str, id: str, *, tail_lines: int = 0) -> Call[DataJobExecutionLogs]:
    return call("execution_logs", path={"team": team, "name": job, "id": id}, query={"tail_lines": tail_lines})
