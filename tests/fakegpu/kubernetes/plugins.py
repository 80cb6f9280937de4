"""A device plugin for tests: the command as a process of its own, gone with the test."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SECONDS = 30.0
COMMAND = [sys.executable, "-c", "from gpuyard.cli.main import main; main()", "fake", "device-plugin"]


class Plugin:
    """One that runs; what it says goes to a file."""

    def __init__(self, log: Path, command: Sequence[str | Path]) -> None:
        self.log = log
        self._command = command
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(SECONDS)

    def said(self) -> list[str]:
        """Without the time of each entry."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [line.split(" ", 1)[1] if line[:2] == "20" else line for line in lines]

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(SECONDS)


@contextmanager
def plugged(home: Path, folder: Path, *options: str | Path) -> Iterator[Plugin]:
    command = [*COMMAND, "--home", home, "--plugin-dir", folder, *options]
    plugin = Plugin(home.parent / f"{home.name}.plugin.log", command)
    try:
        yield plugin
    finally:
        plugin.end()
