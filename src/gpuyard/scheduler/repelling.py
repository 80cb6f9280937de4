"""Jobs of other queues whose rules keep a waiting job off nodes it could use otherwise.

Place in the flow: draft, waiter ─▶ **repelling** ─carriers─▶ reclaim (who must give way for a job within its quota) and
diagnose (whom to name). A carrier counts here only where its rule alone stands in the way: what the waiter's own rules
keep it away from is its own choice, and what takes the same port or volume is no matter of rules.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np

from gpuyard.model.jobs import Job, Task, TaskState
from gpuyard.model.reasons import RULE, Token
from gpuyard.scheduler.columns import Bools, Ints
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.neighbours import Kind
from gpuyard.scheduler.resources import GPU_AT

Carrier = tuple[Job, Task]
"""A task whose rule keeps the waiter away, and its job."""

HOLDING: Final = frozenset({TaskState.RUNNING, TaskState.PROMISED})


class Repelling:
    """Every task of another queue that keeps a task of the waiter off some node, as things stand."""

    def __init__(self, draft: Draft, waiter: Waiter) -> None:
        self.draft = draft
        self.waiter = waiter
        self._neighbours = draft.ledger.neighbours
        self._shunned = {
            rule for task in waiter.chunk.all_tasks() for rule in task.request.where.neighbours if rule.apart
        }
        self._in_domain: dict[tuple[str, int], list[Carrier]] = {}
        """By level and domain, which they keep the waiter out of."""
        self._levels: set[str] = set()
        if draft.company is not None and any(waiter.kin):
            self._placed = self._placed_by_position()
            for kind in self._kinds():
                for label, staying in draft.company.keeping_apart(kind):
                    self._levels.add(label)
                    self._find(kind, label, np.flatnonzero(staying).tolist())

    def __bool__(self) -> bool:
        return bool(self._in_domain)

    def closing(self, position: int) -> list[Carrier]:
        """Those who keep the waiter off a node, each once and by name: in which order they were found says nothing."""
        found: dict[tuple[str, str], Carrier] = {}
        for label in self._levels:
            domain = int(self.draft.ledger.levels.of(label).domain[position])
            found |= {(job.id, task.id): (job, task) for job, task in self._in_domain.get((label, domain), ())}
        return [found[key] for key in sorted(found)]

    def closed(self) -> Bools:
        """The nodes the waiter is kept off."""
        closed: Bools = np.zeros(len(self.draft.nodes.frames), dtype=np.bool_)
        for label, domain in self._in_domain:
            closed |= self.draft.ledger.levels.of(label).domain == domain
        return closed

    def nodes_of(self, job: str, tasks: Collection[str]) -> set[int]:
        """The nodes that some tasks of a job keep the waiter off."""
        found: set[int] = set()
        for (label, domain), carriers in self._in_domain.items():
            if any(one.id == job and task.id in tasks for one, task in carriers):
                found.update(np.flatnonzero(self.draft.ledger.levels.of(label).domain == domain).tolist())
        return found

    def jobs(self) -> list[str]:
        """Their jobs, by name."""
        return sorted({job.id for carriers in self._in_domain.values() for job, _ in carriers})

    def _kinds(self) -> list[Kind]:
        tasks = self.waiter.chunk.all_tasks()
        return list({kind.id: kind for task in tasks for kind in self._neighbours.of(self.waiter.job, task)}.values())

    def _placed_by_position(self) -> dict[int, list[Carrier]]:
        """What this cycle has given places so far."""
        placed: dict[int, list[Carrier]] = {}
        for entry in self.draft.placed:
            if not entry.withdrawn:
                placed.setdefault(entry.position, []).append((entry.waiter.job, entry.task))
        return placed

    def _find(self, kind: Kind, label: str, positions: list[int]) -> None:
        domains = self.draft.ledger.levels.of(label).domain
        for position in positions:
            running = [(job, task) for task, job in self.draft.nodes.tasks_on[position] if task.state in HOLDING]
            for job, task in (*running, *self._placed.get(position, ())):
                if self._keeps_away(job, task, kind, label):
                    carriers = self._in_domain.setdefault((label, int(domains[position])), [])
                    carriers.append((job, task))

    def _keeps_away(self, job: Job, task: Task, kind: Kind, label: str) -> bool:
        """Whether a task has a rule that keeps this kind away, and only its rule stands between the two."""
        if job.queue == self.waiter.job.queue:
            return False
        rules = [rule for rule in task.request.where.neighbours if rule.apart and rule.level == label]
        if not any(not rule.physical and self._neighbours.repelled(rule, job, task) is kind for rule in rules):
            return False
        return not any(self._neighbours.kind(rule, self.waiter.job).has(job, task) for rule in self._shunned)


def has_yielded(job: Job) -> bool:
    """Whether a job was last stopped because a rule of its own kept another away.

    Such a job makes nobody give way for the rules they have: of several that keep each other away in a ring, each
    would else stop the next for ever.
    """
    last = job.last_eviction
    return last is not None and last.token is Token.RECLAIMED and last.resource == RULE


def is_within_quota(draft: Draft, waiter: Waiter, other: int) -> bool:
    """Whether the waiter's queue, and each above it up to where it parts from another, stays within its quota of
    everything: so that what it then has is nothing that others could reclaim."""
    queues, theirs = draft.queues, draft.queues.frames[other].path
    for at in queues.frames[waiter.leaf].path:
        if at in theirs:
            break
        held = queues.held[at]
        if any(held[position] + waiter.asked[position] > quota for position, quota in queues.frames[at].quotas):
            return False
    return True


def lacking_milli(draft: Draft, waiter: Waiter) -> Ints:
    """For every node the GPU milli it lacks for the waiter's largest task."""
    columns = draft.nodes.later_columns()
    columns.sync()
    each = max(shape.at_least[GPU_AT] for shape in waiter.shapes)
    lacking: Ints = np.maximum(each - columns.gpu_milli.clip(0), 0)
    return lacking
