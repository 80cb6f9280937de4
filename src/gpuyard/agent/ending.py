"""The end of everything in an agent's home, once the agent itself is gone: its tasks, politely, and its fake GPUs.

Place in the flow: cli ─▶ **ending** ─SIGTERM─▶ supervisors; ─▶ fake GPUs. Invariant: fake GPUs are ended only when no
task is left that may use them, and nothing is ended while an agent runs that would start it again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpuyard.agent import attempts, fakes, home, records
from gpuyard.agent.home import Home
from gpuyard.agent.supervisor.files import GUARD_LOCK, LOCK, SPEC
from gpuyard.agent.supervisor.lease import Lease
from gpuyard.errors import AgentError
from gpuyard.platform.clock import boot_ms, monotonic_ms, sleep_ms
from gpuyard.platform.locks import hold, holder

POLL_MS: Final = 50
PROGRESS_MS: Final = 5_000
MARGIN_MS: Final = 10_000
"""So much longer than the longest grace it may take until the last process is gone."""


def end_what_is_left(root: Path, *, with_tasks: bool) -> Iterator[str]:
    """End what the agent of that home has left; what is done, line by line. Tasks only `with_tasks`."""
    found = home.find(root)
    if found is None:
        return
    lock = hold(found.lock)
    if lock is None:
        raise AgentError(f"an agent runs in {found.root}", fix="end it first: gpuyard down")
    try:
        if with_tasks:
            yield from _end_tasks(found)
        left = len(running(found))
        if left:
            yield f"tasks      {counted(left)} on; {'they end' if left > 1 else 'it ends'} {_lease_end(found)}"
        else:
            yield from _end_fakes(found)
    finally:
        os.close(lock)


def running(found: Home) -> list[Path]:
    """The folders of attempts that have a supervisor, or a guard that still clears up."""
    folders = found.attempts.iterdir() if found.attempts.exists() else ()
    return [at for at in folders if holder(at / LOCK) is not None or holder(at / GUARD_LOCK) is not None]


def counted(tasks: int) -> str:
    return "1 task runs" if tasks == 1 else f"{tasks} tasks run"


def _lease_end(found: Home) -> str:
    left_ms = max(Lease(str(found.lease)).deadline_ms - boot_ms(), 0)
    return f"within {-(-left_ms // 1000)} s unless gpuyard comes back"


def _end_tasks(found: Home) -> Iterator[str]:
    _forestall(found)
    told = running(found)
    if not told:
        return
    grace_ms = max(_grace_ms(folder) for folder in told)
    yield f"tasks      {len(told)} told to end; they have up to {grace_ms / 1000:g} s"
    for folder in told:
        _tell_to_end(folder)
    until_ms = monotonic_ms() + grace_ms + MARGIN_MS
    tell_ms = monotonic_ms() + PROGRESS_MS
    while left := running(found):
        now_ms = monotonic_ms()
        if now_ms > until_ms:
            names = ", ".join(sorted(folder.name for folder in left))
            raise AgentError(f"told to end, but still there: {names}", fix=f"look into {found.attempts}, then again")
        if now_ms > tell_ms:
            tell_ms = now_ms + PROGRESS_MS
            yield f"tasks      {len(left)} of {len(told)} are still ending"
        sleep_ms(POLL_MS)
    yield f"tasks      {len(told)} ended; they are queued again when the manager comes back"


def _forestall(found: Home) -> None:
    """What a supervisor was only just asked for is not started any more."""
    for folder in found.attempts.iterdir() if found.attempts.exists() else ():
        attempt = attempts.found(folder)
        if attempt is not None:
            attempts.drop_unstarted(attempt)


def _grace_ms(folder: Path) -> int:
    spec = records.read(folder / SPEC)
    return spec.number("grace_ms") if spec is not None else 0


def _tell_to_end(folder: Path) -> None:
    pid = holder(folder / LOCK)
    if pid is None:
        return
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return


def _end_fakes(found: Home) -> Iterator[str]:
    pid = fakes.end(found.fake) if found.fake.exists() else None
    if pid is not None:
        yield f"fake GPUs  ended (process {pid})"
