"""A program on a fake GPU, from its start to its end.

Place in the flow: cli ─Task─▶ **tasks** ─Start, Stop─▶ daemon. The program has our terminal and sees the machine.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.errors import FakeGpuError
from gpuyard.fakegpu.control import Start, Stop, ask
from gpuyard.fakegpu.launch import environment
from gpuyard.fakegpu.profile import Profile, read_profile
from gpuyard.files.source import read_text
from gpuyard.model.quantities import memory_bytes
from gpuyard.platform.processes import Child

NOT_FOUND: Final = 127


class Task(msgspec.Struct, frozen=True):
    """What to run, and what it shall look like on the GPU; texts are as a person wrote them."""

    node: str | None
    gpu: int | str
    command: tuple[str, ...]
    memory: str | None = None
    profile: str | None = None


def run_task(home: Path, task: Task) -> int:
    """Run it to its end; the answer is its exit code. What is wrong with the task is told before it starts."""
    memory = None if task.memory is None else memory_bytes(task.memory, "--memory")
    profile = None if task.profile is None else given_profile(task.profile)
    sees = environment(home, task.node)
    node = task.node or Path(sees.state).name
    child = _started(task, sees.variables(dict(os.environ)))
    name = f"run:{child.pid}"
    try:
        ask(home, Start(node, task.gpu, name, profile, child.pid, memory), type(None))
    except FakeGpuError:
        child.end()
        raise
    code = child.wait()
    # The daemon may have seen the end before us, or be down itself.
    with suppress(FakeGpuError):
        ask(home, Stop(node, name), type(None))
    return code


def given_profile(text_or_file: str) -> Profile:
    """A profile written out, or the name of a file that holds one."""
    if text_or_file.lstrip()[:1] in ("[", "{", ""):
        return read_profile(text_or_file)
    return read_profile(read_text(Path(text_or_file)), source=text_or_file)


def _started(task: Task, variables: dict[str, str]) -> Child:
    try:
        return Child(task.command, variables)
    except OSError as error:
        fix = "check the name of the program behind --"
        raise FakeGpuError(f"{task.command[0]} cannot be run: {error.strerror}", fix=fix) from None
