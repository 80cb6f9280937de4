"""The service and the cluster in short: health, version, status, who I am, metrics, the description of the API."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import msgspec

from gpuyard.errors import RefusedError
from gpuyard.model.quantities import format_milli
from gpuyard.service.authorise import own_teams
from gpuyard.service.call import Answer, Call
from gpuyard.service.metrics import METRICS_MEDIA, metrics_text
from gpuyard.service.moments import moment
from gpuyard.service.openapi import openapi
from gpuyard.service.port import ManagerPort
from gpuyard.service.problems import ProblemReason
from gpuyard.service.redact import Veil
from gpuyard.service.sentences import jump_text
from gpuyard.service.soundness import database_health
from gpuyard.service.views import device_objects, isolation_of, node_state
from gpuyard.wire.access import Permission
from gpuyard.wire.rest import Status, Version, Whoami
from gpuyard.worlds.standalone.lifecycle import JobState

CLOCK_WARNING_MS: Final = 24 * 3_600_000
"""So long `status` and `doctor` show a jump of the server's clock."""


async def livez(call: Call) -> Answer:
    return Answer()


async def readyz(call: Call) -> Answer:
    """While planning fails the service still answers, takes jobs, and lets run what runs: it is ready, and says so."""
    if call.manager.unready:
        fix = "try again; what runs goes on, and the log of the manager says more"
        raise RefusedError(ProblemReason.UNAVAILABLE, call.manager.unready, fix=fix)
    pause = call.manager.issues().pause
    return Answer() if pause is None else Answer(text=f"ready, but planning fails: {pause.fault.id} in the log\n")


async def version(call: Call) -> Answer:
    return Answer(Version(call.service.settings.version))


async def metrics(call: Call) -> Answer:
    return Answer(
        text=metrics_text(call.manager, call.service.traffic, call.service.settings.version), media=METRICS_MEDIA
    )


async def describe(call: Call) -> Answer:
    return Answer(text=_description(call.service.settings.version), media=call.operation.media)


@lru_cache(maxsize=1)
def _description(version: str) -> str:
    """It is long, and changes with the version only."""
    return msgspec.json.encode(openapi(version)).decode()


async def status(call: Call) -> Answer:
    """Numbers of the whole cluster; of single jobs it says nothing."""
    state, manager = call.state, call.manager
    veil = Veil(state, call.caller)
    devices = {name: list(device_objects(state, node, veil)) for name, node in state.nodes.items()}
    ready = [name for name, node in state.nodes.items() if node_state(state, node) == "ready"]
    issues = manager.issues().warnings(whole=veil.lifted)
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
            warnings=(
                *call.service.settings.warnings,
                *_unready_warning(manager),
                *_agent_warning(manager),
                *_clock_warnings(manager),
                *issues,
            ),
            pool=manager.stats.pool,
            database_health=database_health(manager.soundness, detailed=call.caller.may(Permission.RUN_NODES)),
        )
    )


def _unready_warning(manager: ManagerPort) -> tuple[str, ...]:
    return (f"nothing new is recorded: {manager.unready}",) if manager.unready else ()


def _agent_warning(manager: ManagerPort) -> tuple[str, ...]:
    trouble = manager.stats.agent_trouble
    return (f"the agent of the manager's own machine does not run: {' '.join(trouble.split())}",) if trouble else ()


def _clock_warnings(manager: ManagerPort) -> Iterator[str]:
    """Jumps of the last day: the newest, and how many there were before it."""
    recent = [jump for jump in manager.state.jumps if manager.now_ms() - jump.at_ms < CLOCK_WARNING_MS]
    if recent:
        newest = recent[-1]
        before = f"; {len(recent)} jumps within a day" * (len(recent) > 1)
        yield f"{jump_text(newest.by_ms)}, at {moment(newest.at_ms):%Y-%m-%dT%H:%M:%SZ}{before}"


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
