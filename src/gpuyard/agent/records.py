"""Small files between the agent and its supervisors: entries `name=value`, each ended by a NUL.

Place in the flow: process_runtime ─▶ **records** ◀─▶ supervisor, which has a reader and a writer of its own, because it
imports nothing of gpuyard. The form needs no library, holds any argument or variable a program can have, and reads well
with `tr '\\0' '\\n'`. Invariant: a file is there as a whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from gpuyard.errors import AgentError
from gpuyard.platform.files import write_private


class Record(msgspec.Struct, frozen=True):
    """What such a file holds; a name may come several times."""

    entries: tuple[tuple[str, str], ...] = ()

    def text(self, name: str) -> str:
        """Its first value; empty if there is none."""
        return next((value for key, value in self.entries if key == name), "")

    def number(self, name: str) -> int:
        return int(self.text(name) or 0)

    def all(self, name: str) -> tuple[str, ...]:
        return tuple(value for key, value in self.entries if key == name)


def record(single: Mapping[str, str | int], several: Iterable[tuple[str, str]] = ()) -> Record:
    return Record((*((name, str(value)) for name, value in single.items()), *several))


def encode(made: Record) -> bytes:
    for name, value in made.entries:
        if "\0" in value:
            raise AgentError(f"{name} holds a zero byte, which no program can be given", fix="leave it out")
    return os.fsencode("".join(f"{name}={value}\0" for name, value in made.entries))


def decode(content: bytes) -> Record:
    entries = os.fsdecode(content).split("\0")[:-1]
    return Record(tuple((name, value) for name, _, value in (entry.partition("=") for entry in entries)))


def read(path: Path) -> Record | None:
    """None if there is no such file."""
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return None


def write(path: Path, made: Record, *, keep: bool = False) -> None:
    """`keep`: it also outlives a loss of power."""
    write_private(path, encode(made), keep=keep)
