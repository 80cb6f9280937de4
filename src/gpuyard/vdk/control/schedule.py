"""The schedule of a data job: deployed, enabled and with a cron expression, it is a recurring job of the manager.

Place in the flow: rest ─JobDefinition, as it will be─▶ **schedule** ─SetSchedule, RemoveSchedule─▶ manager. Whoever
deployed it last owns its runs. Invariant: after a change of a data job, the manager has its schedule if and only if it
is to run by itself, with the version that is deployed.
"""

from __future__ import annotations

from typing import Final

from gpuyard.errors import InputError, RefusedError
from gpuyard.files.cron import check_cron
from gpuyard.model.recurrence import Missed, Overlap, Recurrence
from gpuyard.service.call import Call
from gpuyard.service.problems import ProblemReason
from gpuyard.vdk.control.launch import Start, Vdk, submission
from gpuyard.vdk.control.state import JobDefinition, JobKey
from gpuyard.worlds.standalone.intents import RemoveSchedule, SetSchedule
from gpuyard.worlds.standalone.records import schedule_id

PREFIX: Final = "vdk."
"""In front of the job's name, which its team may also have given to a schedule of another kind."""
STARTED_BY: Final = "scheduled/gpuyard"
TIME_ZONE: Final = "UTC"
"""As VDK reads a schedule."""


def check_schedule(cron: str) -> None:
    """Refused when it is written, not only when it is deployed."""
    if not cron:
        return
    try:
        check_cron(cron, "schedule_cron")
    except InputError as error:
        fix = f"{error.fix}; or leave it empty"
        raise RefusedError(ProblemReason.BAD_FIELD, error.what, fix=fix, field="schedule_cron") from None


async def keep_schedule(call: Call, job: JobDefinition, vdk: Vdk) -> None:
    """Have the manager run the job by itself, or not any more."""
    deployment = job.deployment
    if deployment is None or not deployment.enabled or not job.schedule_cron:
        await drop_schedule(call, job.key)
        return
    recurrence = Recurrence(job.schedule_cron, TIME_ZONE, Overlap.SKIP, Missed.RUN_ONCE)
    run = submission(job, deployment, Start(call.caller.user, STARTED_BY), vdk)
    await call.manager.do(SetSchedule(job.key.team, schedule_name(job.key), recurrence, run), call.caller)


async def drop_schedule(call: Call, key: JobKey) -> None:
    """Its runs go on."""
    if schedule_id(key.team, schedule_name(key)) in call.state.schedules:
        await call.manager.do(RemoveSchedule(key.team, schedule_name(key)), call.caller)


def schedule_name(key: JobKey) -> str:
    return f"{PREFIX}{key.name}"
