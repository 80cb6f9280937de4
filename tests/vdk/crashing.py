"""A process that uses a pool until it is killed, and says before and after each call what it asks and is answered.

`python -m tests.vdk.crashing ADDRESS`: for every line it reads (a seed and a time) it starts a child, which opens the
pool, goes on with what it finds there, and dies by a kill -9 from outside. The children are forks, so that a life takes
no longer than its calls.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import msgspec

from gpuyard.vdk import DeviceRequirements, GpuResourceManager, JobAction, JobUniqueIdentifier, Plan, ProvisionError
from gpuyard.vdk.model import StepState

EXPIRY_MS = 10_000
TEAMS = ("a", "b", "c")
AMOUNTS = (300, 500, 700, 1000, 1000, 1500, 2000, 3000)


class Call(msgspec.Struct, frozen=True):
    """One call at a certain time."""

    at_ms: int
    name: str
    arguments: list[Any]


def do(manager: GpuResourceManager, call: Call) -> Any:
    """What it answers, as JSON would have it."""
    try:
        return msgspec.to_builtins(_done(manager, call))
    except ProvisionError as error:
        return error.reason


def _done(manager: GpuResourceManager, call: Call) -> list[JobAction] | Plan | list[Plan] | None:
    match call.name, call.arguments:
        case "provision", [team, job, milli, priority, checkpointable]:
            id = JobUniqueIdentifier(job=job, team=team)
            wanted = DeviceRequirements(milli)
            return manager.try_provision_resources(id, wanted, priority=priority, checkpointable=checkpointable)
        case "confirm", [plan, number]:
            return manager.confirm(plan, number)
        case "fail", [plan, number]:
            return manager.fail(plan, number, "it broke")
        case "ended", [team, job]:
            manager.job_ended(JobUniqueIdentifier(job=job, team=team))
        case "mark", [team, job, priority]:
            manager.mark_job_priority(JobUniqueIdentifier(job=job, team=team), priority)
        case "expire", []:
            return manager.expire()
    return None


def draw(chance: random.Random, manager: GpuResourceManager, at_ms: int) -> Call:
    """What a platform might do next."""
    name = chance.choice(("provision",) * 5 + ("confirm",) * 6 + ("ended",) * 2 + ("mark", "fail", "expire"))
    steps = [step.action for plan in manager.plans() for step in plan.steps if step.state is StepState.READY]
    jobs = manager.jobs()
    match name:
        case "confirm" | "fail" if steps:
            step = chance.choice(steps)
            return Call(at_ms, name, [step.plan, step.number])
        case "ended" | "mark" if jobs:
            id = chance.choice(jobs).id
            return Call(at_ms, name, [id.team, id.job] + [chance.random() < 0.4] * (name == "mark"))
        case "expire":
            return Call(at_ms + chance.choice((EXPIRY_MS // 4, EXPIRY_MS)), name, [])
    job = f"j{chance.randrange(10**9)}"
    flags = [chance.random() < 0.2, chance.random() < 0.5]
    return Call(at_ms, "provision", [chance.choice(TEAMS), job, chance.choice(AMOUNTS), *flags])


def say(word: str, value: Any) -> None:
    os.write(1, f"{word} ".encode() + msgspec.json.encode(value) + b"\n")


def live(address: str, seed: int, at_ms: int) -> None:
    chance = random.Random(seed)
    now = [at_ms]
    with GpuResourceManager(address, clock=lambda: now[0], expiry_ms=EXPIRY_MS) as manager:
        while True:
            call = draw(chance, manager, now[0])
            say("asked", call)
            now[0] = call.at_ms
            say("answered", do(manager, call))


def main(address: str) -> None:
    for line in sys.stdin:
        seed, at_ms = map(int, line.split())
        pid = os.fork()
        if not pid:
            say("born", os.getpid())
            live(address, seed, at_ms)
        os.waitpid(pid, 0)
        say("dead", pid)


if __name__ == "__main__":
    main(sys.argv[1])
