"""Fake GPUs for a machine that has no real ones: brought up once, kept as long as tasks run, shown to them.

Place in the flow: daemon ─▶ **fakes** ─▶ gpuyard.fakegpu ─▶ NVML. Invariant: the agent and its tasks see the same
model; a task that runs is told to it, so `nvidia-smi` shows it busy. An agent that ends in order takes them down,
unless something still runs.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.agent.attempts import Holding
from gpuyard.errors import FakeGpuError, InputError
from gpuyard.fakegpu import build
from gpuyard.fakegpu.control import DaemonStatus, NotUpError, Show, Start, Status, ask
from gpuyard.fakegpu.profile import Profile, steady
from gpuyard.model.jobs import DeviceShare
from gpuyard.model.quantities import MILLI
from gpuyard.platform.processes import ProcessIdentity, find_process, kill_process

MACHINE: Final = "node-1"
KIND: Final = "kind.json"
MIB: Final = 1 << 20
TAKEN_PERCENT: Final = 90
"""Of the memory a part was given."""
STATE: Final = "GPUYARD_FAKE_STATE"
VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"

Tell = Callable[[str], None]


class Kind(msgspec.Struct, frozen=True):
    """Which fake GPUs."""

    count: int
    product: str


class FakeGpus:
    """A model of GPUs in a folder of the agent's home."""

    def __init__(self, home: Path, kind: Kind, task_name: str = "") -> None:
        """`task_name`: what every task's process is called, because all users read it; empty: as it calls itself."""
        self._home = home
        self._kind = kind
        self._task_name = task_name
        self._process: ProcessIdentity | None = None

    def up(self, tell: Tell) -> dict[str, str]:
        """Have it running, loaded into this process under NVML's name; the variables a task needs to see it."""
        if self._running_kind() != self._kind:
            self._start(tell)
        self._process = find_process(ask(self._home, Status(limit=0), DaemonStatus).pid)
        state = ask(self._home, Show(MACHINE), str)
        library = self._copied(build.library().parent)
        program = self._copied(build.nvidia_smi().parent)
        os.environ[STATE] = state
        os.environ.pop(VISIBLE, None)  # The agent itself sees all of them.
        # nvidia-ml-py asks for the library by its name, and the loader then gives it the one that has it already.
        ctypes.CDLL(str(next(library.iterdir())), mode=ctypes.RTLD_GLOBAL)
        return {STATE: state, "LD_LIBRARY_PATH": str(library), "PATH": str(program)}

    def _running_kind(self) -> Kind | None:
        try:
            ask(self._home, Status(limit=0), DaemonStatus)
            return msgspec.json.decode((self._home / KIND).read_bytes(), type=Kind)
        except (NotUpError, OSError, msgspec.DecodeError):
            return None

    def _start(self, tell: Tell) -> None:
        # The model itself takes long to load, and mostly runs already.
        from gpuyard.fakegpu.daemon import Settings
        from gpuyard.fakegpu.launch import bring_up

        end(self._home)
        bring_up(Settings(self._home, product=self._kind.product, gpus=self._kind.count, port=0), tell)
        (self._home / KIND).write_bytes(msgspec.json.encode(self._kind))

    def down(self) -> None:
        if end(self._home) is None and self._process is not None:
            kill_process(self._process)  # Its folder is gone, so it cannot be asked.

    def _copied(self, folder: Path) -> Path:
        """What was built lies in the cache of the agent's user, where those of jobs may not look."""
        copy = self._home / "native" / folder.name
        if not copy.exists():
            new = copy.with_name(f"{copy.name}.new")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(mode=0o755, parents=True)
            # Whoever builds the same beside us has a folder in there meanwhile.
            for file in filter(Path.is_file, folder.iterdir()):
                shutil.copyfile(file, new / file.name)
                (new / file.name).chmod(0o755)
            new.chmod(0o755)
            new.rename(copy)
        return copy

    def began(self, holding: Holding) -> bool:
        """A task uses its GPUs from now on, until its process ends. One that is told twice is no matter.

        False where some of it was not taken: then the one before it may still hold the memory, or it was told before.
        """
        taken = True
        for share, device in zip(holding.shares, holding.devices, strict=True):
            if share.mig:
                continue  # Which instance of the model that is cannot be told from its id.
            start = Start(
                MACHINE,
                device,
                str(holding.id),
                profile=_profile(share, holding.fake_profile),
                pid=holding.pid,
                name=self._task_name,
                memory_bytes=share.memory_mib * MIB * TAKEN_PERCENT // 100 if share.gpu_milli < MILLI else None,
            )
            try:
                ask(self._home, start, type(None))
            except FakeGpuError:
                taken = False
        return taken


def end(home: Path) -> int | None:
    """End the fake GPUs of that folder, and wait until they are gone; the number of the process, None without one."""
    from gpuyard.fakegpu.launch import take_down  # The model itself takes long to load.

    try:
        return take_down(home)
    except NotUpError:
        return None


def _profile(share: DeviceShare, asked: str) -> Profile:
    """What the job says that it does; what cannot be read counts as busy."""
    if asked:
        from gpuyard.fakegpu.profile import read_profile  # Few ask for it.

        try:
            return read_profile(f"[{{utilization: {asked}}}]" if asked.isdecimal() else asked)
        except InputError:
            pass
    return steady(min(max(share.gpu_milli * 100 // MILLI, 1), 100))
