"""What can be asked of the core without changing anything: explain, plan, what-if, never, forecasts.

Place in the flow: REST ─question─▶ **questions** ─kept ledger─▶ answer. Pure but for small caches; the caller sees to
it that the ledger stands still meanwhile.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from gpuyard.loop.loop import Loop
from gpuyard.loop.stand_ins import Kind, sound_queues
from gpuyard.model.difference import Difference
from gpuyard.model.explanation import Explanation, Forecast, QueueStanding, Standing
from gpuyard.model.jobs import Job
from gpuyard.model.limits import node_problem
from gpuyard.model.nodes import Node
from gpuyard.model.plan import Plan
from gpuyard.model.snapshot import Change, JobSeen, QueuesSet, Snapshot, TimePassed
from gpuyard.scheduler.cycle import plan
from gpuyard.scheduler.explain import explain_on, standings
from gpuyard.scheduler.forecast import forecast
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.scopes import closed_scopes, reach_others
from gpuyard.scheduler.what_if import what_if_on
from gpuyard.service.empty_cluster import EmptyCluster
from gpuyard.service.port import DryRun
from gpuyard.worlds.standalone.consequences import state_of
from gpuyard.worlds.standalone.decide import decide
from gpuyard.worlds.standalone.events import JobSubmitted
from gpuyard.worlds.standalone.intents import Intent, Submission
from gpuyard.worlds.standalone.journal import Journal
from gpuyard.worlds.standalone.lifecycle import OVER, JobState
from gpuyard.worlds.standalone.records import JobRecord, State
from gpuyard.worlds.standalone.snapshot import node_seen_as
from gpuyard.worlds.standalone.world import Standalone

MAX_FORECAST_JOBS: Final = 500
"""With more jobs waiting, lists leave the estimated start out; `explain` still gives it."""

CANDIDATE: Final = "new"
"""The id of a job that is only asked about."""


class Questions:
    """Answers on the kept ledger of a loop."""

    def __init__(self, loop: Loop, state: State) -> None:
        self.loop = loop
        self.state = state
        self._empty: EmptyCluster | None = None
        self._closed: tuple[tuple[int, int], Ledger] | None = None
        """Up to which entry of the log and when, and the books with every scope closed."""
        self._forecasts: tuple[int, dict[str, Forecast]] = (-1, {})

    def explain(self, job: str) -> Explanation:
        if job not in self.loop.ledger.jobs:
            # It was over before its turn to be explained came.
            record = self.state.jobs.get(job)
            return Explanation(job, record.team if record else "", Standing.FINISHED)
        found = _as_its_owner_knows_it(self.state, explain_on(self.loop.ledger, job, self.loop.policy))
        why = self.loop.containment.left.why_job(self.loop.ledger.jobs[job])
        return found if why is None else replace(found, blockers=(why.reason, *found.blockers))

    def standings(self) -> tuple[QueueStanding, ...]:
        return standings(self.loop.ledger, self.loop.policy)

    def plan_with(self, submission: Submission, blind: bool = False) -> tuple[Plan, Snapshot]:
        """The next plan with this job in it, and what it was made from. `blind`: see `_looked_at`."""
        ledger = self._looked_at(blind).fork()
        ledger.apply([JobSeen(candidate(submission, ledger.now_ms))])
        return plan(ledger, self.loop.policy), ledger.snapshot()

    def empty_cluster(self) -> EmptyCluster | None:
        """The cluster with everything up and nothing running; None while no machine has ever been seen."""
        seen = (replace(node_seen_as(one), ready=True, cordoned=False) for one in self.state.nodes.values() if one.seen)
        nodes = tuple(node for node in seen if self._is_planned_on(node))
        if not nodes:
            return None
        before, queues = self._empty, sound_queues(self.state.queues, ())
        if before is None or (before.nodes, before.queues) != (nodes, queues):
            self._empty = EmptyCluster(nodes, queues, self.loop.policy)
        return self._empty

    def _is_planned_on(self, node: Node) -> bool:
        return self.loop.containment.left.of(Kind.NODE, node.name) is None and not node_problem(node)

    def what_if(self, changes: tuple[Change, ...], blind: bool = False) -> Difference:
        return what_if_on(self._looked_at(blind), changes, self.loop.policy)

    def _looked_at(self, blind: bool) -> Ledger:
        """The ledger a question is asked on. Blind: as if no rule reached jobs of other teams, so that whoever asks
        what would become of a job cannot find out by its rules which labels those have."""
        if not blind or not reach_others(self.state.queues):
            return self.loop.ledger
        seen = self.state.seq, self.loop.ledger.now_ms
        if self._closed is None or self._closed[0] != seen:
            ledger = self.loop.ledger.fork()
            ledger.apply([QueuesSet(closed_scopes(self.state.queues))])
            self._closed = seen, ledger
        return self._closed[1]

    def dry_run(self, scratch: State, intent: Intent, now_ms: int, blind: bool) -> DryRun:
        """What would come of an intent, tried on a state of its own; refused as the intent would be."""
        journal = Journal(scratch)
        world = Standalone(journal, lambda: now_ms)
        events = list(decide(scratch, intent, now_ms))
        journal.record(events, now_ms)
        changes = tuple(change for change in world.observe() if not isinstance(change, TimePassed))
        jobs = tuple(event.job for event in events if isinstance(event, JobSubmitted))
        return DryRun(self.what_if(self.loop.containment.left.as_planned(changes), blind), jobs)

    def forecasts(self, jobs: Sequence[str]) -> dict[str, Forecast]:
        """When these are thought to start; empty where too many wait."""
        if len(self.loop.why_waiting) > MAX_FORECAST_JOBS:
            return {}
        if self._forecasts[0] != self.state.seq:
            self._forecasts = (self.state.seq, forecast(self.loop.ledger, self.loop.policy))
        known = self._forecasts[1]
        return {job: known[job] for job in jobs if job in known}


def _as_its_owner_knows_it(state: State, found: Explanation) -> Explanation:
    """The scheduler sees who holds a place and who may have one; the record knows what is up, and why it waits."""
    record = state.jobs.get(found.job)
    if record is None:
        return found
    if record.state is JobState.STARTING and found.standing is Standing.RUNNING:
        return replace(found, standing=Standing.PLACED)
    if record.state is JobState.BLOCKED and found.standing is Standing.GATED:
        return replace(found, standing=Standing.BLOCKED, at_once=_at_once(state, record))
    return found


def _at_once(state: State, record: JobRecord) -> int:
    """How many elements of its array run at once, for one that waits for nothing else."""
    array = state.arrays.get(record.array) if record.array else None
    waits = any(state_of(state, id) not in OVER for id in (*record.after, *record.afterok))
    return array.array.at_once if array is not None and not waits else 0


def candidate(submission: Submission, now_ms: int) -> Job:
    form = submission.form
    tasks = tuple(replace(task, id=f"{CANDIDATE}/{index}") for index, task in enumerate(form.tasks))
    return replace(form, id=CANDIDATE, tasks=tasks, submitted_at_ms=now_ms)


def copy_of(state: State) -> State:
    """A state that can be changed apart: its records are values and are shared."""
    scratch = copy.copy(state)
    for name in ("jobs", "arrays", "nodes", "teams", "users", "tokens", "receipts", "schedules"):
        setattr(scratch, name, dict(getattr(state, name)))
    scratch.dependents = {job: list(waiting) for job, waiting in state.dependents.items()}
    scratch.placed = {node: dict(jobs) for node, jobs in state.placed.items()}
    scratch.finished, scratch.moves = list(state.finished), list(state.moves)
    scratch.meter = copy.deepcopy(state.meter)
    return scratch
