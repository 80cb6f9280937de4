"""Move running jobs together, so that a job fits that fits nowhere although enough is free in all.

Place in the flow: after allocate, before anyone has to give anything up; for jobs that would borrow, after everyone who
is owed something has had their turn. Every move has a price, moves are budgeted, and whoever is moved has a new place
before the plan says so. Invariant: nobody is left without a place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from gpuyard.model.jobs import Job, TaskState
from gpuyard.model.reasons import Reason, Token
from gpuyard.policies.policy import ConsolidationMode
from gpuyard.scheduler.blocks import WORK, Block, Blocks, by_index
from gpuyard.scheduler.columns import Ints
from gpuyard.scheduler.draft import Draft, Everyone
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.resources import GPU_AT
from gpuyard.scheduler.search import Search
from gpuyard.scheduler.shapes import Shape
from gpuyard.scheduler.small_sets import FEW_BLOCKS
from gpuyard.scheduler.yielding import started_at_ms

NODES_LOOKED_AT: Final = 16
"""Of the nodes that lack least, so many are priced for one job; for a gang as many more as it has tasks."""

ATTEMPTS: Final = 8
"""Sets of nodes tried for one job before it is left alone."""

UNBOUNDED: Final = 1 << 60


class Consolidate:
    """One run of the step, in two parts: for jobs within their quotas, and for borrowers."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.serves: frozenset[bool] = frozenset({False})
        """Whether jobs that would borrow are served, those that would not, or both."""
        self.blocks = Blocks(draft)
        self.budget = draft.policy.consolidation
        self.moves_left = _moves_left(draft)
        self._on_node: dict[int, list[Block]] = {}
        self.moved: dict[str, int] = {}
        """Tasks moved so far, per queue and per job."""

    def for_borrowers(self) -> Consolidate:
        self.serves = frozenset({True})
        return self

    def for_the_owed(self) -> Consolidate:
        self.serves = frozenset({False})
        return self

    def for_everyone(self) -> Consolidate:
        self.serves = frozenset({True, False})
        return self

    def attempt(self, waiter: Waiter, everyone: Everyone) -> bool:
        """Place a job by moving others. Only a job that may itself be preempted makes others move."""
        if waiter.firm or self.moves_left <= 0 or not self._enough_in_total(waiter):
            return False
        if self.borrows(waiter) not in self.serves:
            return False
        avoided: set[int] = set()
        for _ in range(ATTEMPTS):
            rules = ConsolidateRules(self, waiter, avoided)
            if Search(self.draft, waiter, rules, everyone).run():
                return True
            if rules.tried <= avoided:
                break
            avoided |= rules.tried
        return self._by_chains(waiter, everyone)

    def _by_chains(self, waiter: Waiter, everyone: Everyone) -> bool:
        """Where little runs at all: also moves off nodes that are none for the job, to make room for who moves."""
        running = (job for yielders in self.draft.ledger.yielders for job in yielders.jobs)
        if len(list(islice(running, FEW_BLOCKS + 1))) > FEW_BLOCKS:
            return False
        rules = AnyNode(self, waiter, set())
        blocks = list(rules.blocks())
        for index, block in enumerate(blocks):
            block.index = index
        return Search(self.draft, waiter, rules, everyone).try_every_set(blocks)

    def is_over_fed(self, waiter: Waiter) -> bool:
        """Whether the job's queue holds all it is owed, or more, of something the job asks for."""
        queues = self.draft.queues
        return any(
            waiter.asked[position] and queues.held[waiter.leaf][position] >= quota
            for position, quota in queues.frames[waiter.leaf].quotas
        )

    def is_under_fed(self, leaf: int) -> bool:
        """Whether a queue holds less than it is owed of something, and wants more of it."""
        queues, before = self.draft.queues, self.draft.ledger.queues.held[leaf]
        return any(
            queues.held[leaf][position] < min(quota, before[position] + queues.asked[leaf][position])
            for position, quota in queues.frames[leaf].quotas
        )

    def borrows(self, waiter: Waiter) -> bool:
        """Whether the job would take its queue, or one above it, beyond what it is owed."""
        queues = self.draft.queues
        return any(
            waiter.asked[position] and queues.held[at][position] + waiter.asked[position] > quota
            for at in queues.frames[waiter.leaf].path
            for position, quota in queues.frames[at].quotas
        )

    def note(self, block: Block) -> None:
        """Count the moves of a block that goes."""
        count = len(block.holdings)
        self.moves_left -= count
        for name in (block.job.queue, f"job {block.job.id}"):
            self.moved[name] = self.moved.get(name, 0) + count

    def affordable(self, blocks: Sequence[Block]) -> bool:
        """Whether moving all of these is within every budget."""
        if sum([len(block.holdings) for block in blocks]) > self.moves_left:
            return False
        most = self.budget.max_price
        if most is not None and sum(block.cost // WORK for block in blocks) > most * 1000:
            return False
        budgets = self._budgets(blocks)
        return not budgets or all(self._within(name, most, blocks) for name, most in budgets.items())

    def _budgets(self, blocks: Sequence[Block]) -> dict[str, int]:
        budgets: dict[str, int] = {}
        frames = self.draft.queues.frames
        for block in blocks:
            queue = frames[block.leaf].queue.disruption_budget
            if queue is not None:
                budgets[block.job.queue] = queue
            if block.job.disruption_budget is not None:
                budgets[f"job {block.job.id}"] = block.job.disruption_budget
        return budgets

    def _within(self, name: str, most: int, blocks: Sequence[Block]) -> bool:
        more = sum(len(block.holdings) for block in blocks if name in (block.job.queue, f"job {block.job.id}"))
        return self.moved.get(name, 0) + more <= most

    def movable(self, job: Job) -> bool:
        if not job.may_move or job.queue not in self.draft.queues.by_name:
            return False
        return self.draft.ledger.now_ms >= started_at_ms(job) + self.budget.min_runtime_ms

    def blocks_on(self, position: int) -> Iterator[Block]:
        """What could be moved off a node."""
        known = self._on_node.get(position)
        if known is None:
            known = self._on_node[position] = list(self._find_blocks(position))
        disturbed = self.draft.disturbed
        return (block for block in known if block.job.id not in disturbed)

    def _find_blocks(self, position: int) -> Iterator[Block]:
        seen: set[str] = set()
        for task, job in self.draft.nodes.tasks_on[position]:
            if task.state is not TaskState.RUNNING or job.id in seen or not self.movable(job):
                continue
            seen.add(job.id)
            for block in self.blocks.of(job, self.draft.queues.leaf_at(job.queue)):
                if any(holding.position == position for holding in block.holdings):
                    yield block

    def _enough_in_total(self, waiter: Waiter) -> bool:
        """Moves free nothing in all: where too little is free, they cannot help."""
        need = waiter.at_least[GPU_AT]
        return bool(need) and int(free_milli(self.draft).sum()) >= need


class ConsolidateRules:
    """Anyone who may be moved, on the nodes that lack least for the job."""

    ranked = False
    may_move = True
    must_move = True
    job_first = True

    def __init__(self, step: Consolidate, waiter: Waiter, avoided: set[int]) -> None:
        self.step = step
        self.waiter = waiter
        self.avoided = avoided
        self.over_fed = step.is_over_fed(waiter)
        self.tried: set[int] = set()
        """Nodes of sets that were proposed."""

    def blocks(self) -> Iterator[Block]:
        """Whoever would be served last moves first, where the price is the same. A job does not move itself."""
        found = {id(block): block for position in self._nodes() for block in self.step.blocks_on(position)}
        others = [block for block in found.values() if self._may_be_moved(block)]
        return iter(sorted(others, key=Block.stay, reverse=True))

    def _may_be_moved(self, block: Block) -> bool:
        """A job does not move itself, and an over-fed queue does not shuffle an under-fed one."""
        if block.job.id == self.waiter.job.id:
            return False
        return not self.over_fed or block.leaf == self.waiter.leaf or not self.step.is_under_fed(block.leaf)

    def _nodes(self) -> list[int]:
        """Nodes that lack something for the largest task and could have it, those that lack least first."""
        draft, shape = self.step.draft, max(self.waiter.shapes, key=_size)
        lacking = shape.at_least[GPU_AT] - free_milli(draft)
        possible = draft.eligibility.nodes(shape.request.where) & (draft.eligibility.gpu_all >= shape.at_least[GPU_AT])
        possible &= lacking <= self.step.moves_left * shape.at_least[GPU_AT]
        if draft.among is not None:
            possible &= draft.among
        positions = np.flatnonzero(possible)
        ordered = positions[np.argsort(lacking[positions], kind="stable")].tolist()
        most = NODES_LOOKED_AT + len(self.waiter.shapes)
        return [position for position in ordered if position not in self.avoided][:most]

    def closes(self, block: Block) -> Collection[int]:
        return ()

    def alternatives(self, last: Block) -> Iterator[Block]:
        """None beyond those that were counted off: nobody comes first."""
        return iter(())

    def judge(self, counted: Sequence[Block]) -> _Budget:
        return _Budget(self.step)

    def in_order(self, chosen: Sequence[Block]) -> list[Block]:
        return by_index(chosen)

    def allows(self, chosen: Sequence[Block], moved: set[int]) -> bool:
        self.tried |= {holding.position for block in chosen for holding in block.holdings}
        return self.step.affordable(chosen)

    def reason(self, block: Block, moved: bool) -> Reason:
        self.step.note(block)
        return Reason(Token.MOVED, subject=block.job.queue, beneficiary=self.waiter.job.id)


class AnyNode(ConsolidateRules):
    """Anyone who may be moved, wherever."""

    def _nodes(self) -> list[int]:
        return list(range(len(self.step.draft.nodes.frames)))


class _Budget:
    """Judges a set by what its moves may cost."""

    def __init__(self, step: Consolidate) -> None:
        self.step = step
        self.taken: list[Block] = []

    def allows(self, blocks: Sequence[Block]) -> bool:
        return self.step.affordable([*self.taken, *blocks])

    def take(self, blocks: Sequence[Block]) -> None:
        self.taken += blocks

    def shortfall(self, more: Sequence[Block] = ()) -> int:
        return 0


def free_milli(draft: Draft) -> Ints:
    """What is free of every node's GPUs, once what is ending has ended."""
    columns = draft.nodes.later_columns()
    columns.sync()
    free: Ints = columns.gpu_milli.clip(0)
    return free


def _moves_left(draft: Draft) -> int:
    budget = draft.policy.consolidation
    if budget.mode is ConsolidationMode.OFF:
        return 0
    left = UNBOUNDED if budget.max_moves_per_cycle is None else budget.max_moves_per_cycle
    if budget.max_moves_per_hour is not None:
        left = min(left, budget.max_moves_per_hour - draft.ledger.moves_last_hour)
    return max(left, 0)


def _size(shape: Shape) -> tuple[int, ...]:
    return shape.asked
