"""In which order those who gave way leave and move, so that every place is free when its turn comes.

Place in the flow: the last part of a search. Invariant: carried out one after the other, in the order they are left
in, the actions never book a device beyond its capacity.
"""

from __future__ import annotations

from gpuyard.scheduler.draft import Draft, Evicted, Eviction, Placed
from gpuyard.scheduler.nodebook import Undo
from gpuyard.scheduler.nodestate import Booked, NodeState

States = dict[int, NodeState]


# The order -----------------------------------------------------------------------------------------------------


def in_feasible_order(draft: Draft, mark: int) -> bool:
    """Order what was done since the mark so that every place is free when its turn comes; False where none does."""
    evicted = draft.evicted_since(mark)
    moving = [entry for entry in evicted if entry.moved_to is not None]
    if not moving:
        return True
    states = _states_before(draft, mark)
    leaving = [entry for entry in evicted if entry.moved_to is None]
    # Only nodes that somebody moves to are looked at: on the others it does not matter who has left.
    wanted = {entry.moved_to.position for entry in moving if entry.moved_to is not None}
    _leave_all(draft, states, [entry for entry in leaving if entry.holding.position in wanted])
    ordered = _ordered_moves(draft, states, moving)
    if ordered is None:
        return False
    eviction = next(entry for entry in draft.log[mark:] if isinstance(entry, Eviction))
    eviction.evicted[:] = [*leaving, *ordered]
    return True


def _states_before(draft: Draft, mark: int) -> States:
    """The nodes touched since the mark as they would have been without it."""
    states: States = {}
    for entry in draft.log[mark:]:
        for position, now, later in _undos(entry):
            if position not in states:
                states[position] = later or now
    return states


def _leave_all(draft: Draft, states: States, leaving: list[Evicted]) -> None:
    by_node: dict[int, list[Booked]] = {}
    for entry in leaving:
        one = entry.holding
        by_node.setdefault(one.position, []).append((one.task.request, one.shares))
    for position, tasks in by_node.items():
        states[position] = states[position].without(tasks, draft.nodes.frames[position])


def _leave(draft: Draft, states: States, entry: Evicted) -> None:
    one = entry.holding
    states[one.position] = states[one.position].plus(one.task.request, one.shares, draft.nodes.frames[one.position])


def _ordered_moves(draft: Draft, states: States, moving: list[Evicted]) -> list[Evicted] | None:
    """One after the other whoever finds the new place free once the old one is left."""
    ordered: list[Evicted] = []
    while moving:
        stuck = [entry for entry in moving if not _move(draft, states, entry)]
        if len(stuck) == len(moving):
            return None
        done = {id(entry) for entry in moving} - {id(entry) for entry in stuck}
        ordered += [entry for entry in moving if id(entry) in done]
        moving = stuck
    return ordered


def _move(draft: Draft, states: States, entry: Evicted) -> bool:
    to = entry.moved_to
    assert to is not None
    source = entry.holding.position
    before = states[source]
    _leave(draft, states, entry)
    frame = draft.nodes.frames[to.position]
    if not states[to.position].holds(to.task.request, to.shares):
        states[source] = before
        return False
    states[to.position] = states[to.position].less(to.task.request, to.shares, frame)
    return True


def _undos(entry: Placed | Eviction) -> list[Undo]:
    if isinstance(entry, Eviction):
        return entry.undos
    return [] if entry.undo is None else [entry.undo]
