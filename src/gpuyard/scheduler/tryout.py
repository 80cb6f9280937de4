"""Tries changes: what would the next plan do for one job, and whom would that cost?

Place in the flow: ways_out ─edits─▶ **tryout** ─WayOut─▶ explain. Works on a fork of the books, which each try leaves
as it found it. Invariant: a way out is given only where a complete plan, by the ordinary code, does start the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from gpuyard.model.explanation import Cost, Edit, Effect, WayKind, WayOut
from gpuyard.model.jobs import Job
from gpuyard.model.plan import Action, Bind, Evict, Move, Plan, Promise
from gpuyard.model.snapshot import Change, JobGone, JobSeen, QueuesSet
from gpuyard.policies.policy import Policy
from gpuyard.scheduler.cycle import drafted
from gpuyard.scheduler.edits import changes_of
from gpuyard.scheduler.gang import ACTIVE
from gpuyard.scheduler.ledger import Ledger

MAX_TRIES: Final = 20
"""Complete plans made to explain one job; what has not been found by then is not offered."""

MAX_SEARCH_STEPS: Final = 5_000
"""Steps one tried plan may search for who gives way. A try that needs more is not offered: only a plan that stayed
within its steps is the plan that the cycle itself would make."""

_ORDER: Final = tuple(Effect)


class Tryout:
    """Ways out for one job, tried one by one."""

    def __init__(self, ledger: Ledger, policy: Policy, job: str, before: Plan) -> None:
        self.ledger = ledger
        self.policy = replace(policy, search_steps=min(policy.search_steps, MAX_SEARCH_STEPS))
        self._all_steps = policy.search_steps <= MAX_SEARCH_STEPS
        self.job = job
        self.before = before
        self._tried: dict[tuple[Edit, ...], Plan | None] = {}

    def way(self, kind: WayKind, edits: tuple[Edit, ...]) -> WayOut | None:
        """The way out that these edits are; None where the job would still wait."""
        after = self._plan(edits) if edits else None
        if after is None:
            return None
        given = [action for action in after.actions if isinstance(action, Bind | Promise) and action.job == self.job]
        if not given:
            return None
        ended = {edit.subject for edit in edits}
        costs = tuple(
            cost for cost in costs_of(self.before, after, self.job, self.ledger.jobs) if cost.job not in ended
        )
        return WayOut(kind, edits, costs, promised=not any(isinstance(action, Bind) for action in given))

    def _plan(self, edits: tuple[Edit, ...]) -> Plan | None:
        """The next plan after the edits; None where these were tried already, or it takes too long to tell."""
        if edits in self._tried or len(self._tried) >= MAX_TRIES:
            return None
        changes = changes_of(edits, self.ledger.jobs, self.ledger.queue_tree)
        back = [self._inverse(change) for change in changes]
        self.ledger.apply(changes)
        try:
            draft = drafted(self.ledger, self.policy)
        finally:
            self.ledger.apply(back)
        told = self._all_steps or draft.search_steps_left > 0
        self._tried[edits] = found = draft.finish() if told else None
        return found

    def _inverse(self, change: Change) -> Change:
        match change:
            case JobSeen(job):
                return JobSeen(self.ledger.jobs[job.id])
            case JobGone(id):
                return JobSeen(self.ledger.jobs[id])
            case _:
                return QueuesSet(self.ledger.queue_tree)


def costs_of(before: Plan, after: Plan, job: str, jobs: Mapping[str, Job]) -> tuple[Cost, ...]:
    """What happens to others in one plan and not in the other: who must go, who must move, who gets no place."""
    disturbed = _disturbed(after.actions) - _disturbed(before.actions)
    left_out = _placed(before.actions) - _placed(after.actions)
    counts = Counter((effect, id) for id, _, effect in disturbed if id != job)
    counts.update((Effect.WAITS, id) for id, _ in left_out if id != job)
    ordered = sorted(counts.items(), key=lambda entry: (_ORDER.index(entry[0][0]), entry[0][1]))
    return tuple(
        Cost(id, effect, tasks, partly=_partly(jobs[id], effect, after.actions)) for (effect, id), tasks in ordered
    )


def costs_for(actions: Iterable[Action], job: str, jobs: Mapping[str, Job]) -> tuple[Cost, ...]:
    """Who gives way to a job, by the reasons the actions carry."""
    mine = Plan(tuple(action for action in actions if action.reason.beneficiary == job))
    return costs_of(Plan(), mine, job, jobs)


def _partly(job: Job, effect: Effect, actions: Iterable[Action]) -> bool:
    """Whether a job that is affected has tasks that are not."""
    mine = [action for action in actions if action.job == job.id]
    gone = {action.task for action in mine if isinstance(action, Evict | Move)}
    stays = any(task.state in ACTIVE and task.id not in gone for task in job.tasks)
    if effect is Effect.MOVED:
        return stays
    return stays or any(isinstance(action, Bind | Promise | Move) for action in mine)


def _disturbed(actions: Iterable[Action]) -> set[tuple[str, str, Effect]]:
    return {
        (action.job, action.task, Effect.EVICTED if isinstance(action, Evict) else Effect.MOVED)
        for action in actions
        if isinstance(action, Evict | Move)
    }


def _placed(actions: Iterable[Action]) -> set[tuple[str, str]]:
    return {(action.job, action.task) for action in actions if isinstance(action, Bind | Promise)}
