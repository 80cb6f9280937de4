"""A machine for tests: a real agent process with a home of its own, and nothing left of it afterwards."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from gpuyard.agent.home import folder_name
from gpuyard.agent.supervisor.files import LOCK
from gpuyard.fakegpu.control import NotUpError
from gpuyard.fakegpu.launch import take_down
from gpuyard.platform.locks import holder
from gpuyard.wire.agents import Assignment, AttemptId, Phase
from tests.agent.certificates import Authority, private
from tests.agent.manager import Manager, eventually

ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)


def an_id(attempt: int = 1) -> AttemptId:
    return AttemptId(f"job-{os.getpid()}-{next(_numbers)}", 0, attempt)


def a_task(*command: str, **fields: Any) -> Assignment:
    given = {"job_name": "test", "team": "vision", "user": "ada", "grace_ms": 2_000, **fields}
    return Assignment(given.pop("id", None) or an_id(), command=command, **given)


def a_script(text: str, **fields: Any) -> Assignment:
    return a_task("sh", "-c", text, **fields)


LEAKS = {
    "a child": "sleep 300 & echo $! > {pids}; exit 0",
    "a session of its own": "setsid sh -c 'echo $$ > {pids}; exec sleep 300' & sleep 0.3; exit 0",
    "a double fork": "(setsid sh -c 'sleep 300 & echo $! > {pids}' &); sleep 0.3; exit 0",
    "without variables": "(env -i setsid sh -c 'echo $$ > {pids}; exec sleep 300' &); sleep 0.3; exit 0",
    "nohup": "nohup sh -c 'echo $$ > {pids}; exec sleep 300' & sleep 0.3; exit 0",
}


def counted(tmp_path: Path) -> tuple[Path, str]:
    """A file in which every start of a task leaves a line, and the command that leaves it."""
    path = tmp_path / "starts"
    return path, f"echo $$ >> {path}"


def wait_for_output(manager: Manager, id: AttemptId) -> None:
    """The script's traps are set once it has said something."""
    manager.wait_for(id, Phase.RUNNING)
    assert manager.read_log(id, wait_ms=10_000).data


class Machine:
    """Starts, kills and restarts the agent of one home."""

    def __init__(self, home: Path, authority: Authority, manager: Manager) -> None:
        self.home = home
        self.manager = manager
        self.arguments: list[str] = []
        self.prefix: list[str] = []
        """In front of the agent's command, as to take rights away."""
        self._agent: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        (home / "key.pem").write_bytes(private(key))
        (home / "cert.pem").write_bytes(authority.for_node("node-a", key.public_key()))
        (home / "ca.pem").write_bytes(authority.pem)

    def start(self, *arguments: str) -> Machine:
        """And wait until it has said hello."""
        hellos = len(self.manager.hellos)
        self.arguments = [*(arguments or self.arguments or ("--fake-gpus", "0", "--isolation", "none"))]
        address = f"127.0.0.1:{self.manager.port}"
        command = [sys.executable, "-m", "gpuyard.agent", "--home", str(self.home), "--manager", address]
        with (self.home / "agent.log").open("ab") as log:
            self._agent = subprocess.Popen(
                [*self.prefix, *command, "--node", "node-a", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            )
        eventually(lambda: self.exited() or len(self.manager.hellos) > hellos, what=self.log)
        assert not self.exited(), self.log()
        return self

    def exited(self) -> bool:
        return self._agent is None or self._agent.poll() is not None

    def log(self) -> str:
        return (self.home / "agent.log").read_text()

    def kill(self) -> None:
        assert self._agent is not None
        self._agent.kill()
        self._agent.wait()

    def terminate(self) -> int:
        assert self._agent is not None
        self._agent.send_signal(signal.SIGTERM)
        return self._agent.wait(10)

    def wait_for_exit(self) -> int:
        assert self._agent is not None
        return self._agent.wait(30)

    def folder(self, id: AttemptId) -> Path:
        return self.home / "attempts" / folder_name(id)

    def supervisor(self, id: AttemptId) -> int:
        pid = holder(self.folder(id) / LOCK)
        assert pid is not None
        return pid

    def clear_up(self) -> None:
        """End the agent, every supervisor (whose guard ends its task) and the fake GPUs."""
        if self._agent is not None and self._agent.poll() is None:
            self.kill()
        for folder in (self.home / "attempts").glob("*"):
            pid = holder(folder / LOCK)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        for folder in (self.home / "attempts").glob("*"):
            eventually(lambda at=folder: holder(at / "guard") is None, what=folder)  # type: ignore[misc]
        for fake in self.home.glob("open/fake"):
            try:
                take_down(fake)
            except NotUpError:
                continue


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def pids_in(path: Path, count: int) -> list[int]:
    """Process ids that a task has written to a file, once there are so many."""
    eventually(lambda: path.exists() and len(path.read_text().split()) >= count, what=path)
    return [int(word) for word in path.read_text().split()]


def all_gone(pids: list[int], within_s: float = 5.0) -> None:
    eventually(lambda: not any(is_running(pid) for pid in pids), within_s, pids)


def pause(seconds: float) -> None:
    sleep(seconds)


@contextmanager
def shared_machine(home: Path, authority: Authority, manager: Manager) -> Iterator[Machine]:
    """Not started yet; whatever it has started is gone at the end."""
    made = Machine(home, authority, manager)
    try:
        yield made
    finally:
        made.clear_up()
