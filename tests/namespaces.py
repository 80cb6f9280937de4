"""A second machine for tests: a network namespace with a cable to this one that can be pulled."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2: a network namespace"
)


LOOPBACK_UP = ("link", "set", "lo", "up")


class Cable:
    """Two ends: ours, and that of the namespace."""

    def __init__(self, number: int) -> None:
        self.namespace = f"gytest{number}"
        self.ours, self.theirs = f"gyo{number}", f"gyt{number}"
        self.address, self.far_address = f"10.231.{number % 250}.1", f"10.231.{number % 250}.2"

    def prefix(self) -> list[str]:
        """In front of a command that is to run on the other machine."""
        return ["ip", "netns", "exec", self.namespace]

    def pull(self) -> None:
        ip("link", "set", self.ours, "down")

    def plug(self) -> None:
        ip("link", "set", self.ours, "up")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def cable() -> Iterator[Cable]:
    made = Cable(os.getpid() % 100_000)
    ip("netns", "add", made.namespace)
    try:
        ip("link", "add", made.ours, "type", "veth", "peer", "name", made.theirs, "netns", made.namespace)
        ip("addr", "add", f"{made.address}/24", "dev", made.ours)
        ip("link", "set", made.ours, "up")
        inside = ["ip", "-n", made.namespace]
        there = f"{made.far_address}/24"
        for words in (("addr", "add", there, "dev", made.theirs), ("link", "set", made.theirs, "up"), LOOPBACK_UP):
            subprocess.run([*inside, *words], check=True, capture_output=True)
        yield made
    finally:
        subprocess.run(["ip", "link", "del", made.ours], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", made.namespace], check=False, capture_output=True)
