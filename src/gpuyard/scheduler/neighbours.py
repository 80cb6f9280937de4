"""Rules between tasks: keep with, or apart from, tasks that carry certain labels.

Rare, so nothing is indexed: tasks with labels or with `apart` rules of their own are listed, and asked one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gpuyard.model.jobs import Job, Neighbour, TaskState
from gpuyard.scheduler.columns import Bools
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.nodestate import NodeFrame
from gpuyard.scheduler.topology import node_label


class Present(NamedTuple):
    """A task that is there: its node, its job, its own rules."""

    position: int
    job: Job
    rules: tuple[Neighbour, ...]
    task: str


def allowed_nodes(draft: Draft, job: Job, rules: tuple[Neighbour, ...]) -> Bools:
    """The nodes that the rules of a task, and the `apart` rules of tasks already placed, leave open."""
    gone = {(entry.job.id, entry.holding.task.id) for entry in draft.evicted_since(0)}
    present = [entry for entry in draft.ledger.neighbours.present() if (entry.job.id, entry.task) not in gone]
    present += [
        Present(entry.position, entry.waiter.job, entry.task.request.where.neighbours, entry.task.id)
        for entry in draft.placed
    ]
    return open_nodes(draft.nodes.frames, present, job, rules)


def open_nodes(frames: list[NodeFrame], present: list[Present], job: Job, rules: tuple[Neighbour, ...]) -> Bools:
    """The same for any list of tasks that are there."""
    allowed = np.ones(len(frames), dtype=np.bool_)
    for rule in rules:
        occupied = {node_label(frames[one.position], rule.level) for one in present if _matches(rule, one.job)}
        first_of_its_kind = not occupied and not rule.apart and _matches(rule, job)
        if not first_of_its_kind:
            _restrict(frames, allowed, rule.level, occupied, rule.apart)
    for one in present:
        for rule in one.rules:
            if rule.apart and _matches(rule, job):
                _restrict(frames, allowed, rule.level, {node_label(frames[one.position], rule.level)}, True)
    return allowed


class Neighbours:
    """Tasks that others may have rules about: where they are, whose they are, and which rules they have."""

    def __init__(self) -> None:
        self._by_job: dict[str, list[Present]] = {}
        self._near: set[str] = set()
        self._apart: set[str] = set()
        self.loaded = False

    @property
    def any_near(self) -> bool:
        return bool(self._near)

    @property
    def any_apart(self) -> bool:
        return bool(self._apart)

    @property
    def any_rules(self) -> bool:
        return bool(self._near or self._apart)

    def set(self, job: Job, positions: dict[str, int]) -> None:
        """Note a job's placed tasks, where it has labels or rules; forget it where it has neither."""
        self.forget(job.id)
        entries = [
            Present(positions[task.node], job, task.request.where.neighbours, task.id)
            for task in job.tasks
            if task.node in positions and task.state in (TaskState.RUNNING, TaskState.PROMISED, TaskState.STUCK)
        ]
        if job.labels or any(entry.rules for entry in entries):
            self._by_job[job.id] = entries
        for task in job.tasks:
            for rule in task.request.where.neighbours:
                (self._apart if rule.apart else self._near).add(job.id)

    def fork(self) -> Neighbours:
        copy = Neighbours()
        copy._by_job, copy._near, copy._apart = self._by_job.copy(), self._near.copy(), self._apart.copy()
        copy.loaded = self.loaded
        return copy

    def forget(self, job: str) -> None:
        self._by_job.pop(job, None)
        self._near.discard(job)
        self._apart.discard(job)

    def present(self) -> Iterable[Present]:
        for entries in self._by_job.values():
            yield from entries


def _matches(rule: Neighbour, job: Job) -> bool:
    return set(rule.labels) <= set(job.labels)


def _restrict(frames: list[NodeFrame], allowed: Bools, level: str, domains: set[str], apart: bool) -> None:
    for position, frame in enumerate(frames):
        domain = node_label(frame, level)
        inside = bool(domain) and domain in domains
        if inside is apart:
            allowed[position] = False
