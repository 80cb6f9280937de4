"""Explanations, plans and differences as lines of text, for clients that show them as they are.

Place in the flow: redact ─▶ **lines** ─`text`─▶ the client. The sentences themselves are in `model.text`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from gpuyard.model.difference import Difference
from gpuyard.model.difference_text import moved_text, now_waiting_text, started_text, staying_text, stopped_text
from gpuyard.model.explanation import Explanation, QueueStanding
from gpuyard.model.plan import Action, Bind, Evict, Plan, Promise
from gpuyard.model.snapshot import Snapshot
from gpuyard.model.text import (
    action_text,
    costs_text,
    eviction_text,
    forecast_text,
    held_text,
    queue_text,
    rank_text,
    reason_text,
    standing_text,
    stay_text,
    waiting_text,
    way_text,
)
from gpuyard.service.views import milli_of


def explanation_lines(explanation: Explanation, now_ms: int) -> Iterator[str]:
    """In the order a person asks: where, why, what is in the way, when, what to do."""
    yield f"job {explanation.job} (team {explanation.queue}) {standing_text(explanation)}"
    yield from (stay_text(stay, now_ms) for stay in explanation.stays)
    yield from (f"gets {stay_text(stay, now_ms)}" for stay in explanation.gets)
    yield from dict.fromkeys(reason_text(reason) for reason in explanation.why)
    if explanation.costs:
        yield f"whom that costs: {costs_text(explanation.costs)}"
    yield from (reason_text(reason) for reason in explanation.blockers)
    evicted = eviction_text(explanation, now_ms)
    if evicted:
        yield evicted
    if explanation.rank:
        yield rank_text(explanation.rank)
    if explanation.starts:
        yield forecast_text(explanation.starts, now_ms)
    yield from (f"queue {queue.name} {queue_text(queue)}" for queue in explanation.queues)
    yield from (f"way out: {way_text(way)} (costs: {costs_text(way.costs)})" for way in explanation.ways_out)


def plan_lines(plan: Plan, job: str, name: str) -> Iterator[str]:
    """What concerns one job: its own actions and waits, and what happens to others for its sake."""
    for action in plan.actions:
        if job in (action.job, action.reason.beneficiary):
            yield action_text(_called(action, job, name))
    reasons = plan.reasons_for(job)
    if reasons:
        yield f"{name} waits: {waiting_text(reasons)}"


def _called(action: Action, job: str, name: str) -> Action:
    """By the name its owner gave it."""
    reason = action.reason
    return replace(
        action,
        task=action.task.replace(f"{job}/", f"{name}/", 1) if action.job == job else action.task,
        reason=replace(reason, beneficiary=name) if reason.beneficiary == job else reason,
    )


def quota_lines(plan: Plan, snapshot: Snapshot, standings: Sequence[QueueStanding], job: str) -> Iterator[str]:
    """What teams hold now and with the job, where that is different."""
    changes = _held_changes(plan, snapshot, job)
    for standing in standings:
        change = changes.get(standing.name)
        if change:
            then = replace(standing, held_milli=standing.held_milli + change)
            yield f"team {standing.name} {held_text(standing)} now, and then {held_text(then)}"


def _held_changes(plan: Plan, snapshot: Snapshot, job: str) -> dict[str, int]:
    """Team → thousandths of GPUs it gains or loses for the sake of a job."""
    queues = {one.id: one.queue for one in snapshot.jobs}
    held = {task.id: (task.node, task.shares) for one in snapshot.jobs for task in one.tasks}
    devices = {node.name: node.devices for node in snapshot.nodes}
    changes: dict[str, int] = {}
    for action in plan.actions:
        if job not in (action.job, action.reason.beneficiary):
            continue
        queue = queues[action.job]
        if isinstance(action, Bind | Promise):
            gained = sum(milli_of(share, devices[action.node]) for share in action.shares)
            changes[queue] = changes.get(queue, 0) + gained
        elif isinstance(action, Evict):
            node, shares = held[action.task]
            changes[queue] = changes.get(queue, 0) - sum(milli_of(share, devices[node]) for share in shares)
    return changes


def difference_lines(difference: Difference) -> Iterator[str]:
    yield from (f"job {one.job} of {one.queue} {started_text(one)}" for one in difference.started)
    yield from (f"job {one.job} of {one.queue} {stopped_text(one)}" for one in difference.stopped)
    yield from (f"job {one.job} of {one.queue} {moved_text(one)}" for one in difference.moved)
    yield from (f"job {one.job} of {one.queue} {staying_text(one)}" for one in difference.staying)
    yield from (f"job {one.job} of {one.queue} {now_waiting_text(one)}" for one in difference.waiting)
    running, waiting = difference.unaffected_running, difference.unaffected_waiting
    nothing = "" if not difference.empty else "nothing would be different: "
    yield f"{nothing}{running} running and {waiting} waiting jobs are not affected"
