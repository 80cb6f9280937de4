"""A program on a fake GPU.

Place in the flow: cli ─Task─▶ **tasks** ─Start─▶ daemon. The program has our terminal and sees the machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from shutil import which
from typing import NoReturn

import msgspec

from gpuyard.errors import FakeGpuError
from gpuyard.fakegpu.control import Start, Stop, ask
from gpuyard.fakegpu.launch import environment
from gpuyard.fakegpu.profile import Profile, read_profile
from gpuyard.files.source import read_text
from gpuyard.model.quantities import memory_bytes
from gpuyard.platform.processes import become


class Task(msgspec.Struct, frozen=True):
    """What to run, and what it shall look like on the GPU; texts are as a person wrote them."""

    node: str | None
    gpu: int | str
    command: tuple[str, ...]
    memory: str | None = None
    profile: str | None = None
    repeat: str | None = None
    mig: int | None = None


def become_task(home: Path, task: Task) -> NoReturn:
    """Be the program, on the GPU: this process turns into it, so the GPU is busy before its first line runs.

    When it ends, the daemon sees its process gone and frees the GPU.
    """
    memory = None if task.memory is None else memory_bytes(task.memory, "--memory")
    profile = _profile(task)
    sees = environment(home, task.node)
    variables = sees.variables(dict(os.environ))
    node, program = Path(sees.state).name, task.command[0]
    if which(program, path=variables["PATH"]) is None:
        raise FakeGpuError(f"{program} cannot be run: there is no such program", fix="check its name behind --")
    name = f"run:{os.getpid()}"
    ask(home, Start(node, task.gpu, name, profile, os.getpid(), program, memory, mig=task.mig), type(None))
    try:
        become(task.command, variables)
    except OSError as error:
        ask(home, Stop(node, name), type(None))
        raise FakeGpuError(f"{program} cannot be run: {error.strerror}", fix="check its name behind --") from None


def _profile(task: Task) -> Profile | None:
    if task.profile is not None:
        return given_profile(task.profile, task.repeat)
    if task.repeat is not None:
        raise FakeGpuError("--repeat stands alone", fix="say with --profile what is repeated")
    return None


def given_profile(text_or_file: str, repeat: str | None = None) -> Profile:
    """A profile written out, or the name of a file that holds one; `repeat` is what stands beside it."""
    if text_or_file.lstrip()[:1] in ("[", "{", ""):
        return read_profile(text_or_file, repeat)
    return read_profile(read_text(Path(text_or_file)), repeat, source=text_or_file)
