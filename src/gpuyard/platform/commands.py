"""Running another program to its end.

Place in the flow: whoever needs a compiler or a tool of the machine asks here; nothing else starts programs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec


class Finished(msgspec.Struct, frozen=True):
    """How a program ended, and everything it said."""

    code: int
    output: str


def run(command: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Finished:
    """Run a program and wait for it; one that cannot be started or does not end in time has a code of its own."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            env=env,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Finished(124, f"{command[0]} did not end within {timeout_s:g} s")
    except OSError as error:
        return Finished(127, f"{command[0]}: {error.strerror}")
    return Finished(done.returncode, done.stdout.decode(errors="replace"))


def follow(
    command: Sequence[str], heard: Callable[[str], None], *, folder: Path, env: Mapping[str, str] | None = None
) -> int:
    """Run a program in a folder, however long it takes, and hear each line it says; the code it ends with."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                heard(line.rstrip("\n"))
        except BaseException:
            # Nobody waits for it any more.
            process.kill()
            raise
    return process.returncode
