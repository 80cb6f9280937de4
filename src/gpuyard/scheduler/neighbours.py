"""Rules between tasks: keep with, or apart from, tasks that carry certain labels.

Rare, so nothing is indexed: tasks with labels or with `apart` rules of their own are listed, and asked one by one.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gpuyard.model.jobs import Job, Neighbour, TaskState
from gpuyard.scheduler.columns import Bools
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.topology import node_label

Labels = tuple[tuple[str, str], ...]


def allowed_nodes(draft: Draft, job: Job, rules: tuple[Neighbour, ...]) -> Bools:
    """The nodes that the rules of this task, and the `apart` rules of tasks already placed, leave open."""
    frames = draft.nodes.frames
    allowed = np.ones(len(frames), dtype=np.bool_)
    present = [*draft.ledger.neighbours.present(), *_just_placed(draft)]
    for rule in rules:
        occupied = {_domain(draft, at, rule.level) for at, other, _ in present if _matches(rule, other)}
        first_of_its_kind = not occupied and not rule.apart and _matches(rule, job)
        if not first_of_its_kind:
            _restrict(draft, allowed, rule.level, occupied, rule.apart)
    for at, _, theirs in present:
        for rule in theirs:
            if rule.apart and _matches(rule, job):
                _restrict(draft, allowed, rule.level, {_domain(draft, at, rule.level)}, True)
    return allowed


class Neighbours:
    """Tasks that others may have rules about: where they are, whose they are, and which rules they have."""

    def __init__(self) -> None:
        self._by_job: dict[str, tuple[Job, list[tuple[int, tuple[Neighbour, ...]]]]] = {}
        self.any_apart = self.any_near = self.loaded = False

    def set(self, job: Job, positions: dict[str, int]) -> None:
        """Note a job's placed tasks, where it has labels or rules; forget it where it has neither."""
        self._by_job.pop(job.id, None)
        entries = [
            (positions[task.node], task.request.where.neighbours)
            for task in job.tasks
            if task.node in positions and task.state in (TaskState.RUNNING, TaskState.PROMISED, TaskState.STUCK)
        ]
        if job.labels or any(rules for _, rules in entries):
            self._by_job[job.id] = (job, entries)
        for task in job.tasks:
            for rule in task.request.where.neighbours:
                self.any_apart = self.any_apart or rule.apart
                self.any_near = self.any_near or not rule.apart

    def forget(self, job: str) -> None:
        self._by_job.pop(job, None)

    def present(self) -> Iterable[tuple[int, Job, tuple[Neighbour, ...]]]:
        for job, entries in self._by_job.values():
            for position, rules in entries:
                yield position, job, rules


def _just_placed(draft: Draft) -> Iterable[tuple[int, Job, tuple[Neighbour, ...]]]:
    for placed in draft.placed:
        yield placed.position, placed.waiter.job, placed.task.request.where.neighbours


def _matches(rule: Neighbour, job: Job) -> bool:
    return set(rule.labels) <= set(job.labels)


def _domain(draft: Draft, position: int, level: str) -> str:
    return node_label(draft.nodes.frames[position], level)


def _restrict(draft: Draft, allowed: Bools, level: str, domains: set[str], apart: bool) -> None:
    for position in range(len(allowed)):
        domain = _domain(draft, position, level)
        inside = bool(domain) and domain in domains
        if inside is apart:
            allowed[position] = False
