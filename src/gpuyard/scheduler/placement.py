"""Find places for one chunk: all of its tasks, or none.

A chunk goes into one topology domain where its groups ask for it, and onto one node where it fits on one. Tasks that
fit nowhere now may take places that are being freed; a gang that would have to wait for one of its tasks starts none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpuyard.model.jobs import Task, TaskGroup, TopologyRule
from gpuyard.policies.policy import DevicePlacement, NodePlacement
from gpuyard.scheduler.columns import Bools, Ints
from gpuyard.scheduler.company import Open
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.fit import NO_FIT, FitTable
from gpuyard.scheduler.gang import Chunk, leaves, satisfied
from gpuyard.scheduler.headroom import affordable, within_bounds
from gpuyard.scheduler.heeding import Heed, ways_to_heed
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.shapes import Shape
from gpuyard.scheduler.topology import Domain, within

if TYPE_CHECKING:
    from gpuyard.scheduler.reserve import Reserve


class Placer:
    """Places chunks on a draft, one waiter at a time."""

    waiter: Waiter
    keep_together: bool
    _unruled: bool
    """Nothing but the shape of its tasks says where they may go: no rules about others, no rationed models."""
    _choosy: bool
    """Whether it matters which company its tasks would rather have."""
    _spreads: bool
    """Whether it matters that it would rather lie on many nodes."""
    _heeds_nodes: bool
    """Whether it matters which nodes and domains it would rather have."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self._packs = draft.policy.node_placement is not NodePlacement.SPREAD

    def place(self, waiter: Waiter) -> bool:
        """Place the waiter's chunk; False leaves the draft as it was."""
        ways = ways_to_heed(self.draft, waiter)
        self._take_up(waiter, ways[0])
        return self._place_or_leave(waiter) if len(ways) == 1 else self._place_in_one_of(ways, waiter)

    def _place_in_one_of(self, ways: tuple[Heed, ...], waiter: Waiter) -> bool:
        """By the first way in which all of it starts now, else by the first in which it waits for some places."""
        mark = self.draft.mark()
        waiting: Heed | None = None
        for heed in ways:
            self._take_up(waiter, heed)
            if self._place_or_leave(waiter):
                if not self._waits(mark):
                    return True
                waiting = waiting or heed
                self.draft.rollback(mark)
        if waiting is None:
            return False
        self._take_up(waiter, waiting)
        return self._place_or_leave(waiter)

    def _place_or_leave(self, waiter: Waiter) -> bool:
        mark, reserved = self.draft.mark(), self.draft.reserved
        if not (self._placed(waiter) if reserved is None else self._beside(reserved, waiter, mark)):
            self.draft.rollback(mark)
            return False
        if self.draft.nodes.later and self._must_wait(mark):
            self.draft.postpone(mark)
        return True

    def stuck_at(self, waiter: Waiter) -> tuple[Task | None, int]:
        """The first task that finds no place once those before it have theirs, and how many do. Leaves them there."""
        self._take_up(waiter, Heed.NOTHING)
        tasks = tuple(waiter.chunk.all_tasks())
        for found, task in enumerate(tasks):
            if not self._task(task, self.draft.among):
                return task, found
        return None, len(tasks)

    def _take_up(self, waiter: Waiter, heed: Heed) -> None:
        self.waiter = waiter
        self._heeds_nodes = heed is not Heed.NOTHING
        self._unruled = not waiter.ruled and not self.draft.queues.resources.by_model
        self._spreads = waiter.job.spread and self._heeds_nodes
        self.keep_together = self._packs and not self._spreads
        self._choosy = waiter.choosy and heed is Heed.ALL
        if self._choosy and self.keep_together and self.draft.wishes is not None:
            self.keep_together = not self.draft.wishes.keep_apart(waiter.job, tuple(waiter.chunk.all_tasks()))

    def _shape_of(self, task: Task) -> Shape:
        """What a task asks for, with or without what it would rather have."""
        shapes = self.draft.shapes
        return shapes.of(task.request) if self._heeds_nodes else shapes.indifferent(shapes.of(task.request))

    def _wishes(self, shape: Shape) -> Ints | None:
        """How much a task of this shape wants each node for who is there; None where it does not matter."""
        wishes = self.draft.wishes
        if not self._choosy or not shape.choosy or wishes is None:
            return None
        return wishes.of(self.waiter.job, shape.request.where)

    def _placed(self, waiter: Waiter) -> bool:
        return self._place(waiter) and self._paid_for(waiter)

    def _beside(self, reserved: Reserve, waiter: Waiter, mark: int) -> bool:
        """Place it beside the starts that are kept. One that waits for a place to be freed ends later."""
        reserved.serve(waiter)
        if not self._placed(waiter):
            return False
        if reserved.binding(waiter.job) < reserved.binding_late(waiter.job) and self._waits(mark):
            self.draft.rollback(mark)
            reserved.serve_late(waiter)
            if not self._placed(waiter):
                return False
        return reserved.limits_hold(waiter, mark)

    def _paid_for(self, waiter: Waiter) -> bool:
        """Whether the queue may hold what the chunk came to count: memory counts by the GPUs it was given."""
        if len(waiter.shapes) == 1 or not any(shape.request.gpu_memory_mib for shape in waiter.shapes):
            return True
        return within_bounds(self.draft.queues, waiter)

    def _place(self, waiter: Waiter) -> bool:
        chunk = waiter.chunk
        among = self.draft.among
        if len(chunk.tasks) > 1 or chunk.children or chunk.group.topology is not None:
            return self._group(chunk, among)
        plain = self._unruled and not waiter.shapes[0].request.gpu_memory_mib and not self._spreads
        if plain:
            return self._put(chunk.tasks[0], waiter.shapes[0], Open(among, among))
        return self._task(chunk.tasks[0], among)

    def _must_wait(self, mark: int) -> bool:
        """Whether the job would start below its minimum, or a group that waits for a place below its own."""
        placed = self.draft.placed_since(mark)
        job, gang = self.waiter.job, self.waiter.gang
        up = {leaf: count - gang.promised.get(leaf, 0) for leaf, count in gang.active.items()} if gang else {}
        held_up: set[str] = set()
        for entry in placed:
            leaf = job.group.name if job.group.leaf else entry.task.group
            if entry.waits:
                held_up.add(leaf)
            else:
                up[leaf] = up.get(leaf, 0) + 1
        below = (leaf for leaf in leaves(job.group) if leaf.name in held_up)
        return not satisfied(job.group, up) or any(up.get(leaf.name, 0) < leaf.min_tasks for leaf in below)

    def _group(self, chunk: Chunk, among: Bools | None) -> bool:
        rule = self._rule(chunk)
        if rule is None:
            return self._within(chunk, among)
        mark = self.draft.mark()
        for domain, preferred in self._candidates(chunk, rule, among):
            if self._within(chunk, domain, preferred):
                return True
            self.draft.rollback(mark)
        return False

    def _rule(self, chunk: Chunk) -> TopologyRule | None:
        rule = chunk.group.topology
        if rule is not None:
            return rule if self._heeds_nodes else _what_binds(rule)
        by_policy = self._heeds_nodes and self.draft.policy.node_placement is NodePlacement.TOPOLOGY
        if not by_policy or chunk is not self.waiter.chunk or len(self.waiter.shapes) == 1:
            return None
        topologies = sorted(self.draft.domains.topologies)
        if not topologies:
            return None
        return TopologyRule(topologies[0], preferred=self.draft.domains.topologies[topologies[0]].levels[-1])

    def _within(self, chunk: Chunk, among: Bools | None, preferred: Sequence[Bools] = ()) -> bool:
        if chunk.group.node_each:
            return self._node_each(chunk, among)
        if not chunk.children:
            return self._tasks(chunk.tasks, among, preferred)
        if not self.keep_together or any(map(has_rule, chunk.group.children)):
            return self._children(chunk, among)
        mark = self.draft.mark()
        if self._one_node(tuple(chunk.all_tasks()), among, self.draft.fit):
            return True
        self.draft.rollback(mark)
        together = self._could_share_a_node(tuple(chunk.all_tasks()), among)
        if self._children(chunk, among) and not (together and self._waits(mark)):
            return True
        self.draft.rollback(mark)
        if not together:
            return False
        if self._one_node(tuple(chunk.all_tasks()), among, self.draft.fit_later):
            return True
        self.draft.rollback(mark)
        return self._children(chunk, among)

    def _children(self, chunk: Chunk, among: Bools | None) -> bool:
        return all(self._group(child, among) for child in chunk.children)

    def _node_each(self, chunk: Chunk, among: Bools | None) -> bool:
        """Every child on a node of its own; one of which something is there already stays where that is."""
        theirs = self._nodes_of_children(chunk.group)
        if theirs is None:
            return False
        untouched = np.ones(len(self.draft.nodes.frames), dtype=np.bool_) if among is None else among.copy()
        untouched[list(theirs.values())] = False
        for child in chunk.children:
            position = theirs.get(child.group.name)
            if not self._on_one_node(child.tasks, untouched if position is None else self._only(position, among)):
                return False
            untouched[self.draft.placed[-1].position] = False
        return True

    def _nodes_of_children(self, group: TaskGroup) -> dict[str, int] | None:
        """The node of each child that has started; None where they do not lie as they should: nothing can mend that."""
        gang, at = self.waiter.gang, self.draft.nodes.at
        if gang is None or not gang.nodes:
            return {}
        names = {child.name: set(gang.nodes_of(child)) for child in group.children}
        started = {name: next(iter(nodes)) for name, nodes in names.items() if nodes}
        if any(len(nodes) > 1 for nodes in names.values()) or len(set(started.values())) < len(started):
            return None
        return (
            {name: at[node] for name, node in started.items()} if all(map(at.__contains__, started.values())) else None
        )

    def _only(self, position: int, among: Bools | None) -> Bools:
        only = np.zeros(len(self.draft.nodes.frames), dtype=np.bool_)
        only[position] = among is None or among[position]
        return only

    def _on_one_node(self, tasks: tuple[Task, ...], among: Bools) -> bool:
        """All the tasks on one node now, else on one that is being freed."""
        mark = self.draft.mark()
        if self._one_node(tasks, among, self.draft.fit):
            return True
        self.draft.rollback(mark)
        return bool(self.draft.nodes.later) and self._one_node(tasks, among, self.draft.fit_later)

    # Topology ------------------------------------------------------------------------------------------------

    def _candidates(
        self, chunk: Chunk, rule: TopologyRule, among: Bools | None
    ) -> Iterator[tuple[Bools | None, Sequence[Bools]]]:
        """Sets of nodes to try in turn, narrowest level and tightest domain first; with each, its preferred parts."""
        domains = self.draft.domains
        levels = domains.levels(rule)
        for level in levels or ():
            if level < 0:
                yield among, self._preferred_parts(rule, among)
                continue
            masks = dict(within(domains.at(rule.topology, level), among))
            staying = self._already_in(chunk.group, rule, level)
            fitting = [(room, domain) for domain, mask in masks.items() if (room := self._room(chunk, mask)) >= 0]
            for _, domain in sorted(fitting):
                if staying is None or domain in staying:
                    yield masks[domain], self._preferred_parts(rule, masks[domain])

    def _already_in(self, group: TaskGroup, rule: TopologyRule, level: int) -> set[Domain] | None:
        """The domains a group that has started must stay in; None where it is free to choose."""
        if rule.required is None or self.waiter.gang is None:
            return None
        positions = {
            self.draft.nodes.at[node] for node in self.waiter.gang.nodes_of(group) if node in self.draft.nodes.at
        }
        return self.draft.domains.holding(rule.topology, level, positions) if positions else None

    def _room(self, chunk: Chunk, mask: Bools) -> int:
        """GPU milli (for tasks without a GPU: CPU milli) that would be left in a domain; below zero: too small."""
        tasks = tuple(chunk.all_tasks())
        shapes = [self.draft.shapes.of(task.request) for task in tasks]
        columns = self.draft.nodes.columns
        columns.sync()
        gpu_milli = sum(shape.at_least[0] for shape in shapes)
        cpu_milli = sum(task.request.cpu_milli for task in tasks)
        gpu_free = int(columns.gpu_milli[mask].sum()) + self._freeing_gpu_milli(mask)
        if any(task.request.mig for task in tasks):
            return gpu_free
        return gpu_free - gpu_milli if gpu_milli else int(columns.cpu_milli[mask].sum()) - cpu_milli

    def _freeing_gpu_milli(self, mask: Bools) -> int:
        nodes = self.draft.nodes
        return sum(state.gpu_milli - nodes.now[at].gpu_milli for at, state in nodes.later.items() if mask[at])

    def _preferred_parts(self, rule: TopologyRule, among: Bools | None) -> Sequence[Bools]:
        """Where the group cannot have one preferred domain: the domains of that level, roomiest first."""
        if rule.preferred is None:
            return ()
        level = self.draft.domains.topologies[rule.topology].levels.index(rule.preferred)
        columns = self.draft.nodes.columns
        columns.sync()
        parts = [mask for _, mask in within(self.draft.domains.at(rule.topology, level), among)]
        return sorted(parts, key=lambda mask: -int(columns.gpu_milli[mask].sum()))

    # Tasks ---------------------------------------------------------------------------------------------------

    def _tasks(self, tasks: tuple[Task, ...], among: Bools | None, preferred: Sequence[Bools]) -> bool:
        if len(tasks) == 1:
            return self._task(tasks[0], among, preferred)
        mark = self.draft.mark()
        if self.keep_together and self._one_node(tasks, among, self.draft.fit):
            return True
        self.draft.rollback(mark)
        together = self.keep_together and self._could_share_a_node(tasks, among)
        waits_anyway = together and self._nothing_fits_now(tasks, among)
        if not waits_anyway and self._each(tasks, among, preferred) and not (together and self._waits(mark)):
            return True
        self.draft.rollback(mark)
        # Whoever must wait anyway waits for one node rather than for several.
        if together:
            if self._one_node(tasks, among, self.draft.fit_later):
                return True
            self.draft.rollback(mark)
            if self._each(tasks, among, preferred):
                return True
            self.draft.rollback(mark)
        largest_first = tuple(sorted(tasks, key=lambda task: _size(self._shape_of(task)), reverse=True))
        return largest_first != tasks and self._each(largest_first, among, preferred)

    def _nothing_fits_now(self, tasks: tuple[Task, ...], among: Bools | None) -> bool:
        first = self._shape_of(tasks[0])
        return self._unruled and not first.shared and self.draft.fit.best(first, among) < 0

    def _could_share_a_node(self, tasks: tuple[Task, ...], among: Bools | None) -> bool:
        """Whether one node may come to have room for all the tasks together."""
        if not self.draft.nodes.later:
            return False
        of = self._shape_of
        first = of(tasks[0])
        if self._counts_as_one(first) and all(of(task) is first for task in tasks):
            return self.draft.fit_later.best(self.draft.shapes.several(first, len(tasks)), among) >= 0
        whole_milli = sum(of(task).at_least[0] for task in tasks if not task.request.mig)
        return whole_milli <= self.draft.eligibility.most_gpu_milli

    def _waits(self, mark: int) -> bool:
        return any(placed.waits for placed in self.draft.placed_since(mark))

    def _each(self, tasks: tuple[Task, ...], among: Bools | None, preferred: Sequence[Bools]) -> bool:
        return all(self._task(task, among, preferred) for task in tasks)

    def _task(self, task: Task, among: Bools | None, preferred: Sequence[Bools] = ()) -> bool:
        shape = self._shape(task)
        if shape is None:
            return False
        allowed = self._allowed(task, among)
        if self._spreads:
            preferred = [self._unused(), *preferred]
        for part in preferred:
            if self._put(task, shape, allowed.within(part)):
                return True
        return self._put(task, shape, allowed)

    def _unused(self) -> Bools:
        """Nodes that hold nothing of this job yet."""
        unused = np.ones(len(self.draft.nodes.frames), dtype=np.bool_)
        gang = self.waiter.gang
        for node in gang.nodes_of(self.waiter.job.group) if gang else ():
            if node in self.draft.nodes.at:
                unused[self.draft.nodes.at[node]] = False
        for entry in self.draft.placed:
            if entry.waiter.job is self.waiter.job:
                unused[entry.position] = False
        return unused

    def _put(self, task: Task, shape: Shape, allowed: Open) -> bool:
        """Give the task the best node now, else the best that is being freed."""
        draft = self.draft
        wishes = self._wishes(shape) if self._choosy else None
        now = draft.fit.best(shape, allowed.now, wishes)
        later = self._worth_waiting_for(shape, allowed.later, now, wishes) if draft.nodes.later else -1
        if later >= 0:
            draft.put(self.waiter, task, shape, later, waits=True)
        elif now >= 0:
            draft.put(self.waiter, task, shape, now, waits=False)
        return now >= 0 or later >= 0

    def _worth_waiting_for(self, shape: Shape, allowed: Bools | None, now: int, wishes: Ints | None) -> int:
        """The best node that is being freed, where none is free now; -1 where it is better not to wait."""
        fit = self.draft.fit_later
        shares_gpus = shape.shared and fit.packs_parts and wishes is None
        if now >= 0 and (not shares_gpus or self.draft.fit.joins(shape, now)):
            return -1
        later = fit.best(shape, allowed, wishes)
        if later < 0 or now < 0:
            return later
        # A part that fits on a GPU already shared waits for it rather than break open a whole one.
        return later if fit.joins(shape, later) else -1

    def _shape(self, task: Task) -> Shape | None:
        """The task's shape, narrowed to the GPU models its queue may still take; None where none is left."""
        shape = affordable(self.draft, self.waiter, self.draft.shapes.of(task.request))
        return shape if shape is None or self._heeds_nodes else self.draft.shapes.indifferent(shape)

    def _allowed(self, task: Task, among: Bools | None) -> Open:
        """Where rules about others, its own or theirs, let a task go."""
        company = self.draft.company
        if not self.waiter.ruled or company is None:
            return Open(among, among)
        return company.allowed(self.waiter.job, task).within(among)

    # One node ------------------------------------------------------------------------------------------------

    def _one_node(self, tasks: tuple[Task, ...], among: Bools | None, fit: FitTable) -> bool:
        """All tasks on the best node that takes them all; False leaves what was tried to the caller to undo."""
        first = self._shape_of(tasks[0])
        waits = fit is not self.draft.fit
        if self._counts_as_one(first) and all(self._shape_of(task) is first for task in tasks):
            position = fit.best(self.draft.shapes.several(first, len(tasks)), among, self._wishes(first))
            if position < 0:
                return False
            for task in tasks:
                self.draft.put(self.waiter, task, first, position, waits)
            return True
        mark = self.draft.mark()
        several_parts = any(task.request.devices > 1 and task.request.shared for task in tasks)
        # Tasks that each share several GPUs may only fit woven over them, which packing them tightly misses.
        ways = tuple(DevicePlacement) if several_parts else (self.draft.policy.device_placement,)
        for position in self._roomy_nodes(tasks, among, fit):
            for way in ways:
                if self._all_on(tasks, position, way, fit):
                    return True
                self.draft.rollback(mark)
        return False

    def _counts_as_one(self, shape: Shape) -> bool:
        """Whether several such tasks on a node are just one that asks for more: nothing binds them one by one."""
        return self._unruled and not shape.shared and not shape.request.mig

    def _all_on(self, tasks: tuple[Task, ...], position: int, way: DevicePlacement, fit: FitTable) -> bool:
        for task in tasks:
            shape = self._shape(task)
            if shape is None or fit.at(shape, position) >= NO_FIT:
                return False
            allowed = self._open_in(self._allowed(task, None), fit)
            if allowed is not None and not allowed[position]:
                return False
            self.draft.put(self.waiter, task, shape, position, fit is not self.draft.fit, way=way)
        return True

    def _open_in(self, allowed: Open, fit: FitTable) -> Bools | None:
        return allowed.now if fit is self.draft.fit else allowed.later

    def _roomy_nodes(self, tasks: tuple[Task, ...], among: Bools | None, fit: FitTable) -> list[int]:
        """Nodes that may take all the tasks, best first by the largest of them."""
        columns = fit.columns
        columns.sync()
        largest = max((self._shape_of(task) for task in tasks), key=_size)
        fits = fit.scores(largest) < NO_FIT
        fits &= columns.slots >= len(tasks)
        fits &= columns.cpu_milli >= sum(task.request.cpu_milli for task in tasks)
        fits &= columns.memory_bytes >= sum(task.request.memory_bytes for task in tasks)
        if not any(task.request.mig for task in tasks):
            fits &= columns.gpu_milli >= sum(task.request.devices * task.request.gpu_milli for task in tasks)
        allowed = self._open_in(self._allowed(tasks[0], among), fit)
        if allowed is not None:
            fits &= allowed
        if self.waiter.ruled and self.draft.company is not None:
            fits &= self.draft.company.for_all(self.waiter.job, tasks)
        return fit.in_order(largest, fits, self._wishes(largest))


def _what_binds(rule: TopologyRule) -> TopologyRule | None:
    """A rule without the domain that is only preferred."""
    return None if rule.required is None else TopologyRule(rule.topology, required=rule.required)


def _size(shape: Shape) -> tuple[int, ...]:
    return shape.asked


def has_rule(group: TaskGroup) -> bool:
    return group.topology is not None or group.node_each or any(map(has_rule, group.children))
