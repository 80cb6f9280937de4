"""Whether tasks see only their own processes on this node, or why they see all of them.

Place in the flow: daemon ─find─▶ **process_view** ─isolated─▶ process_runtime ─spec─▶ supervisor/view. It is tried
once, in a process of its own, so that a node which refuses it is known before a job runs there.
Invariant: where it was found to work, a task that cannot have it is not started; it never shares the view instead.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import msgspec

from gpuyard.agent.environment import DEFAULT_PATH
from gpuyard.agent.home import Home
from gpuyard.agent.nursery import program
from gpuyard.agent.supervisor import view as supervisor_view
from gpuyard.platform.commands import run
from gpuyard.wire.agents import Isolation, ProcessView

PROBE: Final = f"import sys; sys.path.append(sys.argv[1]); from {supervisor_view.__name__} import probe; probe()"
PROBE_S: Final = 10.0


class Found(msgspec.Struct, frozen=True):
    """What tasks see here; where that is everything, why and what to do."""

    view: ProcessView
    note: str = ""


def find(home: Home, isolation: Isolation) -> Found:
    if os.geteuid() != 0:
        return Found(ProcessView.SHARED, "the agent does not run as root; run it as root")
    if isolation is not Isolation.USERS:
        why = "jobs run as root, which can see every process; start the agent without --isolation none"
        return Found(ProcessView.SHARED, why)
    problem = _problem(home)
    if problem:
        fix = "run the agent outside a container, or in one that has CAP_SYS_ADMIN and may mount (--privileged)"
        return Found(ProcessView.SHARED, f"the kernel refuses {problem}; {fix}")
    return Found(ProcessView.ISOLATED)


def _problem(home: Home) -> str:
    """What cannot be had; empty: everything can."""
    command = [sys.executable, "-I", "-S", "-c", PROBE, os.fspath(program(home))]
    done = run(command, timeout_s=PROBE_S, env={"PATH": DEFAULT_PATH})
    said = done.output.strip()
    return said if done.code == 0 else f"it: {said or f'the trial ended with {done.code}'}"
