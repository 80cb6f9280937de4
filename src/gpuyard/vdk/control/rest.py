"""Data jobs over REST: definitions, sources, deployments, properties. Executions: execution_rest.py.

Place in the flow: routing ─Call─▶ **rest** ─▶ desk ─▶ register.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from msgspec.structs import replace

from gpuyard.errors import RefusedError
from gpuyard.service.authorise import not_allowed
from gpuyard.service.call import Answer, Call
from gpuyard.service.handlers import Handler
from gpuyard.service.moments import moment
from gpuyard.service.problems import ProblemReason
from gpuyard.service.rights import admitted_again
from gpuyard.service.turns import Turns
from gpuyard.vdk.control.desk import Desk, check, sees
from gpuyard.vdk.control.executions import (
    DEPLOYMENT,
    active,
    executions_of,
    parcels_in_use,
    started_by,
    status_of,
    type_of,
)
from gpuyard.vdk.control.launch import Vdk
from gpuyard.vdk.control.needs import Needs, read_needs
from gpuyard.vdk.control.query import Query, read_query
from gpuyard.vdk.control.register import known_version
from gpuyard.vdk.control.schedule import check_schedule, drop_schedule, keep_schedule
from gpuyard.vdk.control.sources import CONFIG_FILE, as_zip, unpacked_zip
from gpuyard.vdk.control.state import Deployment, JobDefinition, JobKey, Version
from gpuyard.wire.access import Permission
from gpuyard.wire.data_jobs import (
    DataJob,
    DataJobApiInfo,
    DataJobConfig,
    DataJobDeployment,
    DataJobDeploymentStatus,
    DataJobPage,
    DataJobQueryResponse,
    DataJobVersion,
    Schedule,
)
from gpuyard.worlds.standalone.checks import leaf_of
from gpuyard.worlds.standalone.records import JobRecord

NAME: Final = re.compile(r"[a-z][a-z0-9-]{4,44}")
MAX_DESCRIPTION: Final = 4_096
MAX_REASON: Final = 1_024
MAX_VERSION_NAME: Final = 100
MAX_NAMES_NOTED: Final = 20
MAX_CRON: Final = 200
_RECENT: Final = 5
"""Executions that a list of data jobs shows."""


class JobsDesk:
    """The handlers of data jobs."""

    def __init__(self, desk: Callable[[], Awaitable[Desk]], vdk: Vdk) -> None:
        self._desk = desk
        self._vdk = vdk
        self._turns = Turns(1, "a change of data jobs")
        reading: dict[str, Handler] = {
            "data_jobs_info": self.info,
            "query_data_jobs": self.query,
            "get_data_job": self.get,
            "download_sources": self.download,
            "list_deployments": self.list_deployments,
            "get_deployment": self.get_deployment,
            "get_properties": self.get_properties,
        }
        changing: dict[str, Handler] = {
            "create_data_job": self.create,
            "set_data_job": self.set,
            "delete_data_job": self.delete,
            "upload_sources": self.upload,
            "deploy_data_job": self.deploy,
            "patch_deployment": self.patch_deployment,
            "remove_deployment": self.remove_deployment,
            "set_properties": self.set_properties,
        }
        in_turn = {name: self._in_turn(handler) for name, handler in changing.items()}
        self.handlers: Final[dict[str, Handler]] = {**reading, **in_turn}

    def _in_turn(self, handler: Handler) -> Handler:
        """One change after the other: each reads what the one before it left, and its schedule fits."""

        async def taken(call: Call) -> Answer:
            async with self._turns.turn(call.caller.user):
                return await handler(admitted_again(call))

        return taken

    # ---------------------------------------------------------------------------------------------------- definitions

    async def info(self, call: Call) -> Answer:
        check(call, call.path["team"])
        return Answer(DataJobApiInfo(f"gpuyard {call.service.settings.version}", ()))

    async def query(self, call: Call) -> Answer:
        query = read_query(call.text("query"))
        desk = await self._desk()
        found = await desk.do(lambda register: register.jobs())
        seen = [job for job in found if sees(call.caller, job.key.team) and query.accepts(job.key.team, job.key.name)]
        seen.sort(key=lambda job: job.key)
        first = (query.page - 1) * query.size
        page = seen[first : first + query.size]
        content = tuple(_listed(call, job, query) for job in page)
        return Answer(DataJobQueryResponse(DataJobPage(content, len(seen), -(-len(seen) // query.size))))

    async def create(self, call: Call) -> Answer:
        body, team = _definition(call), leaf_of(call.state, call.path["team"])
        check(call, team)
        if not NAME.fullmatch(body.job_name):
            what = f'"{body.job_name[:80]}" cannot be the name of a data job'
            fix = "5 to 45 small letters, digits and dashes, a letter first"
            raise RefusedError(ProblemReason.BAD_NAME, what, fix=fix, field="job_name")
        job = JobDefinition(
            key=JobKey(team, body.job_name),
            created_at_ms=call.manager.now_ms(),
            created_by=call.caller.user,
            description=body.description or "",
            config=body.config or DataJobConfig(),
        )
        await (await self._desk()).do(lambda register: register.create(job))
        return await _noted(call, job.key, "made")

    async def get(self, call: Call) -> Answer:
        job = await (await self._desk()).job(call)
        return Answer(DataJob(job.key.name, job.description, job.config, job.key.team))

    async def set(self, call: Call) -> Answer:
        body, desk = _definition(call), await self._desk()
        job = await desk.job(call)
        if body.job_name != job.key.name or body.team not in (None, job.key.team):
            what = f"the body is about {body.team}/{body.job_name[:80]}, the path about {job.key}"
            fix = "a data job keeps its name and team: make another one"
            raise RefusedError(ProblemReason.BAD_FIELD, what, fix=fix, field="job_name")
        changed = replace(job, description=body.description or "", config=body.config or job.config)
        if changed.schedule_cron != job.schedule_cron:
            await keep_schedule(call, changed, self._vdk)
        await desk.do(lambda register: register.put(changed, call.manager.now_ms()))
        return await _noted(call, job.key, "its definition is changed")

    async def delete(self, call: Call) -> Answer:
        desk = await self._desk()
        job = await desk.job(call)
        runs = active(call.state, job.key)
        if runs is not None:
            what = f'data job "{job.key.name}" has an execution that is not over: {runs.id}'
            fix = f"cancel it first: vdkcli execute --cancel -n {job.key.name} -t {job.key.team} -i {runs.id}"
            raise RefusedError(ProblemReason.DATA_JOB_RUNS, what, fix=fix)
        await drop_schedule(call, job.key)
        await desk.do(lambda register: register.remove(job.key, call.manager.now_ms()))
        return await _noted(call, job.key, "taken away, with its sources and properties")

    # -------------------------------------------------------------------------------------------------------- sources

    async def upload(self, call: Call) -> Answer:
        desk = await self._desk()
        job = await desk.job(call)
        upload = call.upload
        assert upload is not None
        sources = await asyncio.to_thread(lambda: unpacked_zip(upload.read()))
        needs = read_needs(sources.text(CONFIG_FILE) or "")
        _check_priority(call, job, needs)
        reason, now_ms = call.text("reason")[:MAX_REASON], call.manager.now_ms()
        version = Version(sources.version, now_ms, call.caller.user, needs, reason)
        in_use = parcels_in_use(call.state)
        await desk.do(lambda register: register.upload(job.key, sources, version, in_use))
        await _noted(call, job.key, f"version {version.digest} is uploaded{f': {reason}' if reason else ''}")
        return Answer(DataJobVersion(version.digest))

    async def download(self, call: Call) -> Answer:
        desk = await self._desk()
        job = await desk.job(call)
        digest = job.deployment.digest if job.deployment else job.versions[-1].digest if job.versions else ""
        archive = await desk.archive(digest)
        if archive is None:
            what = f'data job "{job.key.name}" has no sources'
            raise RefusedError(ProblemReason.DATA_JOB_VERSION_UNKNOWN, what, fix="upload them: vdkcli deploy")
        packed = await asyncio.to_thread(as_zip, archive, job.key.name)
        return Answer(stream=_once(packed), target=lambda again: check(again, job.key.team))

    # ---------------------------------------------------------------------------------------------------- deployments

    async def list_deployments(self, call: Call) -> Answer:
        job = await (await self._desk()).job(call)
        return Answer((_status(job, job.deployment),) if job.deployment else ())

    async def get_deployment(self, call: Call) -> Answer:
        job = await (await self._desk()).job(call)
        return Answer(_status(job, deployment_of(job)))

    async def deploy(self, call: Call) -> Answer:
        job = await (await self._desk()).job(call)
        return await self._deploy(call, job, job.deployment)

    async def patch_deployment(self, call: Call) -> Answer:
        job = await (await self._desk()).job(call)
        return await self._deploy(call, job, deployment_of(job))

    async def _deploy(self, call: Call, job: JobDefinition, before: Deployment | None) -> Answer:
        """What the request leaves out stays as it was."""
        asked = call.value
        assert isinstance(asked, DataJobDeployment)
        deployment = Deployment(
            digest=asked.job_version or (before.digest if before else _newest(job)),
            enabled=asked.enabled if asked.enabled is not None else before.enabled if before else True,
            deployed_at_ms=call.manager.now_ms(),
            deployed_by=call.caller.user,
            vdk_version=_short(asked.vdk_version, before.vdk_version if before else ""),
            python_version=_short(asked.python_version, before.python_version if before else ""),
        )
        _check_priority(call, job, known_version(job, deployment.digest).needs)
        # First, because it may be refused; a schedule without its deployment is put right by the next.
        await keep_schedule(call, replace(job, deployment=deployment), self._vdk)
        await (await self._desk()).do(lambda register: register.deploy(job.key, deployment))
        enabled = "enabled" if deployment.enabled else "disabled"
        return await _noted(call, job.key, f"version {deployment.digest} is deployed, {enabled}")

    async def remove_deployment(self, call: Call) -> Answer:
        desk = await self._desk()
        job = await desk.job(call)
        deployment_of(job)
        await drop_schedule(call, job.key)
        await desk.do(lambda register: register.undeploy(job.key, call.manager.now_ms()))
        return await _noted(call, job.key, "not deployed any more")

    # ----------------------------------------------------------------------------------------------------- properties

    async def get_properties(self, call: Call) -> Answer:
        desk = await self._desk()
        job = await desk.job(call)
        return Answer(await desk.do(lambda register: register.properties(job.key)))

    async def set_properties(self, call: Call) -> Answer:
        desk = await self._desk()
        job = await desk.job(call)
        assert isinstance(call.value, dict)
        properties: dict[str, Any] = call.value
        await desk.do(lambda register: register.set_properties(job.key, properties, call.manager.now_ms()))
        # Values may be passwords, and names of them are enough to ask who changed what.
        names = ", ".join(list(properties)[:MAX_NAMES_NOTED])
        return await _noted(call, job.key, f"its properties are written: {names[:MAX_REASON] or 'none'}")


async def _noted(call: Call, key: JobKey, what: str) -> Answer:
    """For the audit; the answer to a change that has none of its own."""
    await call.manager.note(f"data-job/{key}", what, key.team, call.caller)
    return Answer()


def deployment_of(job: JobDefinition) -> Deployment:
    if job.deployment is None:
        what = f'data job "{job.key.name}" is not deployed'
        fix = f"vdkcli deploy -n {job.key.name} -t {job.key.team} -p FOLDER"
        raise RefusedError(ProblemReason.DATA_JOB_NOT_DEPLOYED, what, fix=fix)
    return job.deployment


def _definition(call: Call) -> DataJob:
    body = call.value
    assert isinstance(body, DataJob)
    cron = body.config.schedule.schedule_cron if body.config and body.config.schedule else None
    check_schedule((cron or "").strip()[:MAX_CRON])
    for field, text, most in (("description", body.description, MAX_DESCRIPTION), ("schedule_cron", cron, MAX_CRON)):
        if text and len(text) > most:
            what = f"{field} has {len(text)} characters, and {most} is the most"
            raise RefusedError(ProblemReason.BAD_FIELD, what, fix="shorten it", field=field)
    return body


def _check_priority(call: Call, job: JobDefinition, needs: Needs) -> None:
    """Told when it is deployed, not only when it is started."""
    if needs.priority and not call.caller.may(Permission.RAISE_PRIORITY, team=job.key.team, owner=call.caller.user):
        what = f"{CONFIG_FILE}: priority = true needs a lead of team {job.key.team}"
        raise not_allowed(what, "gpuyard.priority")


def _newest(job: JobDefinition) -> str:
    if not job.versions:
        raise RefusedError(
            ProblemReason.DATA_JOB_VERSION_UNKNOWN,
            f'data job "{job.key.name}" has no sources to deploy',
            fix=f"vdkcli deploy -n {job.key.name} -t {job.key.team} -p FOLDER",
        )
    return job.versions[-1].digest


def _short(given: str | None, before: str) -> str:
    return (given or before)[:MAX_VERSION_NAME]


def _status(job: JobDefinition, deployment: Deployment) -> DataJobDeploymentStatus:
    return DataJobDeploymentStatus(
        id=DEPLOYMENT,
        job_version=deployment.digest,
        enabled=deployment.enabled,
        last_deployed_by=deployment.deployed_by,
        last_deployed_date=moment(deployment.deployed_at_ms).isoformat(),
        vdk_version=deployment.vdk_version or None,
        python_version=deployment.python_version or None,
        contacts=job.config.contacts,
        schedule=Schedule(job.schedule_cron),
    )


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


# --------------------------------------------------------------------------------------------------------------- lists


def _listed(call: Call, job: JobDefinition, query: Query) -> dict[str, Any]:
    """A data job as a query wants it: only the fields it names are there."""
    config: dict[str, Any] = {"team": job.key.team, "description": job.description}
    config["schedule"] = {"scheduleCron": job.schedule_cron}
    if query.wants("contacts"):
        config["contacts"] = _contacts(job)
    deployments = [_listed_deployment(call, job, job.deployment, query)] if job.deployment else []
    return {"jobName": job.key.name, "config": config, "deployments": deployments}


def _contacts(job: JobDefinition) -> dict[str, list[str]]:
    contacts = job.config.contacts
    return {
        "notifiedOnJobSuccess": list(contacts.notified_on_job_success or ()) if contacts else [],
        "notifiedOnJobDeploy": list(contacts.notified_on_job_deploy or ()) if contacts else [],
        "notifiedOnJobFailureUserError": list(contacts.notified_on_job_failure_user_error or ()) if contacts else [],
        "notifiedOnJobFailurePlatformError": (
            list(contacts.notified_on_job_failure_platform_error or ()) if contacts else []
        ),
    }


def _listed_deployment(call: Call, job: JobDefinition, deployment: Deployment, query: Query) -> dict[str, Any]:
    listed: dict[str, Any] = {"id": DEPLOYMENT, "enabled": deployment.enabled, "status": "SUCCESS"}
    if query.wants("jobVersion"):
        listed |= {
            "jobVersion": deployment.digest,
            "lastDeployedBy": deployment.deployed_by,
            "lastDeployedDate": moment(deployment.deployed_at_ms).isoformat(),
        }
    if query.wants("executions"):
        newest = [one for one, _ in zip(executions_of(call.state, job.key), range(_RECENT), strict=False)]
        listed["executions"] = [_listed_execution(one) for one in newest]
    return listed


def _listed_execution(record: JobRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "type": type_of(record),
        "status": status_of(record),
        "startTime": moment(record.started_at_ms or record.submitted_at_ms).isoformat(),
        "endTime": moment(record.ended_at_ms).isoformat() if record.ended_at_ms else None,
        "startedBy": started_by(record),
    }
