"""A guard: stands above a supervisor, so that whatever a killed one leaves falls to it, and ends that.

Place in the flow: nursery ─fork─▶ **guard** ─fork─▶ task. Invariant: a task does not outlive its supervisor, nor its
lease where the supervisor stands still.
"""

from __future__ import annotations

import fcntl
import os
import select

from gpuyard.agent.supervisor.cell import cell_of
from gpuyard.agent.supervisor.files import GUARD_LOCK, OWN_LOG, SPEC, Spec, knock, read_record
from gpuyard.agent.supervisor.lease import Lease, boot_ms
from gpuyard.agent.supervisor.processes import (
    PR_SET_CHILD_SUBREAPER,
    bury,
    fork_into,
    kill_everything,
    prctl,
    set_oom_score,
)
from gpuyard.agent.supervisor.task import supervise

GUARD_MS = 5_000
"""How often a guard looks whether the lease of a supervisor that still lives has been renewed."""
LATE_MS = 2_000
"""So long after the end of the lease the supervisor is taken to be stuck: the manager counts on no more than that."""
MAX_OPEN_FILES = 1 << 16
SPARED_OOM_SCORE = -500


def guard(folder: str) -> None:
    """Have the attempt of that folder supervised; end the task if the supervisor itself is killed or stands still."""
    os.closerange(3, MAX_OPEN_FILES)
    os.chdir(folder)
    redirect_own_output()
    if os.geteuid() == 0:
        set_oom_score(SPARED_OOM_SCORE)
    lock = os.open(GUARD_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    spec = Spec(read_record(SPEC))
    supervisor = fork_into(lambda: supervise(spec, folder))
    if not ended_well(supervisor, spec):
        cell = cell_of(spec)
        kill_everything(os.fsencode(spec.mark), cell, bury)
        cell.remove()
        knock(spec.wake)


def ended_well(supervisor: int, spec: Spec) -> bool:
    """Wait for its end; False also if it still lives when its lease is over, which it never does unless it is stuck."""
    waiting = select.poll()
    waiting.register(os.pidfd_open(supervisor), select.POLLIN)
    while True:
        left_ms = Lease(spec.lease).deadline_ms + LATE_MS - boot_ms()
        if waiting.poll(max(min(left_ms, GUARD_MS), 0)):
            return os.waitpid(supervisor, 0)[1] == 0
        if left_ms <= 0:
            return False


def redirect_own_output() -> None:
    """What we ourselves say, which is nothing unless something is wrong."""
    null = os.open(os.devnull, os.O_RDONLY)
    own = os.open(OWN_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(own, 1)
    os.dup2(own, 2)
    os.close(null)
    os.close(own)
