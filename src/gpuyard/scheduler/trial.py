"""With certain blocks gone, who gets what: the ordinary order and the ordinary placement decide.

Place in the flow: a search proposes blocks; the trial serves the job and those who gave way in their turns, as the next
cycle would. Whoever finds its old place free stays there; whoever finds another moves. Everyone else who waits keeps
their turn in the order but is not served. Invariant: a job whose victims would be served before it, and would take
their places back, does not get them.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from gpuyard.model.jobs import Job, Task, TaskState
from gpuyard.scheduler.blocks import Block
from gpuyard.scheduler.company import Spot
from gpuyard.scheduler.draft import Draft, Everyone, Holding, Left, Placed
from gpuyard.scheduler.gang import ACTIVE, Chunk, Gang
from gpuyard.scheduler.headroom import blockers
from gpuyard.scheduler.jobbook import LineKey, Rank, Waiter, next_waiter
from gpuyard.scheduler.ordering import Turns, lines_of
from gpuyard.scheduler.placement import Placer, has_rule
from gpuyard.scheduler.topology import level_left

TaskKey = tuple[str, str]
"""A job and one of its tasks: tasks of different jobs may have the same id."""


class Trial:
    """One set of blocks, which the draft has evicted since a mark."""

    def __init__(self, draft: Draft, waiter: Waiter | None, blocks: Sequence[Block], everyone: Everyone) -> None:
        self.draft = draft
        self.waiter = waiter
        self.blocks = blocks
        self.everyone = everyone
        self.placer = Placer(draft)
        self.may_move = True
        self.job_first = False
        """Whether the job is served before those who gave way, whatever the order says."""
        self.first_come_anywhere = False
        """Whether those whose turn comes before the job go where the ordinary placement puts them, rather than back."""
        self.returned: dict[TaskKey, Placed] = {}
        """Per evicted task the place it gets, old or new."""
        self._victims = _Victims(draft, blocks)

    def run(self) -> bool:
        """Whether the job gets its places. Leaves them, and those of who returned, in the draft."""
        placed = self.waiter is None or (self.job_first and self._place(self.waiter))
        if self.job_first:
            if placed:
                self._return_largest_first()
            return placed
        turns = self._turns(self.everyone())
        while (waiter := turns.next()) is not None:
            if waiter is self.waiter:
                if not self._place(waiter):
                    return False
                placed = True
                turns.served(waiter, None)
            elif waiter.job.id in self._victims and self._return(waiter, placed):
                turns.served(waiter, self._more(waiter))
            else:
                turns.dropped(waiter)
        return placed

    def _return_largest_first(self) -> None:
        """Where everyone is to have a place again, whoever finds one hardest looks first."""
        for first in sorted(self._victims.waiters(), key=_largest_first):
            waiter: Waiter | None = first
            while waiter is not None and self._return(waiter, job_placed=True):
                waiter = self._more(waiter)

    def _more(self, waiter: Waiter) -> Waiter | None:
        """What a job that has got something back wants next."""
        return self._victims.next_of(waiter, self.draft.given(waiter)) if waiter.more else None

    def staying(self) -> list[Block]:
        """Blocks that got their old places back."""
        if not self.returned:
            return []
        return [block for block in self.blocks if all(self._same_place(block, holding) for holding in block.holdings)]

    def _same_place(self, block: Block, holding: Holding) -> bool:
        placed = self.returned.get((block.job.id, holding.task.id))
        return placed is not None and (placed.position, placed.shares) == (holding.position, holding.shares)

    def has_returned(self, block: Block) -> bool:
        """Whether all of a block has a place again."""
        return all((block.job.id, holding.task.id) in self.returned for holding in block.holdings)

    def _turns(self, others: Sequence[Left]) -> Turns:
        # A job that gives way while it waits to grow has one turn, as one that gave way.
        others = [left for left in others if left.waiter.job.id not in self._victims.leaves]
        lines, starts = lines_of(others)
        first = {left.waiter.job.id: left.waiter for left in others}
        lines |= self._victims.lines()
        waiters = ChainMap(first, self._victims, self.draft.ledger.lines.waiters)  # type: ignore[arg-type]
        return Turns(self.draft, lines, waiters, starts)

    def _place(self, waiter: Waiter) -> bool:
        self.draft.search_steps_left -= len(waiter.shapes)
        if blockers(self.draft.queues, waiter.leaf, waiter.at_least, waiter.firm):
            return False
        return self.placer.place(waiter)

    def _return(self, waiter: Waiter, job_placed: bool) -> bool:
        """Give a chunk that gave way its old places, else others."""
        tasks = list(waiter.chunk.all_tasks())
        id = waiter.job.id
        if any((id, task.id) not in self._victims.evicted for task in tasks):
            return False
        if any(self._victims.evicted[id, task.id].task.state is TaskState.PROMISED for task in tasks):
            # What it was promised is planned again in the next cycle.
            return False
        before = len(self.draft.placed)
        stays = (job_placed or not self.first_come_anywhere) and self._put_back(waiter, tasks)
        if not stays and not (self.may_move and self._may_be_moved(waiter, tasks) and self._place(waiter)):
            return False
        self.returned |= {(id, placed.task.id): placed for placed in self.draft.placed[before:]}
        return True

    def _may_be_moved(self, waiter: Waiter, tasks: list[Task]) -> bool:
        """Whoever has opted out starts nowhere else, but for what had not started at all."""
        holdings = (self._victims.evicted[waiter.job.id, task.id] for task in tasks)
        return waiter.job.movable or all(holding.placed is not None for holding in holdings)

    def _put_back(self, waiter: Waiter, tasks: list[Task]) -> bool:
        draft, mark = self.draft, self.draft.mark()
        if blockers(draft.queues, waiter.leaf, waiter.at_least, waiter.firm) or not self._still_in_shape(waiter, tasks):
            return False
        for task in tasks:
            holding = self._victims.evicted[waiter.job.id, task.id]
            if draft.among is not None and not draft.among[holding.position]:
                draft.rollback(mark)
                return False
            if not draft.nodes.later[holding.position].holds(task.request, holding.shares):
                draft.rollback(mark)
                return False
            if waiter.ruled and self._somebody_came(waiter, task, holding.position):
                draft.rollback(mark)
                return False
            placed = Placed(waiter, task, draft.shapes.of(task.request), holding.position, waits=True)
            placed.shares, placed.stays = holding.shares, True
            draft.book(placed)
        return True

    def _somebody_came(self, waiter: Waiter, task: Task, position: int) -> bool:
        """Whether somebody who came meanwhile must be apart from a task at its old place. Whoever was there before does
        not matter: the task had to live with that."""
        company = self.draft.company
        if company is None or company.is_free(waiter.job, task, position):
            return False
        back = Spot(waiter.job, task, position)
        return any(company.keeps_apart(back, come) or company.keeps_apart(come, back) for come in self._newcomers())

    def _newcomers(self) -> Iterator[Spot]:
        """The job's tasks where they have their places, and whoever has moved."""
        for placed in self.draft.placed:
            moved = self.returned.get((placed.waiter.job.id, placed.task.id)) is placed and not placed.stays
            if moved or placed.waiter is self.waiter:
                yield Spot(placed.waiter.job, placed.task, placed.position)

    def _still_in_shape(self, waiter: Waiter, tasks: list[Task]) -> bool:
        """Whether old places are right for a job that lies in domains, or on nodes, by rule: parts may have moved."""
        job, draft = waiter.job, self.draft
        if not has_rule(job.group):
            return True
        moved = {task: one.position for (id, task), one in self.returned.items() if id == job.id}
        back = {task.id: self._victims.evicted[job.id, task.id].position for task in tasks}
        staying = {task.id: task.node for task in job.tasks if task.state in ACTIVE}
        given = {id: draft.nodes.frames[position].node.name for id, position in (moved | back).items()}
        return not level_left(draft.domains, draft.nodes.at, job, staying | given)


class _Victims(Mapping[str, Waiter]):
    """Those who gave way, as jobs that wait: their next chunks are made when their turn comes."""

    def __init__(self, draft: Draft, blocks: Sequence[Block]) -> None:
        self.draft = draft
        self.evicted: dict[TaskKey, Holding] = {
            (block.job.id, holding.task.id): holding for block in blocks for holding in block.holdings
        }
        self.leaves = {block.job.id: block.leaf for block in blocks}
        self._jobs = {block.job.id: block.job for block in blocks}
        self._gangs: dict[str, Gang] = {}
        self._first: dict[str, Waiter | None] = {}

    def __getitem__(self, id: str) -> Waiter:
        waiter = self._made(id) if id in self._jobs else None
        if waiter is None:
            raise KeyError(id)
        return waiter

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def _made(self, id: str) -> Waiter | None:
        """What a job that gave way wants first."""
        if id not in self._first:
            job = _waiting_again(self._jobs[id], self.evicted)
            plain = job.group.leaf and not any(task.priority for task in job.tasks) and self._went_whole(job)
            self._first[id] = self._whole(job) if plain else self._in_part(job)
        return self._first[id]

    def _whole(self, job: Job) -> Waiter:
        """Of a gang that went whole, nothing is left to reckon with: most do."""
        return Waiter(job, self.leaves[job.id], Chunk(job.group, job.tasks), 0, None, self.draft.shapes)

    def _in_part(self, job: Job) -> Waiter | None:
        gang = self._gangs[job.id] = Gang(job)
        return next_waiter(job, self.leaves[job.id], gang, self.draft.shapes)

    def waiters(self) -> Iterator[Waiter]:
        """All that can return; a gang that had lost a part before cannot."""
        return (waiter for id in self._jobs if (waiter := self._made(id)) is not None)

    def next_of(self, waiter: Waiter, given: dict[str, tuple[str, bool]]) -> Waiter | None:
        """What a job that has got something back wants next."""
        gang = self._gangs[waiter.job.id]
        gang.place(waiter.chunk, given)
        following = next_waiter(gang.job, waiter.leaf, gang, self.draft.shapes)
        if following is None or any((gang.job.id, t.id) not in self.evicted for t in following.chunk.all_tasks()):
            return None
        return following

    def lines(self) -> dict[LineKey, list[tuple[int, str]]]:
        """Lines of their own: nobody who gave way stands in a line with someone who was waiting."""
        lines: dict[LineKey, list[tuple[int, str]]] = {}
        for id, job in self._jobs.items():
            key: LineKey
            if self._went_whole(job) and not job.spread and not self._is_ruled(job):
                # A gang that went as a whole: like every other that asks for the same and may go as far.
                shapes = tuple([self.draft.shapes.of(task.request).id for task in job.tasks])
                key = (self.leaves[id], -job.priority, 0, False, ("gave way", shapes, job.group.topology, job.movable))
            else:
                waiter = self._made(id)
                if waiter is None:
                    continue
                key = (*waiter.line[:4], ("gave way", id))
            lines.setdefault(key, []).append((job.submitted_at_ms, id))
        for line in lines.values():
            line.sort()
        return lines

    def _is_ruled(self, job: Job) -> bool:
        """Whether rules between tasks are about it: then it is like no other."""
        if not self.draft.ledger.neighbours:
            return False
        waiter = self._made(job.id)
        return waiter is None or waiter.ruled

    def _went_whole(self, job: Job) -> bool:
        """Whether a plain gang went with all its tasks; one that had lost some before cannot simply return."""
        if len(job.tasks) == 1:
            return True
        whole = job.group.leaf and len(job.tasks) == job.group.min_tasks
        return whole and all((job.id, task.id) in self.evicted for task in job.tasks)


def _waiting_again(job: Job, evicted: Mapping[TaskKey, object]) -> Job:
    """The job as if its evicted tasks waited for a place, and no others: what it had not yet got is another matter."""
    return msgspec.structs.replace(
        job, tasks=tuple([_as_waiting(task, (job.id, task.id) in evicted) for task in job.tasks])
    )


def _as_waiting(task: Task, evicted: bool) -> Task:
    if evicted:
        return msgspec.structs.replace(task, state=TaskState.PENDING, node="", shares=())
    return msgspec.structs.replace(task, state=TaskState.GATED) if task.state is TaskState.PENDING else task


def _largest_first(waiter: Waiter) -> tuple[tuple[int, ...], tuple[int, ...], Rank]:
    """By the largest task, then by all of them."""
    largest = max(shape.asked for shape in waiter.shapes)
    return tuple([-amount for amount in largest]), tuple([-amount for amount in waiter.asked]), waiter.rank


def note_moves(draft: Draft, mark: int, returned: Mapping[TaskKey, Placed]) -> None:
    """Tell those evicted since the mark where they go instead."""
    if not returned:
        return
    for entry in draft.evicted_since(mark):
        entry.moved_to = returned.get((entry.job.id, entry.holding.task.id))
        if entry.moved_to is not None:
            entry.moved_to.moves = True
