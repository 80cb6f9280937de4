"""What becomes of those who gave way: who can stay after all, who gets another place, and in which order to do it.

Place in the flow: the last part of a search. Invariant: carried out one after the other, in the order they are left
in, the actions never book a device beyond its capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gpuyard.model.jobs import DeviceShare, Job, Request, Task, TaskState
from gpuyard.model.quantities import MILLI
from gpuyard.scheduler.blocks import Block
from gpuyard.scheduler.draft import Draft, Evicted, Placed
from gpuyard.scheduler.gang import Gang
from gpuyard.scheduler.headroom import blockers
from gpuyard.scheduler.jobbook import Waiter, next_waiter
from gpuyard.scheduler.nodestate import NodeFrame, NodeState
from gpuyard.scheduler.placement import Placer
from gpuyard.scheduler.yielding import stay_key

States = dict[int, NodeState]


def fits_back(draft: Draft, blocks: Sequence[Block]) -> list[Block]:
    """Blocks that still fit where they were, beside the job that was placed: the most expensive first."""
    states: States = {}
    staying: list[Block] = []
    for block in sorted(blocks, key=lambda block: (-block.cost, -block.index)):
        if _fits_back(draft, block, states) and not blockers(draft.queues, block.leaf, block.amounts, firm=False):
            draft.queues.charge(block.leaf, block.amounts, firm=False)
            staying.append(block)
    for block in staying:
        draft.queues.charge(block.leaf, block.amounts, firm=False, times=-1)
    return staying


def _fits_back(draft: Draft, block: Block, states: States) -> bool:
    """Whether all of a block fits; if so the states hold it again."""
    tried: States = {}
    for task, position, shares, _ in block.holdings:
        state = tried.get(position) or states.get(position) or draft.nodes.later[position]
        frame = draft.nodes.frames[position]
        if not has_place(state, task.request, shares, frame):
            return False
        tried[position] = state.less(task.request, shares, frame)
    states.update(tried)
    return True


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


# Another place -------------------------------------------------------------------------------------------------


def replace_victims(draft: Draft, placer: Placer, blocks: Sequence[Block], mark: int) -> bool:
    """Give those who gave way since the mark other places, best rank first; whether all of them got one."""
    evicted = {entry.holding.task.id: entry for entry in draft.log[mark:] if isinstance(entry, Evicted)}
    jobs = {block.job.id: block for block in blocks}
    unfit: set[object] = set()
    all_placed = True
    for block in sorted(jobs.values(), key=lambda block: stay_key(block.job)):
        all_placed = _replace(draft, placer, block, evicted, unfit) and all_placed
    return all_placed


def _replace(draft: Draft, placer: Placer, block: Block, evicted: dict[str, Evicted], unfit: set[object]) -> bool:
    """New places for the evicted tasks of one job, chunk by chunk; whether all of them have one."""
    waiting = _waiting_again(block.job, evicted)
    gang = Gang(waiting)
    wanted = sum(map(len, gang.waiting.values()))
    already_waiting = sum(task.state is TaskState.PENDING for task in block.job.tasks)
    moved = 0
    while (waiter := next_waiter(waiting, block.leaf, gang, draft.shapes)) is not None:
        tasks = list(waiter.chunk.all_tasks())
        if any(task.id not in evicted for task in tasks):
            break
        if waiter.signature in unfit or not _place(draft, placer, waiter, evicted):
            unfit.add(waiter.signature)
            break
        moved += len(tasks)
        gang.place(waiter.chunk, draft.given(waiter))
    return moved == wanted - already_waiting


def _waiting_again(job: Job, evicted: dict[str, Evicted]) -> Job:
    """The job as if its evicted tasks waited for a place."""
    back = {"state": TaskState.PENDING, "node": "", "shares": ()}
    tasks: tuple[Task, ...] = tuple(
        [msgspec.structs.replace(task, **back) if task.id in evicted else task for task in job.tasks]
    )
    return msgspec.structs.replace(job, tasks=tasks)


def _place(draft: Draft, placer: Placer, waiter: Waiter, evicted: dict[str, Evicted]) -> bool:
    if blockers(draft.queues, waiter.leaf, waiter.at_least, waiter.firm):
        return False
    before = len(draft.placed)
    if not placer.place(waiter):
        return False
    for placed in draft.placed[before:]:
        placed.moves = True
        evicted[placed.task.id].moved_to = placed
    return True


# The order -----------------------------------------------------------------------------------------------------


def in_feasible_order(draft: Draft, mark: int) -> bool:
    """Order what was done since the mark so that every place is free when its turn comes; False where none does."""
    evicted = [entry for entry in draft.log[mark:] if isinstance(entry, Evicted)]
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
    placed = [entry for entry in draft.log[mark:] if isinstance(entry, Placed)]
    draft.log[mark:] = [*leaving, *ordered, *placed]
    return True


def _states_before(draft: Draft, mark: int) -> States:
    """The nodes touched since the mark as they would have been without it."""
    states: States = {}
    for entry in draft.log[mark:]:
        position, now, later = entry.undo
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
