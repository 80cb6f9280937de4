"""Past use: old use counts less, and what was used lowers a queue's part of the surplus."""

from __future__ import annotations

import pytest

from gpuyard.errors import InputError
from gpuyard.model.jobs import DeviceShare, Job, Request, Task, TaskState
from gpuyard.model.nodes import Device, Node
from gpuyard.model.queues import Queue, QueueShare
from gpuyard.model.snapshot import Snapshot, UsageSet
from gpuyard.policies.policy import Policy
from gpuyard.scheduler.cycle import plan
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.usage import UsageMeter

HOUR_MS = 3_600_000
NODE = Node("n1", tuple(Device(memory_mib=80_000) for _ in range(4)), cpu_milli=64_000, memory_bytes=1 << 40)
QUEUES = tuple(Queue(name, shares=(QueueShare("gpu", quota=0),), order=at) for at, name in enumerate("ab"))


def running(gpus: int, queue: str) -> Job:
    shares = tuple(DeviceShare(device, 1000, 80_000) for device in range(gpus))
    task = Task(f"{queue}-0", Request(devices=gpus), state=TaskState.RUNNING, node="n1", shares=shares)
    return Job(queue, queue, (task,))


def pending(id: str, queue: str) -> Job:
    return Job(id, queue, (Task(f"{id}-0", Request(devices=1)),))


def gpu_use(meter: UsageMeter) -> dict[str, int]:
    return {entry.queue: entry.usage_ppm for entry in meter.usage() if entry.resource == "gpu"}


def test_use_is_the_part_of_the_cluster_held_over_time() -> None:
    ledger = Ledger.of(Snapshot((NODE,), QUEUES, (running(1, "a"),)))
    assert gpu_use(UsageMeter().advance(ledger, HOUR_MS)) == {"a": 250_000}


def test_what_was_used_one_half_life_ago_counts_half() -> None:
    busy = Ledger.of(Snapshot((NODE,), QUEUES, (running(4, "a"),)))
    idle = Ledger.of(Snapshot((NODE,), QUEUES))
    meter = UsageMeter(half_life_ms=HOUR_MS).advance(busy, HOUR_MS).advance(idle, HOUR_MS)
    assert gpu_use(meter) == {"a": 333_333}


def test_a_meter_does_not_run_backwards() -> None:
    with pytest.raises(InputError, match="runs forward"):
        UsageMeter().advance(Ledger.of(Snapshot()), -1)


def test_the_queue_that_used_more_gets_less_of_the_surplus() -> None:
    jobs = tuple(pending(f"{queue}{number}", queue) for queue in "ab" for number in range(4))
    ledger = Ledger.of(Snapshot((NODE,), QUEUES, jobs))
    assert sorted(action.job[0] for action in plan(ledger).actions) == ["a", "a", "b", "b"]
    busy = Ledger.of(Snapshot((NODE,), QUEUES, (running(4, "a"),)))
    ledger.apply((UsageSet(UsageMeter().advance(busy, HOUR_MS).usage()),))
    served = [action.job[0] for action in plan(ledger, Policy(usage_weight_milli=1000)).actions]
    assert served.count("b") > served.count("a")
