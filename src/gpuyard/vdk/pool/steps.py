"""An arrangement as steps that can be carried out one by one: deletes, then moves, then the new job.

A move stops before it starts, so its own old place counts as free. Where moves wait for each other in a circle, one of
the jobs is parked: stopped first, started when its place is free. Invariant: at every step its target is free.
"""

from __future__ import annotations

from gpuyard.vdk.model import CreateJob, DeleteJob, JobAction, JobUniqueIdentifier, MoveJob, Place
from gpuyard.vdk.pool.arrangement import Arrangement, Move, Problem
from gpuyard.vdk.pool.books import Table

Hop = tuple[Move, Place | None, Place | None]
"""A move, or one half of it: from where, to where; None: parked."""


def actions_of(problem: Problem, found: Arrangement, plan: str, job: JobUniqueIdentifier) -> tuple[JobAction, ...]:
    actions: list[JobAction] = []
    for holding in found.deleted:
        assert holding.place is not None
        actions.append(DeleteJob(plan, len(actions) + 1, holding.id, holding.amount_milli, holding.place))
    for move, source, target in hops(problem, found):
        one = move.holding
        actions.append(MoveJob(plan, len(actions) + 1, one.id, one.amount_milli, source, target))
    actions.append(CreateJob(plan, len(actions) + 1, job, problem.amount_milli, found.place))
    return tuple(actions)


def parkings(problem: Problem, found: Arrangement) -> int:
    """How many of its moves need two steps."""
    return len(hops(problem, found)) - len(found.moved) if found.moved else 0


def hops(problem: Problem, found: Arrangement) -> list[Hop]:
    """The moves in an order in which each finds its place free."""
    rows = problem.grid.rows
    free = problem.grid.free.copy(order="K")
    for holding in found.deleted:
        _add(free, rows, holding.place, 1)
    waiting = sorted(found.moved, key=lambda move: move.holding.id)
    parked: set[JobUniqueIdentifier] = set()
    done: list[Hop] = []
    while waiting:
        move = next((one for one in waiting if _fits(free, rows, one, parked)), None)
        if move is None:
            move = _to_park(free, rows, waiting, parked)
            parked.add(move.holding.id)
            _add(free, rows, move.holding.place, 1)
            done.append((move, move.holding.place, None))
            continue
        source = None if move.holding.id in parked else move.holding.place
        _add(free, rows, source, 1)
        _add(free, rows, move.to, -1)
        done.append((move, source, move.to))
        waiting.remove(move)
    return done


def _fits(free: Table, rows: dict[str, int], move: Move, parked: set[JobUniqueIdentifier]) -> bool:
    source = None if move.holding.id in parked else move.holding.place
    _add(free, rows, source, 1)
    row = rows[move.to.machine]
    fits = all(free[row, share.device] >= share.amount_milli for share in move.to.shares)
    _add(free, rows, source, -1)
    return fits


def _to_park(free: Table, rows: dict[str, int], waiting: list[Move], parked: set[JobUniqueIdentifier]) -> Move:
    """The first by name after whose stop another can go; else the first that still runs."""
    running = [move for move in waiting if move.holding.id not in parked]
    for move in running:
        _add(free, rows, move.holding.place, 1)
        helps = any(_fits(free, rows, other, parked) for other in waiting if other is not move)
        _add(free, rows, move.holding.place, -1)
        if helps:
            return move
    return running[0]


def _add(free: Table, rows: dict[str, int], place: Place | None, sign: int) -> None:
    if place is not None:
        for share in place.shares:
            free[rows[place.machine], share.device] += sign * share.amount_milli
