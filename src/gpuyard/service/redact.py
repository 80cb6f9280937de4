"""Answers without what their reader may not know: jobs of other teams keep their team and their count, no name.

Place in the flow: core and log ─▶ **redact** ─▶ views, sentences ─▶ the client. Everything that can name a job of
somebody else passes here before it is put into words. Invariant: of a job the caller may not see, neither id nor name
occurs in what comes out.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from msgspec.structs import replace

from gpuyard.model.difference import Affected, Difference, Moved, NowWaiting, Stopped
from gpuyard.model.explanation import Cost, Edit, Explanation, Field, WayOut
from gpuyard.model.plan import Action, Plan, Waiting
from gpuyard.model.reasons import NODES, Reason, Token
from gpuyard.model.work import Work
from gpuyard.scheduler.scopes import reach_others
from gpuyard.service.authorise import Sight, sees_secrets
from gpuyard.service.questions import CANDIDATE
from gpuyard.wire.access import Caller, Permission
from gpuyard.worlds.standalone.events import (
    Event,
    JobSubmitted,
    JobWent,
    PromiseDropped,
    RequestKept,
    ScheduleSet,
    TasksPlaced,
    TasksPromised,
    TasksStopped,
    TokenCreated,
)
from gpuyard.worlds.standalone.records import JobRecord, State
from gpuyard.worlds.standalone.snapshot import SHADOW

Affecting = TypeVar("Affecting", bound=Affected)

SECRET = "(hidden)"
NONE_ASKED: Final[Mapping[str, JobRecord]] = MappingProxyType({})


class Veil:
    """What one caller sees of the jobs of one state, and of those that are only asked about."""

    def __init__(self, state: State, caller: Caller, asked: Mapping[str, JobRecord] = NONE_ASKED) -> None:
        self._jobs: Mapping[str, JobRecord] = ChainMap(dict(asked), state.jobs) if asked else state.jobs
        self._caller = caller
        self._sight = Sight(caller)
        self.lifted = caller.may(Permission.SEE_JOBS)
        """Nothing is hidden from this caller."""
        self._rules_reach_others = not self.lifted and reach_others(state.queues)

    def sees(self, id: str) -> bool:
        if self.lifted or id == CANDIDATE:
            return True
        job = self._jobs.get(id.removesuffix(SHADOW))
        return job is not None and self._sight.sees(job)

    def name(self, id: str) -> str:
        """The job's id, or what may be said instead."""
        if not id or self.sees(id):
            return id
        job = self._jobs.get(id.removesuffix(SHADOW))
        return f"hidden (team {job.team})" if job is not None else "hidden"

    # ------------------------------------------------------------------------------------------------------- reasons

    def reason(self, reason: Reason) -> Reason:
        if self.lifted:
            return reason
        carriers = tuple(dict.fromkeys(map(self.name, reason.carriers)))
        if self._counts_others(reason):
            reason = replace(reason, have=0, need=0)
        hidden = self.name(reason.beneficiary)
        if (hidden, carriers) == (reason.beneficiary, reason.carriers):
            return reason
        return replace(reason, beneficiary=hidden, carriers=carriers)

    def _counts_others(self, reason: Reason) -> bool:
        """Whether its numbers say on how many nodes jobs with certain labels are, which may be jobs of other teams."""
        about_rules = reason.token is Token.NO_MATCHING_NODE and reason.resource == NODES
        return about_rules and self._rules_reach_others

    def maybe(self, reason: Reason | None) -> Reason | None:
        return None if reason is None else self.reason(reason)

    def reasons(self, reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
        return tuple(map(self.reason, reasons))

    # -------------------------------------------------------------------------------------------------- explanations

    def explanation(self, explanation: Explanation) -> Explanation:
        if self.lifted:
            return explanation
        rank = explanation.rank
        return replace(
            explanation,
            blockers=self.reasons(explanation.blockers),
            rank=None if rank is None else replace(rank, ahead=tuple(map(self.name, rank.ahead))),
            ways_out=tuple(map(self._way, explanation.ways_out)),
            why=self.reasons(explanation.why),
            costs=tuple(map(self._cost, explanation.costs)),
            last_eviction=self.maybe(explanation.last_eviction),
        )

    def _way(self, way: WayOut) -> WayOut:
        return replace(way, edits=tuple(map(self._edit, way.edits)), costs=tuple(map(self._cost, way.costs)))

    def _edit(self, edit: Edit) -> Edit:
        """A quota or limit is about a queue; everything else about a job."""
        if edit.field in (Field.QUOTA, Field.LIMIT):
            return edit
        return replace(edit, subject=self.name(edit.subject))

    def _cost(self, cost: Cost) -> Cost:
        return replace(cost, job=self.name(cost.job))

    # --------------------------------------------------------------------------------------------- plans, differences

    def plan(self, plan: Plan) -> Plan:
        if self.lifted:
            return plan
        return Plan(tuple(map(self._action, plan.actions)), tuple(map(self._waiting, plan.waiting)))

    def _action(self, action: Action) -> Action:
        name = self.name(action.job)
        task = action.task if name == action.job else name
        return replace(action, job=name, task=task, reason=self.reason(action.reason))

    def _waiting(self, waiting: Waiting) -> Waiting:
        reasons = self._reasons_of(waiting.jobs, waiting.reasons)
        return replace(waiting, jobs=tuple(map(self.name, waiting.jobs)), reasons=reasons)

    def _reasons_of(self, jobs: Iterable[str], reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
        """Why some jobs wait. Of those the caller may not see, not what they ask of nodes, nor of other jobs."""
        reasons = self.reasons(reasons)
        if any(map(self.sees, jobs)):
            return reasons
        return tuple(replace(one, subject="") if one.token is Token.NO_MATCHING_NODE else one for one in reasons)

    def difference(self, difference: Difference) -> Difference:
        if self.lifted:
            return difference
        return replace(
            difference,
            started=tuple(map(self._affected, difference.started)),
            stopped=tuple(map(self._with_reason, difference.stopped)),
            moved=tuple(map(self._with_reason, difference.moved)),
            staying=tuple(map(self._affected, difference.staying)),
            waiting=tuple(map(self._now_waiting, difference.waiting)),
        )

    def _affected(self, entry: Affecting) -> Affecting:
        return replace(entry, job=self.name(entry.job))

    def _with_reason(self, entry: Stopped | Moved) -> Stopped | Moved:
        return replace(self._affected(entry), reason=self.maybe(entry.reason))

    def _now_waiting(self, entry: NowWaiting) -> NowWaiting:
        return replace(self._affected(entry), reasons=self._reasons_of((entry.job,), entry.reasons))

    # -------------------------------------------------------------------------------------------------------- events

    def event(self, event: Event) -> Event | None:
        """What may be told of something that happened; None: nothing."""
        match event:
            case RequestKept():
                # A key belongs to the client that made it.
                return None
            case TokenCreated(token):
                return TokenCreated(replace(token, digest=SECRET))
            case JobSubmitted(job):
                return JobSubmitted(self._submitted(job))
            case ScheduleSet():
                return self._scheduled(event)
            case JobWent() | PromiseDropped():
                return replace(event, why=self.maybe(event.why))
            case TasksPlaced() | TasksPromised():
                return replace(event, tasks=tuple(replace(one, why=self.reason(one.why)) for one in event.tasks))
            case TasksStopped():
                return replace(event, tasks=tuple(replace(one, why=self.maybe(one.why)) for one in event.tasks))
            case _:
                return event

    def _submitted(self, job: JobRecord) -> JobRecord:
        veiled = replace(job, after=tuple(map(self.name, job.after)), afterok=tuple(map(self.name, job.afterok)))
        return veiled if sees_secrets(self._caller, job) else replace(veiled, work=_without_secrets(job.work))

    def _scheduled(self, event: ScheduleSet) -> ScheduleSet:
        submission = event.submission
        if self._caller.may(Permission.SEE_SECRETS, team=submission.form.queue, owner=submission.user):
            return event
        veiled = replace(submission, work=_without_secrets(submission.work))
        return replace(event, submission=veiled, written="")

    def objects(self, objects: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(one for one in objects if not one.startswith("job/") or self.sees(one.removeprefix("job/")))


def _without_secrets(work: Work) -> Work:
    return replace(work, command=(SECRET,), env=(), workdir="", checkpoint=())
