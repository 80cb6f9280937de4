"""Which unhealthy nodes a job would use, were they healthy: a part of why it waits.

Place in the flow: state ─▶ **unhealthy** ─sentences─▶ explain. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec.structs import replace

from gpuyard.model.jobs import Request
from gpuyard.model.nodes import Node
from gpuyard.scheduler.eligibility import may_use
from gpuyard.worlds.standalone.lifecycle import JobState, TaskPhase
from gpuyard.worlds.standalone.records import JobRecord, State
from gpuyard.worlds.standalone.snapshot import node_seen_as

MAX_NAMED: Final = 5


def unhealthy_nodes(state: State, job: JobRecord) -> tuple[str, ...]:
    """Return a sentence for each of the first unhealthy nodes that a pending task of the job asks for."""
    if job.state not in (JobState.WAITING, JobState.STARTING, JobState.RUNNING):
        return ()
    return tuple(islice(_sentences(state, job), MAX_NAMED))


def _sentences(state: State, job: JobRecord) -> Iterator[str]:
    requests = {
        form.request for form, task in zip(job.form.tasks, job.tasks, strict=True) if task.phase is TaskPhase.WAITING
    }
    for node in state.nodes.values():
        if node.unhealthy and any(_would_do(replace(node_seen_as(node), ready=True), request) for request in requests):
            yield f"node {node.name} is unhealthy and takes no new task: {node.unhealthy}"


def _would_do(node: Node, request: Request) -> bool:
    models = request.where.gpu_models
    return may_use(node, request.where) and (not models or any(device.model in models for device in node.devices))
