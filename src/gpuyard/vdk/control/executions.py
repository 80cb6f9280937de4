"""Executions: the gpuyard jobs that carry out data jobs, in VDK's words.

Place in the flow: State ─JobRecord─▶ **executions** ─DataJobExecution─▶ vdkcli. Pure. An execution is known by the
labels the manager has put on its job; nothing else is kept about it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuyard.model.text import reason_text
from gpuyard.service.moments import moment, moment_or_none
from gpuyard.service.redact import Veil
from gpuyard.vdk.control.launch import (
    LABEL,
    PLATFORM_ERROR,
    PYTHON_LABEL,
    REQUIREMENTS_FAILED,
    SKIPPED,
    SOURCES_FAILED,
    STARTED_LABEL,
    VDK_LABEL,
    VDK_MISSING,
    VERSION_LABEL,
)
from gpuyard.vdk.control.state import JobKey
from gpuyard.wire.agents import Ending
from gpuyard.wire.data_jobs import DataJobDeployment, DataJobExecution
from gpuyard.worlds.standalone.lifecycle import OVER, JobState
from gpuyard.worlds.standalone.records import JobRecord, State

DEPLOYMENT: Final = "production"
"""VDK's command line knows this one alone."""

SUBMITTED: Final = "submitted"
RUNNING: Final = "running"
SUCCEEDED: Final = "succeeded"
CANCELLED: Final = "cancelled"
STATUSES: Final = (SUBMITTED, RUNNING, SUCCEEDED, CANCELLED, "skipped", "user_error", "platform_error")

_STATUS: Final[dict[JobState, str]] = {
    JobState.RUNNING: RUNNING,
    JobState.STOPPING: RUNNING,
    JobState.SUCCEEDED: SUCCEEDED,
    JobState.CANCELLED: CANCELLED,
}
_OF_PLATFORM: Final = frozenset({Ending.NOT_STARTED, Ending.LOST, Ending.LEASE_EXPIRED, Ending.STOPPED})
"""Endings that are none of the job's own doing."""
_CODES: Final[dict[int, tuple[str, str]]] = {
    SOURCES_FAILED: ("platform_error", "the sources could not be unpacked on machine {node}; its log says why"),
    VDK_MISSING: (
        "platform_error",
        "machine {node} has no program {vdk} that the job may run: install vdk-core there, where others can go, "
        "or start the manager with --vdk-command PATH",
    ),
    PLATFORM_ERROR: ("platform_error", "vdk found a fault of the platform; its log says which"),
    SKIPPED: ("skipped", "vdk skipped it; its log says why"),
    REQUIREMENTS_FAILED: (
        "user_error",
        "what requirements.txt names could not be installed on machine {node}; its log says why",
    ),
}


def label(record: JobRecord, key: str) -> str:
    return dict(record.form.labels).get(key, "")


def is_of(record: JobRecord, key: JobKey) -> bool:
    """Whether it is an execution of that data job."""
    return record.name == key.name and record.team == key.team and label(record, LABEL) == key.name


def executions_of(state: State, key: JobKey) -> Iterator[JobRecord]:
    """Newest first."""
    return (record for record in reversed(state.jobs.values()) if is_of(record, key))


def active(state: State, key: JobKey) -> JobRecord | None:
    """The execution of a job that is not over; it has one at most."""
    return next((record for record in executions_of(state, key) if record.state not in OVER), None)


def parcels_in_use(state: State) -> set[str]:
    """Archives that machines may still ask for."""
    running = (record.work for record in state.jobs.values() if record.state not in OVER)
    planned = (schedule.submission.work for schedule in state.schedules.values())
    return {work.parcel for work in (*running, *planned) if work.parcel}


def status_of(record: JobRecord) -> str:
    return _failure(record)[0] if record.state is JobState.FAILED else _STATUS.get(record.state, SUBMITTED)


def type_of(record: JobRecord) -> str:
    return "scheduled" if label(record, STARTED_LABEL).startswith("scheduled") else "manual"


def started_by(record: JobRecord) -> str:
    return f"{label(record, STARTED_LABEL)}/{record.user}"


def execution(record: JobRecord, veil: Veil) -> DataJobExecution:
    """For one reader."""
    return DataJobExecution(
        id=record.id,
        job_name=record.name,
        status=status_of(record),
        type=type_of(record),
        start_time=moment(record.started_at_ms or record.submitted_at_ms),
        end_time=moment_or_none(record.ended_at_ms),
        started_by=started_by(record),
        message=_message(record, veil),
        deployment=DataJobDeployment(
            id=DEPLOYMENT,
            job_version=label(record, VERSION_LABEL),
            vdk_version=label(record, VDK_LABEL) or None,
            python_version=label(record, PYTHON_LABEL) or None,
            enabled=True,
        ),
    )


def _message(record: JobRecord, veil: Veil) -> str:
    """How it ended, or why it does not run (any more)."""
    if record.state is JobState.SUCCEEDED:
        return "Success"
    if record.state is JobState.FAILED:
        return _failure(record)[1]
    if record.message or record.state is JobState.RUNNING or record.last_eviction is None:
        return record.message
    return f"it had to stop and starts again by itself: it {reason_text(veil.reason(record.last_eviction))}"


def _failure(record: JobRecord) -> tuple[str, str]:
    """Whose fault it is, and what happened."""
    task = record.tasks[0]
    node = task.ran_on[-1][1] if task.ran_on else "?"
    if task.ending is Ending.EXITED and record.exit_code in _CODES:
        status, text = _CODES[record.exit_code]
        return status, text.format(node=node, vdk=dict(record.work.env).get("GPUYARD_VDK_COMMAND", "vdk"))
    if task.ending in _OF_PLATFORM:
        return "platform_error", record.message
    return "user_error", f"a step of the job failed: its log says why ({record.message})"
