"""The judge of golden scenarios: one cycle of the production scheduler, compared with what the file expects.

Place in the flow: a file ─files.scenario─▶ GoldenScenario ─**golden**─▶ Verdict. Invariant: what a file does not name
must not happen: a running job not named stays where it is, a pending job not named gets nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.errors import InputError, QuantityError
from gpuyard.files.scenario import (
    Expectation,
    ExpectedEviction,
    ExpectedPlaces,
    ExpectedWait,
    GoldenScenario,
    read_scenario,
)
from gpuyard.model.jobs import Job, TaskState
from gpuyard.model.plan import Action, Bind, Evict, Move, Plan, Promise
from gpuyard.model.quantities import (
    CPU,
    GPU,
    MEMORY,
    MILLI,
    cpu_milli,
    format_amount,
    format_milli,
    memory_bytes,
    memory_mib,
    milli,
)
from gpuyard.model.reasons import GPU_MEMORY, Reason
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import Policy
from gpuyard.scenarios.verdict import Verdict
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.resources import GPU_AT, Resources

Scheduler = Callable[[Snapshot, Policy], Plan]

_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "placed": (Bind, Promise),
    "started": (Bind,),
    "promised": (Promise,),
    "moved": (Move,),
}
"""Which actions fulfil which word of an expectation."""


class Outcome(msgspec.Struct, frozen=True):
    """A plan with the scenario it answers, asked about job by job."""

    snapshot: Snapshot
    plan: Plan

    def actions(self, job: str, kinds: tuple[type, ...]) -> tuple[Action, ...]:
        return tuple(action for action in self.plan.actions if action.job == job and isinstance(action, kinds))

    def job(self, name: str) -> Job:
        return next(job for job in self.snapshot.jobs if job.id == name)


def judge_golden_file(path: Path, scheduler: Scheduler = schedule) -> Verdict:
    """Judge one scenario file; its path is its id. One that cannot be read fails, so that others are still judged."""
    try:
        return judge_golden(read_scenario(path), str(path), scheduler)
    except InputError as error:
        return Verdict(str(path), False, (str(error),))


def judge_golden(scenario: GoldenScenario, id: str, scheduler: Scheduler = schedule) -> Verdict:
    try:
        plan = scheduler(scenario.snapshot, scenario.policy)
    except Exception as error:  # One scenario that breaks the scheduler must not hide the verdicts on all others.
        return Verdict(id, False, (f"no plan: {type(error).__name__}: {error}",))
    outcome = Outcome(scenario.snapshot, plan)
    wrong = tuple(_outcome_mismatches(scenario.expectation, outcome))
    nodes = tuple(_node_mismatches(scenario.expectation, outcome))
    return Verdict(id, not wrong and not nodes, wrong, nodes)


def _outcome_mismatches(expected: Expectation, outcome: Outcome) -> Iterator[str]:
    for word, kinds in _KINDS.items():
        for places in getattr(expected, word):
            if not outcome.actions(places.job, kinds):
                yield f"{places.job}: expected to be {word}, but it {_became(places.job, outcome)}"
    for wait in expected.waiting:
        yield from _wait_mismatches(wait, outcome)
    for eviction in expected.evicted:
        yield from _eviction_mismatches(eviction, outcome)
    yield from _unexpected(expected, outcome)
    yield from _order_mismatches(expected, outcome)


# ------------------------------------------------------------------------------------------------------------ places


def _node_mismatches(expected: Expectation, outcome: Outcome) -> Iterator[str]:
    for word, kinds in _KINDS.items():
        for places in getattr(expected, word):
            actions = outcome.actions(places.job, kinds)
            if actions and not _places_match(places, actions):
                yield f"{places.job}: expected on {_places_text(places)}, got {_per_node_text(_per_node(actions))}"


def _places_match(expected: ExpectedPlaces, actions: Iterable[Action]) -> bool:
    got = _per_node(actions)
    if not expected.per_node:
        return True
    wanted = dict(expected.per_node)
    # A count of 0 stands for a single node name: all tasks, however many, are there.
    return set(wanted) == set(got) if 0 in wanted.values() else wanted == dict(got)


def _per_node(actions: Iterable[Action]) -> Counter[str]:
    return Counter(action.node for action in actions if isinstance(action, Bind | Promise | Move))


def _places_text(expected: ExpectedPlaces) -> str:
    return _per_node_text(Counter(dict(expected.per_node)))


def _per_node_text(counts: Counter[str]) -> str:
    return ", ".join(f"{node} x {count}" if count > 1 else node for node, count in sorted(counts.items()))


# ----------------------------------------------------------------------------------------------------------- waiting


def _wait_mismatches(expected: ExpectedWait, outcome: Outcome) -> Iterator[str]:
    reasons = outcome.plan.reasons_for(expected.job)
    if outcome.actions(expected.job, (Bind, Promise)) or not (reasons or _is_waiting(expected.job, outcome)):
        yield f"{expected.job}: expected to wait, but it {_became(expected.job, outcome)}"
        return
    for token in expected.tokens:
        matching = [reason for reason in reasons if reason.token is token]
        if not matching:
            yield f"{expected.job}: expected to wait for {token}, got {_tokens(reasons)}"
        elif all(list(_reason_mismatches(expected, reason)) for reason in matching):
            yield from (f"{expected.job}: {token} {line}" for line in _reason_mismatches(expected, matching[0]))


def _is_waiting(job: str, outcome: Outcome) -> bool:
    return any(job in waiting.jobs for waiting in outcome.plan.waiting)


def _reason_mismatches(expected: ExpectedWait, reason: Reason) -> Iterator[str]:
    for field, wanted, got in (("have", expected.have, reason.have), ("need", expected.need, reason.need)):
        if wanted is not None and _in_unit(reason.resource, str(wanted)) != got:
            yield f"expected {field} {wanted}, got {format_amount(reason.resource or GPU, got)}"
    if expected.subject is not None and expected.subject != reason.subject:
        yield f"expected to be about {expected.subject}, got {reason.subject or 'nothing'}"
    if expected.never is not None and expected.never is not reason.never:
        yield f"expected never: {str(expected.never).lower()}, got {str(reason.never).lower()}"


def _in_unit(resource: str, written: str) -> int | None:
    """A written amount in the unit of a resource; None where it is no amount of it."""
    try:
        if resource == MEMORY:
            return memory_bytes(written)
        if resource == GPU_MEMORY:
            return memory_mib(written)
        if resource == CPU:
            return cpu_milli(written)
        thousandths = milli(written)
        return thousandths if resource in ("", GPU) or resource.startswith(f"{GPU}/") else thousandths // MILLI
    except QuantityError:
        return None


def _tokens(reasons: tuple[Reason, ...]) -> str:
    return ", ".join(reason.token for reason in reasons) or "no reason"


# --------------------------------------------------------------------------------------------------------- evictions


def _eviction_mismatches(expected: ExpectedEviction, outcome: Outcome) -> Iterator[str]:
    evictions = [action for action in outcome.plan.actions if isinstance(action, Evict) and action.job == expected.job]
    if not evictions:
        yield f"{expected.job}: expected to be evicted, but it {_became(expected.job, outcome)}"
        return
    reason = evictions[0].reason
    if expected.token is not None and reason.token is not expected.token:
        yield f"{expected.job}: expected to be evicted as {expected.token}, got {reason.token}"
    if expected.beneficiary is not None and reason.beneficiary != expected.beneficiary:
        yield f"{expected.job}: expected to give way to {expected.beneficiary}, got {reason.beneficiary or 'nobody'}"
    running = sum(task.state is TaskState.RUNNING for task in outcome.job(expected.job).tasks)
    wanted = running if expected.tasks is None else expected.tasks
    if len(evictions) != wanted:
        yield f"{expected.job}: expected {wanted} tasks to be evicted, got {len(evictions)}"
    if expected.shortfall_milli is not None:
        yield from _shortfall_mismatch(expected, outcome)


def _shortfall_mismatch(expected: ExpectedEviction, outcome: Outcome) -> Iterator[str]:
    queue = outcome.job(expected.job).queue
    got, told = _shortfall_milli(queue, outcome), _told_shortfall_milli(queue, outcome)
    if got != expected.shortfall_milli:
        wanted = format_milli(expected.shortfall_milli or 0)
        yield f"{expected.job}: expected its queue to be {wanted} GPUs short, got {format_milli(got)}"
    if told != got:
        yield f"{expected.job}: its queue is {format_milli(got)} GPUs short, but the plan says {format_milli(told)}"


def _told_shortfall_milli(queue: str, outcome: Outcome) -> int:
    """What the reasons of a queue's evictions say; tasks that go as one block have one reason."""
    mine = {job.id for job in outcome.snapshot.jobs if job.queue == queue}
    going = [action for action in outcome.plan.actions if isinstance(action, Evict) and action.job in mine]
    return sum(reason.shortfall for _, reason in dict.fromkeys((action.job, action.reason) for action in going))


def _shortfall_milli(queue: str, outcome: Outcome) -> int:
    """What a queue then holds less than it is owed, of GPUs."""
    gone = {action.task for action in outcome.plan.actions if isinstance(action, Evict)}
    owed = next(entry for entry in outcome.snapshot.queues if entry.name == queue).share(GPU).quota
    nodes = {node.name: node for node in outcome.snapshot.nodes}
    resources = Resources(outcome.snapshot.queues, outcome.snapshot.nodes)
    held = sum(
        resources.of_task(task.request, task.shares, nodes[task.node])[GPU_AT]
        for job in outcome.snapshot.jobs
        if job.queue == queue
        for task in job.tasks
        if task.state is TaskState.RUNNING and task.id not in gone
    )
    return max(0, (owed or 0) - held)


# ------------------------------------------------------------------------------------------------------------- order


def _order_mismatches(expected: Expectation, outcome: Outcome) -> Iterator[str]:
    happened = dict.fromkeys(action.job for action in outcome.plan.actions if action.job in expected.order)
    if tuple(happened) != expected.order:
        yield f"expected the order {', '.join(expected.order)}, got {', '.join(happened) or 'nothing'}"


# -------------------------------------------------------------------------------------------------------- unexpected


def _unexpected(expected: Expectation, outcome: Outcome) -> Iterator[str]:
    """What happens to jobs without being expected."""
    # A job that was expected to wait and gets a place is told there.
    coming = {places.job for places in (*expected.placed, *expected.started, *expected.promised)}
    coming |= {wait.job for wait in expected.waiting}
    moving = {places.job for places in expected.moved}
    going = {eviction.job for eviction in expected.evicted}
    expected_of = {Bind: coming, Promise: coming | moving, Move: moving, Evict: going}
    surprising = [action.job for action in outcome.plan.actions if action.job not in expected_of.get(type(action), ())]
    for job in dict.fromkeys(surprising):
        yield f"{job}: not mentioned, but it {_became(job, outcome)}"


def _became(job: str, outcome: Outcome) -> str:
    """What happens to a job, in words."""
    happened = [
        f"{words}{_on(actions)}"
        for words, kind in (("starts", Bind), ("is promised a place", Promise), ("moves", Move), ("is evicted", Evict))
        if (actions := outcome.actions(job, (kind,)))
    ]
    if happened:
        return " and ".join(happened)
    reasons = outcome.plan.reasons_for(job)
    if reasons or _is_waiting(job, outcome):
        return f"waits ({_tokens(reasons)})"
    return "stays as it is"


def _on(actions: tuple[Action, ...]) -> str:
    places = _per_node(actions)
    return f" on {_per_node_text(places)}" if places else ""
