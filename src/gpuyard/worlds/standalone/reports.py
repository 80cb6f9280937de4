"""From what an agent reports to events.

Place in the flow: agent ─Hello, Report─▶ **reports** ─events─▶ journal. Pure. An agent is not trusted beyond its own
machine: what it says of attempts that are not there is dropped. Reports repeat themselves; only news become events.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec.structs import replace

from gpuyard.wire.agent_limits import MAX_ATTEMPTS_PER_REPORT, attempt_problem
from gpuyard.wire.agents import AttemptId, AttemptReport, Ending, Hello, MachineFacts, Phase, Report
from gpuyard.worlds.standalone.consequences import ended_well
from gpuyard.worlds.standalone.events import AttemptBegan, AttemptEnded, Checkpointed, Event, NodeHeard, NodeSeen
from gpuyard.worlds.standalone.lifecycle import PLACED
from gpuyard.worlds.standalone.records import JobRecord, NodeRecord, State, TaskRecord, jobs_on, on_machine

CHECKPOINT_STEP_MS: Final = 10_000
"""A newer checkpoint is worth an entry in the log once it is that much newer."""


def of_hello(state: State, hello: Hello, facts: MachineFacts) -> Iterator[Event]:
    """A machine is heard of, perhaps for the first time, perhaps with other GPUs: `facts`, as far as believed."""
    node = state.nodes[hello.node]
    said = (facts, hello.incarnation, hello.boot_id, hello.version)
    if (node.facts, node.incarnation, node.boot_id, node.version) != said or not node.seen:
        yield NodeSeen(hello.node, *said)
    elif node.silent_since_ms is not None:
        yield NodeHeard(hello.node)


def of_report(state: State, name: str, report: Report, now_ms: int) -> Iterator[Event]:
    """What is new in a report. The state must be as after the events yielded so far.

    An attempt that is out of range is taken for one that goes on as it was: it is there, and nothing more is believed.
    """
    node = state.nodes[name]
    told: set[tuple[str, int]] = set()
    for attempt in report.attempts:
        found = lying_there(state, name, attempt.id)
        task = (attempt.id.job, attempt.id.task)
        if found is None or task in told:
            continue
        told.add(task)
        if not attempt_problem(attempt):
            yield from _of_attempt(found, name, attempt, now_ms)
    if not report.unreadable_attempts:
        yield from _vanished(state, node, told, now_ms)


def problem_of(report: Report) -> str:
    """The first thing that is out of range in what a report says of attempts; empty where nothing is."""
    if report.unreadable_attempts:
        return f"what its agent says of an attempt cannot be read: {report.unreadable_attempts}"
    return next(filter(None, map(attempt_problem, report.attempts)), "")


def as_far_as_known(state: State, name: str, report: Report) -> Report:
    """A report with every attempt that was given to the node, and only so many others."""
    if len(report.attempts) <= MAX_ATTEMPTS_PER_REPORT:
        return report
    known = [attempt for attempt in report.attempts if lying_there(state, name, attempt.id) is not None]
    others = (attempt for attempt in report.attempts if lying_there(state, name, attempt.id) is None)
    return replace(report, attempts=(*known, *islice(others, MAX_ATTEMPTS_PER_REPORT)))


def use_of(state: State, name: str, report: Report) -> dict[tuple[str, int], int]:
    """(job, task) → per cent its GPUs were used, of attempts that are on that node."""
    return {
        (attempt.id.job, attempt.id.task): attempt.gpu_percent
        for attempt in report.attempts
        if attempt.gpu_percent is not None
        and not attempt_problem(attempt)
        and lying_there(state, name, attempt.id) is not None
    }


def lying_there(state: State, node: str, id: AttemptId) -> tuple[JobRecord, TaskRecord] | None:
    """The job and task, if that very attempt is on that machine and was given to its agent.

    An agent that was set up anew can say nothing of what a former one was given: it may still run.
    """
    job = state.jobs.get(id.job)
    if job is None or not 0 <= id.task < len(job.tasks):
        return None
    task = job.tasks[id.task]
    here = task.place is not None and task.place.node == node and task.host == state.nodes[node].incarnation
    return (job, task) if here and task.phase in PLACED and task.attempt == id.attempt else None


def _of_attempt(found: tuple[JobRecord, TaskRecord], node: str, attempt: AttemptReport, now_ms: int) -> Iterator[Event]:
    """Moments are told by the machine's clock: what cannot be true by ours is taken for when we heard of it."""
    job, task = found
    id = attempt.id
    began = attempt.started_at_ms or (now_ms if attempt.phase is Phase.RUNNING else 0)
    if began and not task.started_at_ms:
        yield AttemptBegan(id.job, id.task, id.attempt, node, min(max(began, task.assigned_at_ms), now_ms))
    saved_ms = min(attempt.checkpoint_at_ms, now_ms)
    if saved_ms >= task.checkpoint_at_ms + CHECKPOINT_STEP_MS:
        yield Checkpointed(id.job, id.task, saved_ms)
    if attempt.phase is Phase.ENDED:
        ending = attempt.ending or Ending.LOST
        yield AttemptEnded(
            id.job,
            id.task,
            id.attempt,
            node,
            ending,
            attempt.ended_at_ms if task.assigned_at_ms <= attempt.ended_at_ms <= now_ms else now_ms,
            attempt.exit_code,
            attempt.message,
            done=ended_well(job, ending, attempt.exit_code),
        )


def _vanished(state: State, node: NodeRecord, told: set[tuple[str, int]], now_ms: int) -> Iterator[Event]:
    """What ran and is no longer even known to its agent has been lost: an agent keeps what ended until we have it."""
    for job in jobs_on(state, node.name):
        for index in on_machine(job, node.name):
            task = job.tasks[index]
            known = task.started_at_ms > 0 and task.host == node.incarnation
            if known and (job.id, index) not in told:
                yield _lost(job, index, node.name, now_ms, "its agent knows nothing of it any more")


def of_orphans(state: State, name: str, now_ms: int) -> Iterator[Event]:
    """What was given to a former agent of the machine and must have ended by now.

    Also of jobs that wait for their machine: it is back, and does not have them.
    """
    node = state.nodes[name]
    for job in jobs_on(state, name):
        for index in on_machine(job, name):
            if job.tasks[index].host != node.incarnation:
                yield _lost(job, index, name, now_ms, "the agent of the machine was set up anew")


def _lost(job: JobRecord, task: int, node: str, now_ms: int, message: str) -> AttemptEnded:
    return AttemptEnded(job.id, task, job.tasks[task].attempt, node, Ending.LOST, now_ms, message=message)


def recorded(state: State, name: str, report: Report) -> tuple[AttemptId, ...]:
    """Endings the agent has told and need not keep: they are in the state, or concern nothing we know."""
    return tuple(
        attempt.id
        for attempt in report.attempts
        if attempt.phase is Phase.ENDED and lying_there(state, name, attempt.id) is None
    )
