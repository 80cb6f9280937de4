"""What should run on a machine, made of the state: the message an agent gets whenever it changes.

Place in the flow: State ─**desired**─▶ Assignment ─stream─▶ agent. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from gpuyard.model.reasons import Reason
from gpuyard.model.text import reason_text
from gpuyard.wire.agents import Assignment, AttemptId, Isolation, RunAs, Stop
from gpuyard.worlds.standalone.lifecycle import PLACED, TaskPhase
from gpuyard.worlds.standalone.records import JobRecord, NodeRecord, State, TaskRecord, jobs_on, on_machine
from gpuyard.worlds.standalone.slurm import slurm_variables
from gpuyard.worlds.standalone.snapshot import SHADOW

FIRST_PORT: Final = 29_500
PORTS: Final = 2_000
"""Where tasks of a job meet: one port per job, the same again only after so many jobs."""
LOOPBACK: Final = "127.0.0.1"

MAX_NEW_CHARACTERS: Final = 2 << 20
"""Of what is new to a machine in one message: as bytes at most four times as much, and a message may have more."""
SMALL_CHARACTERS: Final = 256
"""About what an assignment takes besides its command and variables."""


def assignments(
    state: State, name: str, known: Container[AttemptId] = (), given: Container[AttemptId] = ()
) -> tuple[Assignment, ...]:
    """Everything that should run or end there; of what is new as much as one message holds, the rest after that.

    What the agent has `known` since this session began is only named. What it was `given` in this session and may have
    started stays, whatever else is new: it would be ended if it were left out.
    """
    node = state.nodes[name]
    told: list[tuple[JobRecord, int]] = []
    new: list[tuple[JobRecord, int]] = []
    for job in jobs_on(state, name):
        for index in on_machine(job, name):
            # What was given to a former agent is not given to this one: it may still run.
            if job.tasks[index].host == node.incarnation:
                (told if _id(job, index) in known else new).append((job, index))
    named = [_named(state, job, index) for job, index in told]
    new.sort(key=lambda one: _id(*one) not in given)
    return (*named, *_as_many_as_fit(state, node, new, given))


def _as_many_as_fit(
    state: State, node: NodeRecord, new: list[tuple[JobRecord, int]], given: Container[AttemptId]
) -> Iterator[Assignment]:
    left = MAX_NEW_CHARACTERS
    for job, index in new:
        if left <= 0 and _id(job, index) not in given:
            return
        made = _assignment(state, node, job, index)
        left -= SMALL_CHARACTERS + sum(map(len, (*made.command, *made.checkpoint, *made.env, *made.env.values())))
        yield made


def _id(job: JobRecord, index: int) -> AttemptId:
    return AttemptId(job.id, index, job.tasks[index].attempt)


def _named(state: State, job: JobRecord, index: int) -> Assignment:
    """Of what is there already all that still matters: whether it must stop."""
    return Assignment(_id(job, index), job.name, job.team, job.user, (), stop=_stop(state, job, job.tasks[index]))


def _assignment(state: State, node: NodeRecord, job: JobRecord, index: int) -> Assignment:
    task, work, request = job.tasks[index], job.work, job.form.tasks[index].request
    return Assignment(
        id=_id(job, index),
        job_name=job.name,
        team=job.team,
        user=job.user,
        command=work.command,
        env=variables(state, job, index),
        workdir=work.workdir,
        shares=task.place.shares if task.place else (),
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        run_as=run_as(state, job) if node.facts.isolation is Isolation.USERS else None,
        run_limit_ms=job.form.run_limit_ms or 0,
        grace_ms=work.grace_ms,
        notice_signal=work.notice_signal,
        checkpoint=work.checkpoint,
        parcel=work.parcel,
        stop=_stop(state, job, task),
    )


def _stop(state: State, job: JobRecord, task: TaskRecord) -> Stop | None:
    if task.phase is not TaskPhase.STOPPING:
        return None
    why = _for_its_team(state, job, task.why) if task.why else None
    text = job.message or (reason_text(why) if why else "") or "it was asked to stop"
    return Stop(text, str(why.token) if why else "", job.work.grace_ms)


def _for_its_team(state: State, job: JobRecord, why: Reason) -> Reason:
    """The notice is read by the job, and comes back as the message of its ending: it names no job of another team."""
    other = state.jobs.get(why.beneficiary.removesuffix(SHADOW)) if why.beneficiary else None
    if other is None or other.team == job.team:
        return why
    return replace(why, beneficiary=f"hidden (team {other.team})")


def run_as(state: State, job: JobRecord) -> RunAs:
    """The account an operator has given to the submitter, else to the team; else the submitter's own number."""
    user, team = state.users.get(job.user), state.teams.get(job.team)
    name = (user.unix_user if user else "") or (team.unix_user if team else "")
    return RunAs(name, job.uid)


def variables(state: State, job: JobRecord, index: int) -> dict[str, str]:
    """What a task is told of itself and of the others, in our words and in torch's."""
    places = [task.place for task in job.tasks if task.phase in PLACED and task.place is not None]
    nodes = list(dict.fromkeys(place.node for place in places))
    addresses = _addresses(state, nodes)
    place = job.tasks[index].place
    rank = sum(1 for task in job.tasks[:index] if task.phase in PLACED)
    local = sum(
        1
        for task in job.tasks[:index]
        if task.phase in PLACED and task.place and place and task.place.node == place.node
    )
    here = [one for one in places if place and one.node == place.node]
    node_rank = str(nodes.index(place.node) if place and place.node in nodes else 0)
    master = addresses[0] if addresses else LOOPBACK
    number = int(job.id.partition("_")[0]) + (job.array_index or 0)
    own = {
        "GPUYARD_JOB_ID": job.id,
        "GPUYARD_JOB_NAME": job.name,
        "GPUYARD_TEAM": job.team,
        "GPUYARD_USER": job.user,
        "GPUYARD_TASK": str(index),
        "GPUYARD_TASKS": str(len(places)),
        "GPUYARD_NODE_RANK": node_rank,
        "GPUYARD_NODES": str(len(nodes)),
        "GPUYARD_NODE_IPS": ",".join(addresses),
        "GPUYARD_TASKS_PER_NODE": str(len(here)),
        "GPUYARD_GPUS_PER_NODE": str(len({share.device for one in here for share in one.shares})),
        "GPUYARD_MASTER_ADDR": master,
        "GPUYARD_RESTART_COUNT": str(max(job.tasks[index].attempt - 1, 0)),
        "MASTER_ADDR": master,
        "MASTER_PORT": str(FIRST_PORT + number % PORTS),
        "WORLD_SIZE": str(len(places)),
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(len(here)),
        "NODE_RANK": node_rank,
        "GROUP_RANK": node_rank,
        "GROUP_WORLD_SIZE": str(len(nodes)),
    }
    if job.array_index is not None:
        own |= {"GPUYARD_ARRAY_ID": job.array, "GPUYARD_ARRAY_INDEX": str(job.array_index)}
    slurms = slurm_variables(own, nodes, place.node if place else "") if job.work.slurm_env else {}
    return {**slurms, **dict(job.work.env), **own}


def _addresses(state: State, names: Sequence[str]) -> list[str]:
    """Where the machines of a job reach each other.

    The agent of the manager's own machine finds the manager by loopback, which means another machine to everybody
    else: there, tasks are reached where the other machines of the job reach the manager.
    """
    facts = [state.nodes[name].facts for name in names if name in state.nodes]
    seen_by_others = (one.manager_address for one in facts if not _is_loopback(one.manager_address))
    managers = next(seen_by_others, LOOPBACK)
    return [managers if _is_loopback(one.address) else one.address for one in facts]


def _is_loopback(address: str) -> bool:
    return not address or address.startswith("127.") or address == "::1"
