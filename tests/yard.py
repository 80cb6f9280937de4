"""A whole gpuyard for tests: the real manager and agent as processes, in a folder of its own, on free ports.

`with running_yard(tmp_path) as yard:` starts `gpuyard up`; `yard.client()` is signed in as admin. Whatever it started,
and whatever those started, is gone at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpuyard.sdk.client import Client
from tests.cells import remove_cells
from tests.ports import free_ports

START_S = 120.0
ROOT = Path(__file__).parent.parent


class Yard:
    """One home, and the processes that live in it."""

    def __init__(self, home: Path, *options: str) -> None:
        self.home = home
        self.port, self.agents_port = free_ports(2)
        self.options = options
        self.listen = "127.0.0.1"
        self.prefix: list[str] = []
        """In front of the command that starts it, as to take rights away."""
        self.process: subprocess.Popen[bytes] | None = None
        self.environment = {
            **os.environ,
            "GPUYARD_HOME": str(home),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        }

    # --------------------------------------------------------------------------------------------------- start, stop

    def start(self) -> None:
        found = self.home / "server.json"
        found.unlink(missing_ok=True)
        self.home.mkdir(parents=True, exist_ok=True)
        listen = ["--listen", f"{self.listen}:{self.port}", "--agents-listen", f"{self.listen}:{self.agents_port}"]
        command = [*self.prefix, sys.executable, "-m", "gpuyard", "up", *listen, *self.options]
        with (self.home / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )
        wait_for(found.exists, START_S, self._why_not)

    def _why_not(self) -> str:
        ended = self.process.poll() if self.process else None
        text = self.said()[-2000:]
        agent = self.home / "agent" / "agent.log"
        return f"the manager ({ended=}) said:\n{text}\nthe agent said:\n{_tail(agent)}"

    def said(self) -> str:
        """What `gpuyard up` has written to its terminal."""
        return (self.home / "up.log").read_text(errors="replace")

    def ready(self) -> Client:
        """A client, once the machine takes work."""
        client = self.client()
        wait_for(lambda: client.status().ready_nodes > 0, START_S, self._why_not)
        return client

    def client(self) -> Client:
        return Client(self.url, (self.home / "admin.token").read_text().strip())

    @property
    def url(self) -> str:
        return str(json.loads((self.home / "server.json").read_bytes())["url"])

    def kill_manager(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def kill_agent(self) -> None:
        pid = self.agent_pid()
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def agent_pid(self) -> int:
        try:
            return int((self.home / "agent" / "agent.pid").read_text())
        except (OSError, ValueError):
            return 0

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.kill_everyone()

    def everyone(self) -> list[int]:
        """Every process that was started in this home: manager, agent, supervisors, tasks, fake GPUs."""
        marks = (f"GPUYARD_HOME={self.home}".encode(), str(self.home).encode())
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with suppress(OSError):
                told = (entry / "environ").read_bytes().split(b"\0")
                words = (entry / "cmdline").read_bytes()
                # What a task runs may know nothing of us but the directory it was begun in.
                inside = str((entry / "cwd").readlink()).startswith(f"{self.home}/")
                if marks[0] in told or marks[1] in words or inside:
                    found.append(int(entry.name))
        return found

    def kill_everyone(self) -> None:
        """As when the machine loses its power."""
        for pid in self.everyone():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not self.everyone())
        remove_cells(self.home / "agent")

    # ----------------------------------------------------------------------------------------------------- commands

    def gpuyard(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The command line, as a user of this machine runs it."""
        done = subprocess.run(
            [sys.executable, "-m", "gpuyard", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"gpuyard {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that other users can pass, as jobs of other users must; the folders pytest makes are closed to them."""
    folder = Path(tempfile.mkdtemp(prefix="gpuyard-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_yard(folder: Path, *options: str, prefix: Sequence[str] = ()) -> Iterator[Yard]:
    yard = Yard(folder / "home", *options)
    yard.prefix = list(prefix)
    try:
        yard.start()
        yield yard
    finally:
        yard.stop()


def wait_for(condition: Callable[[], Any], limit_s: float = 60.0, why: Callable[[], str] = lambda: "") -> Any:
    """What the condition says once it is true; errors on the way count as not yet."""
    until = time.monotonic() + limit_s
    problem: Exception | None = None
    while time.monotonic() < until:
        try:
            value = condition()
            if value:
                return value
        except Exception as error:
            problem = error
        time.sleep(0.02)
    raise AssertionError(f"not within {limit_s:g} s; {problem!r}\n{why()}")


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-2000:] if path.exists() else "(nothing)"
