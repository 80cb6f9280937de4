"""Where supervisors come from: a small process that becomes one for each attempt, by a fork.

Place in the flow: process_runtime ─folder─▶ **nursery** ─▶ supervisor. Forking the agent itself would copy its threads'
locks, and starting Python anew takes longer than all else. Invariant: a folder that is told twice, or to two nurseries,
is supervised once, because the supervisor itself claims it.
"""

from __future__ import annotations

import hashlib
import os
import py_compile
import shutil
import sys
from pathlib import Path
from typing import Final

from gpuyard.agent import supervisor
from gpuyard.agent.environment import DEFAULT_PATH
from gpuyard.agent.home import Home
from gpuyard.platform.processes import Listener

LOG: Final = "nursery.log"
START: Final = f"import sys; sys.path.append(sys.argv[1]); from {supervisor.__name__}.nursery import nursery; nursery()"


class Nursery:
    """One for each agent; another one when it was killed."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._program = program(home)
        self._process = self._start()

    def _start(self) -> Listener:
        command = [sys.executable, "-I", "-S", "-c", START, os.fspath(self._program)]
        return Listener(command, self._home.root / LOG, {"PATH": DEFAULT_PATH})

    def supervise(self, folder: Path) -> None:
        """Have a supervisor for that folder, soon; an OSError if the machine can start no process."""
        told = os.fsencode(folder) + b"\0"
        if not self._process.tell(told):
            self._process = self._start()
            self._process.tell(told)

    def close(self) -> None:
        self._process.close()


def program(home: Home) -> Path:
    """The supervisor, compiled into the home: an update of gpuyard does not change it under a running agent.

    Below it the modules lie under their full names, so that they find each other there and nothing else of gpuyard.
    """
    sources = sorted(Path(supervisor.__path__[0]).glob("*.py"))
    text = b"\0".join(part for source in sources for part in (os.fsencode(source.name), source.read_bytes()))
    folder = home.root / f"supervisor-{hashlib.sha256(text + sys.version.encode()).hexdigest()[:16]}"
    if not folder.exists():
        # Under another name first: whoever finds it by its own name finds all of it.
        new = folder.with_name(f"{folder.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        for source in sources:
            compiled = new.joinpath(*supervisor.__name__.split("."), f"{source.stem}.pyc")
            py_compile.compile(str(source), str(compiled), doraise=True)
        new.rename(folder)
    return folder
