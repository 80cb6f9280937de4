"""What a testbed leaves on a machine, by its own names and namespaces only: others may be at work here too."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpuyard.platform.cgroups import mount_table
from gpuyard.platform.processes import find_process, marked_processes
from gpuyard.testbed import machine
from gpuyard.testbed.cgroups import hierarchies
from gpuyard.testbed.record import Record

KINDS = ("mnt", "net", "pid", "uts")


def namespaces_of(record: Record) -> set[str]:
    """Those its machines hold now, pods' among them, each as net:[4026532000]."""
    found = set()
    for name in record.machine_names():
        one = machine.find(record, name)
        for pid in machine.processes_of(one) if one else ():
            found |= namespaces_of_process(pid)
    return found - namespaces_of_process("self")


def namespaces_of_process(pid: int | str) -> set[str]:
    found = set()
    for kind in KINDS:
        try:
            found.add(str(Path(f"/proc/{pid}/ns/{kind}").readlink()))
        except OSError:
            continue
    return found


def left_of(record: Record, namespaces: set[str]) -> dict[str, list[str]]:
    """Everything that should be gone and is not, by its kind."""
    numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    # What has ended, and only waits for its parent to ask how, counts as gone.
    everyone = [process for process in map(find_process, numbers) if process]
    mounts = mount_table()
    found = {
        "processes": [process.name for process in marked_processes(record.marked())],
        "namespaces": [one.name for one in everyone if namespaces_of_process(one.pid) & namespaces],
        "pinned namespaces": [name for name in namespaces if name in mounts],
        "mounts": [line for line in mounts.splitlines() if str(record.folder) in line],
        "interfaces": [name for name in interfaces() if name.startswith(f"{record.interface}@")],
        "control groups": [str(top) for top in hierarchies(mounts) if (top / record.cgroup).exists()],
        "files": [str(path) for path in record.folder.parent.glob(f"*{record.name}*")],
    }
    return {kind: what for kind, what in found.items() if what}


def interfaces() -> list[str]:
    told = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    return [line.split()[1].rstrip(":") for line in told.splitlines()]
