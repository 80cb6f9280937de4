"""In which order those who gave way leave and move, so that every place is free when its turn comes.

Place in the flow: the last part of a search. Invariant: carried out one after the other, in the order they are left
in, the actions never book a device beyond its capacity.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuyard.model.jobs import DeviceShare, Request
from gpuyard.model.quantities import MILLI
from gpuyard.scheduler.draft import Draft, Evicted, Eviction
from gpuyard.scheduler.nodestate import NodeFrame, NodeState

States = dict[int, NodeState]


def has_place(state: NodeState, request: Request, shares: Iterable[DeviceShare], frame: NodeFrame) -> bool:
    """Whether exactly these devices, and the rest of a request, are free in a state."""
    if state.slots < 1 or 0 < request.cpu_milli > state.cpu_milli or 0 < request.memory_bytes > state.memory_bytes:
        return False
    if any(state.other.get(name, 0) < amount for name, amount in request.other):
        return False
    slices: dict[tuple[str, int], int] = {}
    for share in shares:
        if share.mig:
            key = (share.mig, share.device)
            slices[key] = slices.get(key, 0) + 1
            if state.mig.get(key, 0) < slices[key]:
                return False
        elif not _device_free(state, request, share):
            return False
    return True


def _device_free(state: NodeState, request: Request, share: DeviceShare) -> bool:
    if state.free >> share.device & 1:
        return True
    part = state.parts.get(share.device)
    if part is None or share.gpu_milli == MILLI or part.sharing is not request.sharing:
        return False
    return share.gpu_milli <= part.milli and share.memory_mib <= part.memory_mib


# The order -----------------------------------------------------------------------------------------------------


def in_feasible_order(draft: Draft, mark: int) -> bool:
    """Order what was done since the mark so that every place is free when its turn comes; False where none does."""
    evicted = draft.evicted_since(mark)
    moving = [entry for entry in evicted if entry.moved_to is not None]
    if not moving:
        return True
    states = _states_before(draft, mark)
    leaving = [entry for entry in evicted if entry.moved_to is None]
    for entry in leaving:
        _leave(draft, states, entry)
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
        for position, now, later in entry.undos if isinstance(entry, Eviction) else (entry.undo,):
            if position not in states:
                states[position] = later or now
    return states


def _leave(draft: Draft, states: States, entry: Evicted) -> None:
    task, position, shares, _ = entry.holding
    states[position] = states[position].plus(task.request, shares, draft.nodes.frames[position])


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
    if not has_place(states[to.position], to.task.request, to.shares, frame):
        states[source] = before
        return False
    states[to.position] = states[to.position].less(to.task.request, to.shares, frame)
    return True
