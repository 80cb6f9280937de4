"""Whether a job could ever run: it is placed on the cluster as it would be with everything up and nothing running.

Place in the flow: questions ─nodes, queues─▶ **empty cluster** ─reasons─▶ questions. It holds values only, so it may be
asked in any one thread. Invariant: it never changes; for other nodes or queues there is another one.
"""

from __future__ import annotations

from typing import Final

from gpuyard.model.jobs import Job
from gpuyard.model.nodes import Node
from gpuyard.model.queues import Queue
from gpuyard.model.reasons import Reason
from gpuyard.model.snapshot import JobSeen, Snapshot
from gpuyard.policies.policy import Policy
from gpuyard.scheduler.cycle import plan
from gpuyard.scheduler.ledger import Ledger
from gpuyard.worlds.standalone.snapshot import MACHINES

MAX_REMEMBERED: Final = 1_000
"""Kinds of jobs of which it is known whether they can ever run."""


class EmptyCluster:
    """Nodes and queues without jobs."""

    def __init__(self, nodes: tuple[Node, ...], queues: tuple[Queue, ...], policy: Policy) -> None:
        self.nodes = nodes
        self.queues = queues
        self._policy = policy
        self._ledger: Ledger | None = None
        self._known: dict[Job, tuple[Reason, ...]] = {}

    def known(self, form: Job) -> tuple[Reason, ...] | None:
        """What was found out about such a job before; None where it was not asked about."""
        return self._known.get(form)

    def never(self, form: Job, asked: Job) -> tuple[Reason, ...]:
        """What would keep `asked`, a job of that form, from starting here; nothing where it could start."""
        if self._ledger is None:
            self._ledger = Ledger.of(Snapshot(self.nodes, self.queues, topologies=(MACHINES,)))
        ledger = self._ledger.fork()
        ledger.apply([JobSeen(asked)])
        reasons = plan(ledger, self._policy).reasons_for(asked.id)
        found = tuple(reason for reason in reasons if reason.never)
        self._remember(form, found)
        return found

    def _remember(self, form: Job, never: tuple[Reason, ...]) -> None:
        """Most jobs are like many before them."""
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[form] = never
