"""What the commands say to the daemon, and how: one JSON value a line, over a socket in its home.

Place in the flow: cli ─request─▶ **control** ─▶ daemon ─answer─▶ cli. Invariant: a request is one of the values below,
and its answer is either a value or an error with what, where and what to do, never a stack trace.
"""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from gpuyard.errors import FakeGpuError
from gpuyard.fakegpu.profile import Profile
from gpuyard.fakegpu.reading import Holder, MachineReading

SOCKET: Final = "control.sock"
MACHINES: Final = "machines"
LOG: Final = "log"
HOME: Final = "GPUYARD_FAKE_HOME"
MAX_LINE_BYTES: Final = 256 << 20
MAX_SOCKET_PATH: Final = 107
"""Longer paths do not fit into the kernel's address of a socket."""
ANSWER_SECONDS: Final = 20.0
ALL: Final = "all"
"""Every GPU of a machine, where a fault begins or ends."""

Answer = TypeVar("Answer")


# -------------------------------------------------------------------------------------------------------- requests


class Status(msgspec.Struct, frozen=True, tag=True):
    """How the daemon is, and what its machines show: one of them, or the first `limit`."""

    node: str | None = None
    limit: int = 16


class Show(msgspec.Struct, frozen=True, tag=True):
    """Have a machine's state directory, which large fleets have only for machines that were asked for."""

    node: str | None = None


class Labels(msgspec.Struct, frozen=True, tag=True):
    node: str
    seed_only: bool = False


class Break(msgspec.Struct, frozen=True, tag=True):
    """Let something go wrong with a GPU, until it is healed or the time is over."""

    node: str
    gpu: int | str
    fault: str
    for_ms: int | None = None


class Heal(msgspec.Struct, frozen=True, tag=True):
    node: str
    gpu: int | str


class Use(msgspec.Struct, frozen=True, tag=True):
    """A process uses a GPU behind our back; it is seen to end by itself."""

    node: str
    gpu: int | str
    pid: int
    memory_bytes: int
    utilization: int = 0
    mig: int | None = None
    """The instance, where the GPU is cut."""


class Start(msgspec.Struct, frozen=True, tag=True):
    """A task runs on a GPU: at full load without a profile. With a pid it ends when that process does."""

    node: str
    gpu: int | str
    task: str
    profile: Profile | None = None
    pid: int | None = None
    name: str = ""
    """What the process is called; what it is called now, if nothing is said."""
    memory_bytes: int | None = None
    holder: Holder | None = None
    mig: int | None = None


class Stop(msgspec.Struct, frozen=True, tag=True):
    node: str
    task: str


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End the daemon."""


Request = Status | Show | Labels | Break | Heal | Use | Start | Stop | Shutdown


# --------------------------------------------------------------------------------------------------------- answers


class FaultStatus(msgspec.Struct, frozen=True):
    gpu: int
    fault: str
    left_ms: int | None


class MachineStatus(msgspec.Struct, frozen=True):
    """What a machine shows, and what was made to go wrong with it."""

    state: str | None
    """Its directory, or None where it has none yet."""
    reading: MachineReading
    faults: tuple[FaultStatus, ...] = ()


class DaemonStatus(msgspec.Struct, frozen=True):
    pid: int
    home: str
    exporter: str
    config: str | None
    config_error: str | None
    """Why the newest file is not in force; None if it is."""
    up_ms: int
    machine_count: int
    gpu_count: int
    machines: tuple[MachineStatus, ...]

    def size(self) -> str:
        machines = "machine" if self.machine_count == 1 else "machines"
        gpus = "GPU" if self.gpu_count == 1 else "GPUs"
        return f"{self.machine_count} {machines}, {self.gpu_count} {gpus}"


class Problem(msgspec.Struct, frozen=True):
    """An error, as it travels; `text` is what a person reads."""

    text: str


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the daemon: the value of the answer, or a problem."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    problem: Problem | None = None


# ---------------------------------------------------------------------------------------------------------- places


def default_home() -> Path:
    """Where the daemon lives if nobody says otherwise: a place only this user writes to, gone after a restart."""
    chosen = os.environ.get(HOME)
    if chosen:
        return Path(chosen).absolute()
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "gpuyard-fake"
    return Path(f"/tmp/gpuyard-fake-{os.getuid()}")


def prepare_home(home: Path) -> Path:
    """Make sure the folder is there, is ours, and that its socket can have a name."""
    socket = home / SOCKET
    if len(os.fsencode(socket)) > MAX_SOCKET_PATH:
        fix = f"choose a shorter one with --home or {HOME}: a socket's path has {MAX_SOCKET_PATH} bytes at most"
        raise FakeGpuError(f"the path of the home {home} is too long", fix=fix)
    try:
        home.mkdir(mode=0o755, parents=True, exist_ok=True)
        facts = home.lstat()
    except OSError as error:
        why = error.strerror or str(error)
        raise FakeGpuError(f"the home {home} cannot be made: {why}", fix=f"choose another: --home or {HOME}") from None
    # In a folder for everybody, somebody else may have made it first, to be the one we talk to.
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise FakeGpuError(f"the home {home} is not a folder of yours", fix=f"choose another: --home or {HOME}")
    return home


# ---------------------------------------------------------------------------------------------------------- asking


class NotUpError(FakeGpuError):
    """Nobody answers in that home."""

    def __init__(self, home: Path) -> None:
        super().__init__(f"no fake GPUs are up in {home}", fix="start some: gpuyard fake up --gpus 8 --product A100")


def ask(home: Path, request: Request, answer: type[Answer]) -> Answer:
    """Send a request to the daemon of a home, and wait for what it says."""
    return asyncio.run(asked(home, request, answer))


async def asked(home: Path, request: Request, answer: type[Answer]) -> Answer:
    """The same for a program that does other things meanwhile."""
    line = await _exchange(home, msgspec.json.encode(request))
    try:
        outcome = msgspec.json.decode(line, type=Outcome)
        if outcome.problem is None:
            return msgspec.json.decode(outcome.value, type=answer)
    except msgspec.DecodeError as error:
        what = f"the daemon in {home} is of another version: {error}"
        raise FakeGpuError(what, fix="start it anew: gpuyard fake down, gpuyard fake up") from None
    raise FakeGpuError(outcome.problem.text)


async def _exchange(home: Path, line: bytes) -> bytes:
    try:
        reader, writer = await asyncio.open_unix_connection(home / SOCKET, limit=MAX_LINE_BYTES)
    except OSError:
        raise NotUpError(home) from None
    try:
        writer.write(line + b"\n")
        answer = await asyncio.wait_for(reader.readline(), ANSWER_SECONDS)
    except TimeoutError:
        fix = f"look into {home / LOG}, or end it: gpuyard fake down"
        raise FakeGpuError(f"the daemon in {home} does not answer", fix=fix) from None
    except OSError:
        answer = b""
    finally:
        writer.close()
    if not answer:
        raise NotUpError(home)
    return answer


def encode_outcome(value: Any) -> bytes:  # noqa: ANN401 - any value of the model
    return msgspec.json.encode(Outcome(value=msgspec.Raw(msgspec.json.encode(value)))) + b"\n"


def encode_problem(text: str) -> bytes:
    return msgspec.json.encode(Outcome(problem=Problem(text))) + b"\n"
