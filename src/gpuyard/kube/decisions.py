"""The decision log: one line of JSON for everything that was decided, with its reason, for people and programs.

Place in the flow: scheduler ─cycle by cycle─▶ **decisions** ─lines─▶ a file, a terminal, the demo. Invariant: a line is
written when it is decided, before it is done; what is written follows from the plan and the books alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from gpuyard.kubeapi.moments import micros_text_of
from gpuyard.model.jobs import Job, Request
from gpuyard.model.plan import Action, Bind, Evict, Move, Plan, Promise
from gpuyard.model.quantities import MILLI
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.text import reason_text, waiting_text
from gpuyard.scheduler.ledger import Ledger
from gpuyard.worlds.kubernetes.queues import QueueTree

Write = Callable[[str], None]

PHASES: dict[Token, str] = {
    Token.MOVED: "consolidate",
    Token.RECLAIMED: "reclaim",
    Token.PREEMPTED: "preempt",
    Token.STALE: "stale-gangs",
}


class DecisionLog:
    """Tells what is new of every cycle."""

    def __init__(self, write: Write, now_ms: Callable[[], int]) -> None:
        self._write = write
        self._now_ms = now_ms
        self._cycle = 0
        self._known: set[str] = set()
        self._waiting: dict[str, tuple[Token, ...]] = {}

    def submitted(self, jobs: Iterable[Job], tree: QueueTree) -> None:
        """Jobs that wait and were not known before, in the order they came."""
        new = [job for job in jobs if job.queue and job.id not in self._known]
        for job in sorted(new, key=lambda job: (job.submitted_at_ms, job.id)):
            self._known.add(job.id)
            queue = next((queue for queue in tree.queues if queue.name == job.queue), None)
            self._line(
                "submitted",
                job=job.id,
                queue=job.queue,
                queue_name=tree.display_names.get(job.queue, job.queue),
                queue_priority=queue.priority if queue else None,
                priority=job.priority,
                gpus=sum(gpus_of(task.request) for task in job.tasks),
                tasks=len(job.tasks),
            )

    def decided(self, plan: Plan, actions: Sequence[Action], ledger: Ledger) -> None:
        """One cycle: what was verified and is being done, and who waits for another reason than before."""
        self._cycle += 1
        phase = ""
        free = _Free(ledger)
        for action in actions:
            now = _phase(action)
            if now != phase:
                phase = now
                self._line("phase", phase=phase)
            self._action(action, ledger, free)
        self._tell_waiting(plan, ledger)

    def bound(self, job: str, task: str, node: str) -> None:
        self._line("bound", job=job, task=task, node=node)

    def failed(self, job: str, task: str, node: str, why: str) -> None:
        self._line("failed", job=job, task=task, node=node, why=why)

    def gone(self, job: str) -> None:
        """Forgotten, so that one of the same name is new again."""
        if job in self._known:
            self._known.discard(job)
            self._waiting.pop(job, None)
            self._line("gone", job=job)

    def _action(self, action: Action, ledger: Ledger, free: _Free) -> None:
        job = ledger.jobs[action.job]
        request = next((task.request for task in job.tasks if task.id == action.task), Request())
        gpus = gpus_of(request)
        about: dict[str, Any] = {"job": action.job, "task": action.task, "gpus": gpus, **_why(action.reason)}
        match action:
            case Bind():
                self._line("bind", node=action.node, free_before=free.take(action.node, gpus), **about)
            case Promise():
                about |= {"free_before": free.on(action.node), "roomiest": free.roomiest(request)}
                self._line("promise", node=action.node, **about)
            case Move():
                self._line("move", **{"from": action.source, "to": action.node}, **about)
            case Evict():
                self._line("evict", node=action.node, loss=job.restart_ms > 0, **about)

    def _tell_waiting(self, plan: Plan, ledger: Ledger) -> None:
        waiting: dict[str, tuple[Token, ...]] = {}
        for entry in plan.waiting:
            tokens = tuple(reason.token for reason in entry.reasons)
            for id in entry.jobs:
                waiting[id] = tokens
                job = ledger.jobs.get(id)
                if self._waiting.get(id) != tokens and job is not None:
                    self._line(
                        "waits",
                        job=id,
                        gpus=sum(gpus_of(task.request) for task in job.tasks),
                        reasons=[msgspec.to_builtins(reason) for reason in entry.reasons],
                        text=waiting_text(entry.reasons),
                    )
        self._waiting = waiting

    def _line(self, event: str, **what: object) -> None:
        at = micros_text_of(self._now_ms())
        self._write(msgspec.json.encode({"at": at, "cycle": self._cycle, "event": event, **what}).decode())


class _Free:
    """GPUs free on nodes, as a plan takes them one after the other."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._free: dict[str, int] = {}
        self._roomiest: dict[object, dict[str, Any] | None] = {}

    def take(self, node: str, gpus: int) -> int:
        before = self.on(node)
        self._free[node] = before - gpus
        return before

    def on(self, node: str) -> int:
        if node not in self._free:
            position = self._ledger.nodes.at.get(node, -1)
            self._free[node] = self._ledger.nodes.now[position].gpu_milli // MILLI if position >= 0 else 0
        return self._free[node]

    def roomiest(self, request: Request) -> dict[str, Any] | None:
        """Of the nodes a request may use the one with the most GPUs free: what there was before others had to go."""
        key = (request.where.any_of, request.where.tolerations)
        if key not in self._roomiest:
            frames, usable = self._ledger.nodes.frames, self._ledger.eligibility.as_lists(request.where)
            free = [(self.on(frame.node.name), frame) for frame, may in zip(frames, usable, strict=True) if may]
            most = max(free, key=lambda entry: entry[0], default=None)
            self._roomiest[key] = most and {
                "node": most[1].node.name,
                "free": most[0],
                "gpus": most[1].whole_mask.bit_count(),
            }
        return self._roomiest[key]


def gpus_of(request: Request) -> int:
    """Whole GPUs; slices count as one each."""
    return request.devices + sum(count for _, count in request.mig)


def _phase(action: Action) -> str:
    return PHASES.get(action.reason.token, "allocate")


def _why(reason: Reason) -> dict[str, Any]:
    about: dict[str, Any] = {"reason": msgspec.to_builtins(reason), "text": reason_text(reason)}
    if reason.beneficiary:
        about["beneficiary"] = reason.beneficiary
    return about


def lines_of(text: str) -> Iterator[dict[str, Any]]:
    """What was logged, read back."""
    for line in text.splitlines():
        if line.strip():
            yield msgspec.json.decode(line)
