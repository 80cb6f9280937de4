"""One manager per home: its lock, starting it in the background, and ending it.

Place in the flow: cli ─▶ **lifetime** ─▶ daemon. A manager is known by the lock it holds, not by a number in a file.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from gpuyard.errors import ServiceError
from gpuyard.platform.clock import monotonic_ms, sleep_ms
from gpuyard.platform.home import DATABASE_FILE, SERVER_FILE
from gpuyard.platform.locks import hold, holder
from gpuyard.platform.processes import ProcessIdentity, find_process, is_alive, start_in_background
from gpuyard.service.settings import Settings

LOCK: Final = "manager.lock"
AGENT_LOCK: Final = "agent/agent.lock"
LOG: Final = "manager.log"
START_MS: Final = 60_000
STOP_MS: Final = 40_000
"""A manager ends its agent first, and that its fake GPUs."""
POLL_MS: Final = 50
LAST_LINES: Final = 12
MACHINE_LINES: Final = ("gpus", "agent")
"""What a manager says of the agent of its own machine begins so."""


def make_home(home: Path) -> None:
    """The folder of all local state; as root, users of jobs must be able to pass it."""
    try:
        home.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(home, error) from None


def make_state_folder(home: Path) -> None:
    """The home, and in it the folder of the database, which is closed to everybody else."""
    make_home(home)
    try:
        (home / DATABASE_FILE).parent.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise unusable(home, error) from None


def unusable(home: Path, error: OSError) -> ServiceError:
    return ServiceError(
        f"the home {home} cannot be used: {error.strerror}", fix="choose another: GPUYARD_HOME or --home"
    )


@contextmanager
def as_manager(home: Path) -> Generator[None, None, None]:
    """Be the manager of this home, or say who is."""
    make_home(home)
    handle = hold(home / LOCK)
    if handle is None:
        pid = holder(home / LOCK)
        raise ServiceError(
            f"a manager already runs in {home}{f' (process {pid})' if pid else ''}",
            fix="use it: gpuyard status; end it: gpuyard down; or start another with --home",
        )
    try:
        yield
    finally:
        os.close(handle)


def running(lock: Path) -> ProcessIdentity | None:
    """Who holds a lock; None where nobody does."""
    pid = holder(lock)
    return find_process(pid) if pid is not None else None


def start_detached(settings: Settings, arguments: Sequence[str]) -> Iterator[str]:
    """Start the same command in the background; what it says, until it answers and this machine takes work."""
    home = settings.home
    if running(home / LOCK) is not None:
        with as_manager(home):
            pass
    make_home(home)
    command = [sys.executable, "-m", "gpuyard", *(one for one in arguments if one not in ("-d", "--detach"))]
    found = home / SERVER_FILE
    found.unlink(missing_ok=True)
    log = home / LOG
    process = start_in_background(command, log)
    until_ms = monotonic_ms() + START_MS
    while not found.exists() or (settings.with_agent and not _tells_of_its_machine(log) and monotonic_ms() < until_ms):
        if process.exit_code() is not None or monotonic_ms() > until_ms:
            raise ServiceError(
                f"the manager did not start; the end of {log}:\n{_last(log)}", fix="mend that, then again"
            )
        sleep_ms(POLL_MS)
    yield from _lines(log)
    yield f"log        {log}; gpuyard down ends it"


def _tells_of_its_machine(log: Path) -> bool:
    """Whether its agent is there, or cannot be."""
    return any(line.split(" ", 1)[0] in MACHINE_LINES for line in _lines(log))


def take_down(home: Path) -> Iterator[str]:
    """End manager and agent of a home; what was done, which is nothing where none runs."""
    manager = running(home / LOCK)
    agent = running(home / AGENT_LOCK)
    if manager is not None:
        _end(manager)
        yield f"manager    ended (process {manager.pid})"
    if agent is not None:
        _end(agent)
        yield f"agent      ended (process {agent.pid})"


def _end(process: ProcessIdentity) -> None:
    """One that ends meanwhile, as an agent does with its manager, is no matter."""
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)
    until_ms = monotonic_ms() + STOP_MS
    while is_alive(process):
        if monotonic_ms() > until_ms:
            raise ServiceError(f"process {process.pid} was asked to end and still runs", fix="look into its log")
        sleep_ms(POLL_MS)


def _last(log: Path) -> str:
    return "\n".join(f"  {line}" for line in _lines(log)[-LAST_LINES:])


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
