"""How the pool's machines, budgets, jobs and plans look in lists, and a plan and a quote to a person."""

from __future__ import annotations

from collections.abc import Iterator

from gpuyard.cli.listing import Column, Kind
from gpuyard.cli.times import exact, since
from gpuyard.wire.pool import (
    PoolAction,
    PoolAlternative,
    PoolBudget,
    PoolJob,
    PoolJobId,
    PoolMachine,
    PoolPlace,
    PoolPlan,
    PoolQuote,
)

_COLOURS = {"open": "cyan", "rolled-back": "yellow"}


def place_text(place: PoolPlace | None) -> str:
    """`gpu-1:0,1(0.5)`: devices, and how much of one that is not held as a whole."""
    if place is None:
        return "-"
    shares = [f"{one.device}{'' if one.amount == '1' else f'({one.amount})'}" for one in place.shares]
    return f"{place.machine}:{','.join(shares)}"


def job_text(job: PoolJobId | PoolJob | PoolPlan | PoolAction) -> str:
    return f"{job.team}/{job.name or 'hidden'}"


def _wishes_text(alternatives: tuple[PoolAlternative, ...]) -> str:
    return " or ".join(f"{one.amount} {one.device_type}".rstrip() for one in alternatives)


def _next_text(job: PoolJob) -> str:
    if job.place == job.next_place:
        return ""
    return "being deleted" if job.next_place is None else place_text(job.next_place)


def _standing(plan: PoolPlan) -> str:
    done = sum(action.state in ("confirmed", "void") for action in plan.actions)
    return f"{done} of {len(plan.actions)}"


MACHINES: Kind[PoolMachine] = Kind(
    PoolMachine,
    (
        Column("MACHINE", lambda machine, at: machine.name),
        Column("DEVICES", lambda machine, at: str(machine.devices), key=lambda machine: machine.devices),
        Column("TYPE", lambda machine, at: machine.device_type),
    ),
    lambda machine: machine.name,
)

BUDGETS: Kind[PoolBudget] = Kind(
    PoolBudget,
    (
        Column("TEAM", lambda budget, at: budget.team),
        Column("TYPE", lambda budget, at: budget.device_type),
        Column("BUDGET", lambda budget, at: budget.amount, key=lambda budget: float(budget.amount)),
    ),
    lambda budget: budget.team,
)

JOBS: Kind[PoolJob] = Kind(
    PoolJob,
    (
        Column("JOB", lambda job, at: job_text(job)),
        Column("AMOUNT", lambda job, at: job.amount, key=lambda job: float(job.amount)),
        Column("TYPE", lambda job, at: job.device_type),
        Column("PLACE", lambda job, at: place_text(job.place)),
        Column("NEXT", lambda job, at: _next_text(job)),
        Column("PRIORITY", lambda job, at: "yes" if job.priority else ""),
        Column("CHECKPOINTABLE", lambda job, at: "yes" if job.checkpointable else "", wide=True),
        Column("SINCE", lambda job, at: since(job.since, at), lambda job: exact(job.since)),
    ),
    job_text,
)

PLANS: Kind[PoolPlan] = Kind(
    PoolPlan,
    (
        Column("PLAN", lambda plan, at: plan.plan),
        Column("JOB", lambda plan, at: job_text(plan)),
        Column("STATE", lambda plan, at: plan.state),
        Column("DONE", lambda plan, at: _standing(plan)),
        Column("ASKED", lambda plan, at: _wishes_text(plan.alternatives)),
        Column("MADE", lambda plan, at: since(plan.made_at, at), lambda plan: exact(plan.made_at)),
        Column("EXPIRES", lambda plan, at: exact(plan.expires_at), wide=True),
    ),
    lambda plan: plan.plan,
    lambda plan: _COLOURS.get(plan.state),
)


# ----------------------------------------------------------------------------------------------------- one at a time


def plan_lines(plan: PoolPlan) -> Iterator[str]:
    """What to do, step by step."""
    yield f"plan {plan.plan} for {job_text(plan)}: {plan.state}"
    for action in plan.actions:
        note = f" ({action.note})" if action.note else ""
        yield f"  {action.number}. {_action_text(action)}: {action.state}{note}"


def _action_text(action: PoolAction) -> str:
    what = f"{action.action} {job_text(action)} ({action.amount})"
    if action.action != "MoveJob":
        return f"{what} on {place_text(action.place)}"
    if action.place is None:
        return f"{what} away from {place_text(action.source)}; a later step starts it"
    return f"{what} {f'from {place_text(action.source)} ' if action.source else ''}to {place_text(action.place)}"


def quote_lines(quote: PoolQuote) -> Iterator[str]:
    """The verdict, its price, and the ways out."""
    yield f"{quote.verdict}: {quote.why}"
    if quote.place is not None:
        yield f"  place      {place_text(quote.place)}"
    for what, jobs in (("deleted", quote.cost.deleted), ("moved", quote.cost.moved)):
        if jobs:
            yield f"  {what:10} {', '.join(map(job_text, jobs))}"
    if quote.when:
        yield f"  when       {quote.when}"
    for way in quote.ways_out:
        yield f"  way out    {way.what}"
