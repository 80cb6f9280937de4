"""A daemon for tests: a process of its own, on a port of its own, gone with the test."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from gpuyard.fakegpu.control import DaemonStatus, NotUpError, Shutdown, Status, ask
from gpuyard.fakegpu.daemon import Settings, encode_settings

SECONDS = 30.0


@contextmanager
def running(home: Path, **settings: Any) -> Iterator[DaemonStatus]:
    """A daemon that answers; a test may end it itself."""
    process = started(home, **settings)
    try:
        yield first_status(home, process)
    finally:
        try:
            ask(home, Shutdown(), int)
        except NotUpError:
            process.terminate()
        process.communicate(timeout=SECONDS)


def started(home: Path, **settings: Any) -> subprocess.Popen[str]:
    given = encode_settings(Settings(home, **{"port": 0, **settings}))
    return subprocess.Popen(
        [sys.executable, "-m", "gpuyard.fakegpu.daemon", given],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def ended_at_once(home: Path, **settings: Any) -> tuple[int, str]:
    """The exit code and the words of a daemon that cannot start."""
    process = started(home, **settings)
    told, _ = process.communicate(timeout=SECONDS)
    return process.returncode, told


def first_status(home: Path, process: subprocess.Popen[str]) -> DaemonStatus:
    until = monotonic() + SECONDS
    while monotonic() < until:
        try:
            return ask(home, Status(limit=0), DaemonStatus)
        except NotUpError:
            if process.poll() is not None:
                raise AssertionError(process.communicate()[0]) from None
        sleep(0.05)
    raise AssertionError("the daemon does not answer")


def page(address: str) -> str:
    with urllib.request.urlopen(address, timeout=SECONDS) as answer:
        content: bytes = answer.read()
    return content.decode()


def eventually(holds: Callable[[], bool], within_s: float = 1.0) -> bool:
    """Whether it becomes true in time."""
    until = monotonic() + within_s
    while monotonic() < until:
        if holds():
            return True
        sleep(0.02)
    return holds()
