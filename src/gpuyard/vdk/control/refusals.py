"""Why a data job cannot start now, in plain words with numbers, for the people of its team.

Place in the flow: starting ─reasons of the core─▶ **refusals** ─RefusedError─▶ VDK's error. Pure. Two things are told
apart, as GpuResourceManager does: the team is over its budget and nothing is free; or it has budget, and no
arrangement of what runs makes room.
"""

from __future__ import annotations

import msgspec

from gpuyard.errors import RefusedError
from gpuyard.model.explanation import QueueStanding
from gpuyard.model.jobs import Job, TaskState
from gpuyard.model.quantities import GPU, MILLI, format_milli
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.model.text import amount_text, reason_text
from gpuyard.service.problems import ProblemReason

_HOLDS = frozenset({TaskState.RUNNING, TaskState.FREEING, TaskState.STUCK, TaskState.PROMISED})


class Asked(msgspec.Struct, frozen=True):
    """A job, and the cluster as it was when it was asked about."""

    form: Job
    snapshot: Snapshot
    standings: tuple[QueueStanding, ...]

    @property
    def gpu_milli(self) -> int:
        return sum(task.request.devices * task.request.gpu_milli for task in self.form.tasks)

    @property
    def standing(self) -> QueueStanding | None:
        return next((one for one in self.standings if one.name == self.form.queue), None)

    @property
    def over_budget(self) -> bool:
        team = self.standing
        return team is not None and team.owed_milli is not None and team.held_milli + self.gpu_milli > team.owed_milli


def refusal(asked: Asked, reasons: tuple[Reason, ...]) -> RefusedError:
    """What the team is told; `reasons` are those of the core, as the caller may see them."""
    why = "; ".join(dict.fromkeys(map(reason_text, reasons)))
    tokens = {reason.token for reason in reasons}
    if Token.OVER_QUOTA in tokens:
        return _priority_beyond_budget(asked, why)
    if Token.OVER_LIMIT in tokens:
        return _beyond_limit(asked, why)
    if any(reason.never for reason in reasons):
        return RefusedError(ProblemReason.NO_ROOM, f"it could never run here: {why}", fix="change what it asks for")
    return _over_budget(asked, why) if asked.over_budget else _no_arrangement(asked, why)


def _priority_beyond_budget(asked: Asked, why: str) -> RefusedError:
    what = (
        f'a job with priority is never stopped for others, so it must fit the budget of team "{asked.form.queue}", '
        f"which it does not: {_budget(asked)} ({why})"
    )
    fix = "take its priority away, or start it again when another job with priority has ended"
    return RefusedError(ProblemReason.NO_AVAILABLE_BUDGET, what, fix=fix)


def _beyond_limit(asked: Asked, why: str) -> RefusedError:
    what = f'team "{asked.form.queue}" would be above its limit: {_budget(asked)} ({why})'
    fix = "start it again when a job of the team has ended, ask for less, or have the limit raised"
    return RefusedError(ProblemReason.NO_AVAILABLE_BUDGET, what, fix=fix)


def _over_budget(asked: Asked, why: str) -> RefusedError:
    team, free = asked.form.queue, _free(asked.snapshot)
    what = f'team "{team}" is over its budget, and nothing is free for it: {_budget(asked)}; {free} ({why})'
    fix = "start it again when a job has ended, ask for less (gpus in config.ini), or have the budget raised"
    return RefusedError(ProblemReason.NO_AVAILABLE_BUDGET, what, fix=fix)


def _no_arrangement(asked: Asked, why: str) -> RefusedError:
    what = (
        f'team "{asked.form.queue}" has budget for it ({_budget(asked)}), '
        f"but no arrangement of what runs makes room: {why}"
    )
    return RefusedError(ProblemReason.NO_ROOM, what, fix="start it again when a job has ended, or ask for less")


def _budget(asked: Asked) -> str:
    team = asked.standing
    owed = "all it asks for" if team is None or team.owed_milli is None else amount_text(GPU, team.owed_milli)
    holds = format_milli(team.held_milli if team else 0)
    return f"it is owed {owed} and holds {holds}, the job asks for {format_milli(asked.gpu_milli)}"


def _free(snapshot: Snapshot) -> str:
    open_nodes = {node.name: len(node.devices) for node in snapshot.nodes if node.open}
    total_milli = MILLI * sum(open_nodes.values())
    held_milli = sum(
        share.gpu_milli
        for job in snapshot.jobs
        for task in job.tasks
        if task.state in _HOLDS and task.node in open_nodes
        for share in task.shares
    )
    return f"{format_milli(max(total_milli - held_milli, 0))} of {amount_text(GPU, total_milli)} are free"
