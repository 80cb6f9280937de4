"""The service and the cluster in short: health, version, status, who I am, metrics, the description of the API."""

from __future__ import annotations

from typing import Final

from gpuyard.model.quantities import format_milli
from gpuyard.service.authorise import own_teams
from gpuyard.service.call import Answer, Call
from gpuyard.service.metrics import METRICS_MEDIA, metrics_text
from gpuyard.service.moments import moment
from gpuyard.service.openapi import openapi
from gpuyard.service.port import ManagerPort
from gpuyard.service.redact import Veil
from gpuyard.service.soundness import database_health
from gpuyard.service.views import device_objects, isolation_of, node_state
from gpuyard.wire.access import Permission
from gpuyard.wire.rest import Status, Version, Whoami
from gpuyard.worlds.standalone.lifecycle import JobState


async def livez(call: Call) -> Answer:
    return Answer()


async def readyz(call: Call) -> Answer:
    return Answer(status=200 if call.manager.ready else 503)


async def version(call: Call) -> Answer:
    return Answer(Version(call.service.settings.version))


async def metrics(call: Call) -> Answer:
    return Answer(
        text=metrics_text(call.manager, call.service.traffic, call.service.settings.version), media=METRICS_MEDIA
    )


async def describe(call: Call) -> Answer:
    return Answer(openapi(call.service.settings.version))


async def status(call: Call) -> Answer:
    """Numbers of the whole cluster; of single jobs it says nothing."""
    state, manager = call.state, call.manager
    veil = Veil(state, call.caller)
    devices = {name: list(device_objects(state, node, veil)) for name, node in state.nodes.items()}
    ready = [name for name, node in state.nodes.items() if node_state(state, node) == "ready"]
    free = [device.free_milli for name in ready for device in devices[name] if device.healthy]
    jobs = dict.fromkeys(JobState, 0)
    for job in state.jobs.values():
        jobs[job.state] += 1
    return Answer(
        Status(
            cluster=state.cluster,
            version=call.service.settings.version,
            database=manager.database,
            revision=state.seq,
            nodes=len(state.nodes),
            ready_nodes=len(ready),
            gpus=sum(map(len, devices.values())),
            free_gpus=format_milli(sum(free)),
            fake=any(device.fake for found in devices.values() for device in found),
            isolation=isolation_of(state),
            jobs={str(name): count for name, count in jobs.items() if count},
            last_cycle_ms=round(manager.stats.last_cycle_ms),
            cycles=manager.stats.cycles,
            started_at=moment(manager.stats.started_at_ms),
            warnings=(*call.service.settings.warnings, *_agent_warning(manager)),
            pool=manager.stats.pool,
            database_health=database_health(manager.soundness, detailed=call.caller.may(Permission.RUN_NODES)),
        )
    )


def _agent_warning(manager: ManagerPort) -> tuple[str, ...]:
    trouble = manager.stats.agent_trouble
    return (f"the agent of the manager's own machine does not run: {' '.join(trouble.split())}",) if trouble else ()


async def whoami(call: Call) -> Answer:
    state, caller = call.state, call.caller
    grants = state.users[caller.user].grants
    teams = own_teams(caller, state)
    return Answer(Whoami(caller.user, grants, caller.scope, teams, state.cluster, isolation_of(state)))


HANDLERS: Final = {
    "livez": livez,
    "readyz": readyz,
    "version": version,
    "metrics": metrics,
    "openapi": describe,
    "status": status,
    "whoami": whoami,
}
