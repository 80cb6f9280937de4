"""State as the objects of the REST API. Pure: what a caller may not see is left out by the Veil that is passed in.

Place in the flow: State ─**views**─▶ wire.rest objects ─JSON─▶ the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import asdict

from gpuyard.model.explanation import Forecast, QueueStanding
from gpuyard.model.jobs import DeviceShare, Job, Request
from gpuyard.model.lending import lending
from gpuyard.model.nodes import Device, mig_slice_milli
from gpuyard.model.quantities import GPU, MILLI, format_bytes, format_milli
from gpuyard.model.queues import Queue
from gpuyard.model.reasons import Reason
from gpuyard.model.text import reason_text
from gpuyard.service.moments import moment, moment_or_none
from gpuyard.service.redact import Veil
from gpuyard.wire.access import EVERYWHERE
from gpuyard.wire.agents import Isolation, ProcessView
from gpuyard.wire.rest import (
    DeviceObject,
    HolderObject,
    JobDetail,
    JobObject,
    MemberObject,
    NodeObject,
    TaskObject,
    TeamObject,
    TokenObject,
    Why,
)
from gpuyard.worlds.standalone.lifecycle import OVER, PLACED, JobState, TaskPhase
from gpuyard.worlds.standalone.records import JobRecord, NodeRecord, State, TaskRecord, TokenRecord, jobs_on

MIB: Final = 1 << 20
_WAITING: Final = frozenset({JobState.WAITING, JobState.STARTING, JobState.RUNNING})
"""Of these the last cycle may have said why they, or more of their tasks, wait."""


# ---------------------------------------------------------------------------------------------------------------- jobs


class Outlook(msgspec.Struct, frozen=True):
    """What is known of a job beside its record: what the scheduler and its machines last said."""

    reasons: tuple[Reason, ...] = ()
    forecast: Forecast | None = None
    gpu_use: dict[int, int] = {}
    """Task → per cent its GPUs are used."""


NO_OUTLOOK: Final = Outlook()


def job_object(job: JobRecord, veil: Veil, outlook: Outlook = NO_OUTLOOK) -> JobObject:
    forecast = outlook.forecast
    return JobObject(
        id=job.id,
        name=job.name,
        team=job.team,
        user=job.user,
        state=job.state,
        gpus=gpus_text(job.form),
        tasks=len(job.tasks),
        min_tasks=min(job.form.group.fewest_tasks, len(job.tasks)),
        tasks_per_node=tasks_per_node(job.form),
        running_tasks=sum(task.phase is TaskPhase.RUNNING for task in job.tasks),
        nodes=_nodes(job.tasks),
        priority=job.form.priority,
        preemptible=job.form.preemptible,
        submitted_at=moment(job.submitted_at_ms),
        revision=job.revision,
        started_at=moment_or_none(job.started_at_ms),
        ended_at=moment_or_none(job.ended_at_ms),
        starts_at=moment_or_none(forecast.p50_ms if forecast else None),
        starts_by=moment_or_none(forecast.p90_ms if forecast else None),
        why=tuple(_why(job, veil, outlook)),
        restarts=job.restarts,
        exit_code=job.exit_code,
        run_limit_ms=job.form.run_limit_ms,
        labels=dict(job.form.labels),
        array=job.array,
        array_index=job.array_index,
        after=tuple(map(veil.name, job.after)),
        afterok=tuple(map(veil.name, job.afterok)),
        idle_since=moment_or_none(job.idle_since_ms),
        reclaimable=job.reclaimable,
        run_started_at=moment_or_none(min((task.started_at_ms for task in job.tasks if task.started_at_ms), default=0)),
        schedule=job.schedule,
        planned_at=moment_or_none(job.planned_at_ms),
    )


def job_detail(job: JobRecord, veil: Veil, outlook: Outlook, *, secrets: bool) -> JobDetail:
    work = job.work
    return JobDetail(
        **asdict(job_object(job, veil, outlook)),
        task_list=tuple(_task(index, task, outlook.gpu_use.get(index)) for index, task in enumerate(job.tasks)),
        command=work.command if secrets else None,
        env=dict(work.env) if secrets else None,
        workdir=work.workdir if secrets else None,
        checkpoint=work.checkpoint if secrets else None,
        on_node_lost=work.on_node_lost,
        retries=work.retries,
        grace_ms=work.grace_ms,
    )


def _task(index: int, task: TaskRecord, gpu_percent: int | None) -> TaskObject:
    place = task.place
    running = task.phase in PLACED
    return TaskObject(
        task=index,
        phase=task.phase,
        attempt=task.attempt,
        node=place.node if place else "",
        devices=tuple(sorted({share.device for share in place.shares})) if place else (),
        started_at=moment_or_none(task.started_at_ms),
        ended_at=None if running else moment_or_none(task.ended_at_ms),
        ending="" if running else str(task.ending or ""),
        exit_code=None if running else task.exit_code,
        message="" if running else task.message,
        gpu_percent=gpu_percent if running else None,
    )


def _nodes(tasks: Iterable[TaskRecord]) -> tuple[str, ...]:
    return tuple(sorted({task.place.node for task in tasks if task.place is not None and task.phase in PLACED}))


def tasks_per_node(form: Job) -> int:
    """How many tasks it has on each of its nodes; 0 where it does not say."""
    return form.group.children[0].min_tasks if form.group.node_each else 0


def _why(job: JobRecord, veil: Veil, outlook: Outlook) -> Iterator[Why]:
    """Why it waits; where that is not known yet, why it last had to give way; or why it ended."""
    waits = list(_why_it_waits(job, veil, outlook))
    yield from waits
    if waits:
        return
    if job.why is not None:
        yield _said(veil.reason(job.why))
    elif job.state is JobState.WAITING and job.last_eviction is not None:
        yield _said(veil.reason(job.last_eviction))
    if job.message:
        yield Why(str(job.state).capitalize(), job.message)


def _why_it_waits(job: JobRecord, veil: Veil, outlook: Outlook) -> Iterator[Why]:
    if job.state is JobState.BLOCKED:
        yield _blocked(job, veil)
    if job.state is JobState.HELD:
        yield Why("Held", "it is held: release it to let it wait for its turn")
    if job.state in _WAITING:
        yield from (_said(reason) for reason in veil.reasons(outlook.reasons))


def _said(reason: Reason) -> Why:
    return Why(reason.token, reason_text(reason), reason.never)


def _blocked(job: JobRecord, veil: Veil) -> Why:
    ids = [veil.name(id) for id in (*job.after, *job.afterok)]
    if ids:
        return Why("Dependency", f"it waits for {'job' if len(ids) == 1 else 'jobs'} {', '.join(ids[:10])}")
    return Why("ArrayFull", f"it waits for its turn in array {job.array}")


def gpus_text(form: Job) -> str:
    """What all its tasks ask for together: `4`, `0.5`, `6Gi`, `2x1g.10gb`, or several of these."""
    if form.group.leaf and form.tasks:
        return _amount_text([(form.tasks[0].request, len(form.tasks))])
    return _amount_text([(task.request, 1) for task in form.tasks])


def _amount_text(asked: Sequence[tuple[Request, int]]) -> str:
    milli = sum(request.devices * request.gpu_milli * count for request, count in asked)
    memory = sum(request.devices * request.gpu_memory_mib * count for request, count in asked)
    slices: dict[str, int] = {}
    for request, count in asked:
        for profile, number in request.mig:
            slices[profile] = slices.get(profile, 0) + number * count
    parts = [format_milli(milli)] if milli else []
    parts += [format_bytes(memory * MIB)] if memory else []
    parts += [f"{number}x{profile}" for profile, number in sorted(slices.items())]
    return " + ".join(parts) or "0"


# --------------------------------------------------------------------------------------------------- machines and GPUs


def device_objects(state: State, node: NodeRecord, veil: Veil) -> Iterator[DeviceObject]:
    holders = _holders(state, node, veil)
    for index, device in enumerate(node.facts.devices):
        held = holders.get(index, [])
        yield DeviceObject(
            node=node.name,
            index=index,
            id=device.id,
            model=device.model,
            memory_mib=device.memory_mib,
            healthy=device.healthy,
            free_milli=max(MILLI - sum(one.gpu_milli for one in held), 0),
            free_memory_mib=max(device.memory_mib - sum(one.memory_mib for one in held), 0),
            holders=tuple(held),
            fake=node.facts.fake,
        )


def _holders(state: State, node: NodeRecord, veil: Veil) -> dict[int, list[HolderObject]]:
    found: dict[int, list[HolderObject]] = {}
    for job in jobs_on(state, node.name):
        seen = veil.sees(job.id)
        for index, task in enumerate(job.tasks):
            if task.place is None or task.place.node != node.name or task.phase not in PLACED:
                continue
            for share in task.place.shares:
                milli = milli_of(share, node.facts.devices)
                holder = HolderObject(job.team, milli, share.memory_mib, job.id if seen else "", index if seen else 0)
                found.setdefault(share.device, []).append(holder)
    return found


def milli_of(share: DeviceShare, devices: tuple[Device, ...]) -> int:
    if share.mig:
        return mig_slice_milli(share.mig)
    if share.gpu_milli or share.device >= len(devices):
        return share.gpu_milli
    memory = devices[share.device].memory_mib
    return -(-MILLI * share.memory_mib // memory) if memory else 0


def node_object(state: State, node: NodeRecord, veil: Veil, heard_at_ms: int) -> NodeObject:
    """`heard_at_ms`: when it was last heard of, as far as this manager knows, which may be younger than its silence."""
    devices = list(device_objects(state, node, veil))
    facts = node.facts
    known = [heard_at_ms, *([node.silent_since_ms] if node.silent_since_ms is not None else [])]
    seen_ms = min(known) if node.seen else None
    return NodeObject(
        name=node.name,
        state=node_state(state, node),
        gpus=len(devices),
        free_gpus=format_milli(sum(device.free_milli for device in devices if device.healthy)),
        models=tuple(sorted({device.model for device in devices})),
        cpu_milli=facts.cpu_milli,
        memory_bytes=facts.memory_bytes,
        tasks=_tasks_on(state, node),
        fake=facts.fake,
        isolation=facts.isolation,
        labels={**facts.labels, **dict(node.labels)},
        version=node.version,
        address=facts.address,
        last_seen_at=moment_or_none(seen_ms),
        trouble=facts.trouble,
        cores_kept=facts.cores_kept,
        memory_kept=facts.memory_kept,
        limits_note=facts.limits_note,
        unhealthy=node.unhealthy,
        revision=node.revision,
        process_view=facts.process_view,
        process_note=_process_note(node),
    )


def _process_note(node: NodeRecord) -> str:
    if node.facts.process_note or node.facts.process_view is ProcessView.ISOLATED:
        return node.facts.process_note
    return "its agent is of a version that does not say why; update it" if node.seen else ""


def _tasks_on(state: State, node: NodeRecord) -> int:
    return sum(
        task.place is not None and task.place.node == node.name and task.phase in PLACED
        for job in jobs_on(state, node.name)
        for task in job.tasks
    )


def node_state(state: State, node: NodeRecord) -> str:
    """ready, unhealthy, silent, draining, drained, lost or new."""
    if not node.seen:
        return "new"
    if node.lost:
        return "lost"
    if node.silent_since_ms is not None:
        return "silent"
    if node.unhealthy:
        return "unhealthy"
    if node.drained:
        return "draining" if state.placed.get(node.name) else "drained"
    return "ready"


def isolation_of(state: State) -> str:
    """The weakest of all machines; before there is one, what the manager's own will have."""
    seen: set[Isolation | None] = {node.facts.isolation for node in state.nodes.values() if node.seen}
    return str(Isolation.USERS if (seen or {state.isolation}) == {Isolation.USERS} else Isolation.NONE)


# --------------------------------------------------------------------------------------------------------------- teams


class Counts(msgspec.Struct):
    """Jobs of a queue and all below it."""

    running: int = 0
    waiting: int = 0


def team_objects(state: State, standings: Iterable[QueueStanding]) -> list[TeamObject]:
    """The whole tree, parents before their children; members are left out."""
    by_name = {standing.name: standing for standing in standings}
    counts = _job_counts(state)
    lent = lent_milli(state, by_name)
    return [_team(state, queue, by_name.get(queue.name), counts[queue.name], lent) for queue in state.queues]


def _team(
    state: State, queue: Queue, standing: QueueStanding | None, counts: Counts, lent: dict[str, int]
) -> TeamObject:
    share = queue.share(GPU)
    record = state.teams.get(queue.name)
    held = standing.held_milli if standing else 0
    return TeamObject(
        name=queue.name,
        parent=queue.parent,
        leaf=record is not None,
        quota=None if share.quota is None else format_milli(share.quota),
        limit=None if share.limit is None else format_milli(share.limit),
        weight=format_milli(share.weight_milli),
        priority=queue.priority,
        held=format_milli(held),
        borrowed=format_milli(max(held - share.quota, 0) if share.quota is not None else 0),
        lent=format_milli(lent.get(queue.name, 0)),
        waiting=format_milli(standing.asked_milli if standing else 0),
        fair_share=format_milli(standing.fair_share_milli if standing else 0),
        running_jobs=counts.running,
        waiting_jobs=counts.waiting,
        idle_limit_ms=record.idle_limit_ms if record else None,
        idle_percent=record.idle_percent if record else 5,
        revision=state.teams_revision,
    )


def lent_milli(state: State, standings: dict[str, QueueStanding]) -> dict[str, int]:
    """What each team lends."""
    quotas = {queue.name: queue.share(GPU).quota for queue in state.queues if queue.name in state.teams}
    held = {name: standings[name].held_milli if name in standings else 0 for name in quotas}
    return lending(quotas, held)


def _job_counts(state: State) -> dict[str, Counts]:
    counts = {queue.name: Counts() for queue in state.queues}
    parents = {queue.name: queue.parent for queue in state.queues}
    for job in state.jobs.values():
        if job.state in OVER:
            continue
        in_place = any(task.phase in PLACED for task in job.tasks)
        name: str | None = job.team
        while name is not None and name in counts:
            counts[name].running += in_place
            counts[name].waiting += not in_place
            name = parents[name]
    return counts


def members_of(state: State, team: str) -> tuple[MemberObject, ...]:
    """Everybody with a role in a team; those with a role in the whole cluster are not members."""
    return tuple(
        MemberObject(user.name, grant.role)
        for user in sorted(state.users.values(), key=lambda user: user.name)
        for grant in user.grants
        if grant.team == team and grant.team != EVERYWHERE
    )


# -------------------------------------------------------------------------------------------------------------- people


def token_object(token: TokenRecord, last_used_ms: int | None) -> TokenObject:
    return TokenObject(
        id=token.id,
        name=token.name,
        user=token.user,
        scope=token.scope,
        created_at=moment(token.created_at_ms),
        expires_at=moment(token.expires_at_ms),
        revoked=token.revoked or token.used,
        last_used_at=moment_or_none(last_used_ms),
    )
