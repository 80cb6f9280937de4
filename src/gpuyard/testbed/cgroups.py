"""The control groups of a testbed: one below the top of every hierarchy, one for each node in it.

Place in the flow: up, power-on ─▶ **cgroups** ─▶ the kubelet, which makes those of its pods below. Version 1, version 2
and both at once. Invariant: what is removed is below the testbed's own folder, and holds no process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpuyard.errors import KubeTestbedError
from gpuyard.platform.cgroups import mount_table
from gpuyard.platform.clock import monotonic_ms, sleep_ms
from gpuyard.testbed.record import Record

REMOVE_MS: Final = 10_000
POLL_MS: Final = 20
COPIED: Final = ("cpuset.cpus", "cpuset.mems")
"""A new folder of version 1 has none, and then no process can enter it."""


def hierarchies(table: str) -> list[Path]:
    """Where each one is mounted, by the kernel's table of mounts."""
    found = []
    for line in table.splitlines():
        fields, _, filesystem = line.partition(" - ")
        if filesystem.startswith(("cgroup ", "cgroup2 ")):
            found.append(Path(fields.split()[4]))
    return found


def make(record: Record) -> None:
    tops = hierarchies(mount_table())
    if not tops:
        raise KubeTestbedError("this machine has no control groups mounted", fix="mount them at /sys/fs/cgroup")
    for top in tops:
        for node in record.node_names():
            _make(top, Path(record.cgroup) / node)


def make_of_node(record: Record, node: str) -> None:
    for top in hierarchies(mount_table()):
        _make(top, Path(record.cgroup) / node)


def _make(top: Path, below: Path) -> None:
    folder = top
    try:
        for part in below.parts:
            _pass_on(folder)
            folder = folder / part
            folder.mkdir(exist_ok=True)
            _copy_cpus(folder)
    except OSError as error:
        raise KubeTestbedError(f"{folder} cannot be made: {error.strerror}", fix="run it as root") from None


def _pass_on(folder: Path) -> None:
    """Version 2: what a folder has is used below it only if it says so."""
    with suppress(OSError):
        there = (folder / "cgroup.controllers").read_text(encoding="ascii").split()
        for controller in there:
            with suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")


def _copy_cpus(folder: Path) -> None:
    for name in COPIED:
        with suppress(FileNotFoundError):
            if not (folder / name).read_text(encoding="ascii").strip():
                above = (folder.parent / name).read_text(encoding="ascii")
                if above.strip():
                    (folder / name).write_text(above, encoding="ascii")


def remove(record: Record) -> None:
    _remove(Path(record.cgroup))


def remove_of_node(record: Record, node: str) -> None:
    _remove(Path(record.cgroup) / node)


def _remove(below: Path) -> None:
    """The kernel may still be at work on those whose processes have just ended."""
    until_ms = monotonic_ms() + REMOVE_MS
    tops = hierarchies(mount_table())
    while True:
        left = [folder for top in tops for folder in _deepest_first(top / below) if not _removed(folder)]
        if not left:
            return
        if monotonic_ms() > until_ms:
            raise KubeTestbedError(f"{left[0]} cannot be removed: something still runs in it", fix="try again")
        sleep_ms(POLL_MS)


def _deepest_first(folder: Path) -> Iterator[Path]:
    for place, _, _ in os.walk(folder, topdown=False):
        yield Path(place)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
