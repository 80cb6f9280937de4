"""A machine of the testbed: namespaces of its own, held by one process.

Place in the flow: up ─script─▶ **machine** ─▶ namespaces for mounts, processes, network and name. Nothing of them has a
place in the file system: when the first process ends, the kernel ends all others, and mounts and interfaces go with
them. Machines are found by the mark in the variables of their processes, never by a number that was written down.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.errors import KubeTestbedError
from gpuyard.platform.clock import monotonic_ms, sleep_ms
from gpuyard.platform.commands import Finished, run
from gpuyard.platform.processes import (
    ProcessIdentity,
    command_line,
    is_alive,
    kill_process,
    marked_processes,
    process_parents,
    start_in_background,
)
from gpuyard.testbed.api import holds_now
from gpuyard.testbed.record import CONTROL, Record

SCRIPT: Final = "boot.sh"
LOG: Final = "log"
HOLD: Final = "hold"
ENDED: Final = "ended"
WORDS: Final = "words"
"""Files with what components are told beyond their commands, read at every start."""
NAMESPACES: Final = ("--mount", "--uts", "--net", "--pid")
END_MS: Final = 20_000
POLL_MS: Final = 20
WORK_POLL_MS: Final = 200
COMMAND_S: Final = 60.0
ENDINGS: Final = 5
"""So often may a component end while everything comes up."""
SHOWN_LINES: Final = 6
SHOWN_CHARACTERS: Final = 400


class Machine(msgspec.Struct, frozen=True):
    """A machine that runs: the process that holds its namespaces, and process 1 inside them."""

    name: str
    holder: ProcessIdentity
    first: ProcessIdentity

    def enter(self, command: Sequence[str]) -> list[str]:
        """The command line that runs a command in there."""
        return ["nsenter", f"--target={self.first.pid}", "--mount", "--uts", "--net", "--pid", "--", *command]

    def run(self, command: Sequence[str], *, timeout_s: float = COMMAND_S) -> Finished:
        return run(self.enter(command), timeout_s=timeout_s)


def switch_on(record: Record, name: str) -> None:
    """Its script lies in its folder. It is nobody's child, so that nobody has to wait for its end."""
    folder = record.machine_folder(name)
    command = [
        *(_program("setsid"), "--fork", _program("unshare")),
        *NAMESPACES,
        *("--fork", "--kill-child", "--mount-proc", "--propagation=private"),
        *("sh", str(folder / SCRIPT)),
    ]
    started = start_in_background(command, folder / LOG / "boot.log", record.environment(name))
    while started.exit_code() is None:
        sleep_ms(POLL_MS)


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise KubeTestbedError(f"the program {name} is missing", fix="install util-linux")
    return found


def find(record: Record, name: str) -> Machine | None:
    """The machine, if it is on and its namespaces are made."""
    parents = process_parents()
    processes = {process.pid: process for process in marked_processes(record.marked(name))}
    for process in processes.values():
        holder = processes.get(parents.get(process.pid, 0))
        if holder is not None and parents.get(holder.pid) not in processes and _is_first(process.pid):
            return Machine(name, holder, process)
    return None


def _is_first(pid: int) -> bool:
    """Whether it is process 1 of the innermost namespace it is in, and its mounts are its own already."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == "1" and not _shares_mounts(pid)


def _shares_mounts(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink()
    except OSError:
        return True


def wait_for(record: Record, name: str, *, timeout_ms: int) -> Machine:
    until_ms = monotonic_ms() + timeout_ms
    while True:
        machine = find(record, name)
        if machine is not None:
            return machine
        if monotonic_ms() > until_ms:
            raise KubeTestbedError(f"{name} did not come up", fix=f"see {record.machine_folder(name) / LOG}")
        sleep_ms(POLL_MS)


def get(record: Record, name: str) -> Machine:
    machine = find(record, name)
    if machine is not None:
        return machine
    if name not in record.machine_names():
        there = ", ".join(record.machine_names())
        raise KubeTestbedError(f'testbed "{record.name}" has no machine "{name}"', fix=f"it has {there}")
    again = "up --fresh" if name == CONTROL else f"power-on {name}"
    raise KubeTestbedError(f"{name} is off", fix=f"gpuyard kube testbed {again} --name {record.name}")


# ------------------------------------------------------------------------------------------------------ what runs there


def processes_of(machine: Machine) -> list[int]:
    """Every process of a machine, those in containers too."""
    parents = process_parents()
    below: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        below.setdefault(parent, []).append(pid)
    found, open_ends = [], [machine.holder.pid]
    while open_ends:
        pid = open_ends.pop()
        found.append(pid)
        open_ends += below.get(pid, [])
    return found


def find_component(record: Record, machine: str, component: str) -> ProcessIdentity | None:
    """The process of a component that is kept running there."""
    for process in marked_processes(record.marked(machine)):
        words = command_line(process.pid)
        if words and Path(words[0]).name == component:
            return process
    return None


def endings(record: Record, machine: str, component: str) -> int:
    """How often it has ended and was started again."""
    try:
        return (record.machine_folder(machine) / ENDED / component).stat().st_size
    except FileNotFoundError:
        return 0


def forget_endings(record: Record, machine: str, component: str) -> None:
    (record.machine_folder(machine) / ENDED / component).unlink(missing_ok=True)


def last_words(record: Record, machine: str, component: str) -> str:
    """The end of what a component has said."""
    try:
        text = (record.machine_folder(machine) / LOG / f"{component}.log").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(f"  {line[:SHOWN_CHARACTERS]}" for line in text.splitlines()[-SHOWN_LINES:])


def hold_component(record: Record, machine: str, component: str) -> None:
    """From now on it is not started again when it ends: the script waits for a line from a pipe."""
    with suppress(FileExistsError):
        os.mkfifo(record.machine_folder(machine) / HOLD / component)


def release_component(record: Record, machine: str, component: str) -> None:
    """Whoever waits at the pipe is woken, and nobody else begins to wait."""
    pipe = record.machine_folder(machine) / HOLD / component
    with suppress(FileNotFoundError):
        # For both directions, so that opening it does not wait for the other side.
        handle = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.write(handle, b"\n")
            pipe.unlink(missing_ok=True)
        finally:
            os.close(handle)


def say_more(record: Record, machine: str, component: str, words: str) -> bool:
    """Words behind its command from its next start on; whether that is anything new."""
    path = record.machine_folder(machine) / WORDS / component
    if path.exists() and path.read_text(encoding="utf-8") == words:
        return False
    path.parent.mkdir(exist_ok=True)
    path.write_text(words, encoding="utf-8")
    return True


def refuse_what_does_not_stay(record: Record, machine: str, components: Iterable[str]) -> None:
    """A component that ends again and again will not come up by waiting."""
    for component in components:
        if endings(record, machine, component) >= ENDINGS:
            said = last_words(record, machine, component)
            raise KubeTestbedError(f"{component} of {machine} does not stay up; it said:\n{said}")


def kill_component(record: Record, machine: str, component: str) -> None:
    """End it at once if it runs, and wait until it is gone."""
    process = find_component(record, machine, component)
    if process is None:
        return
    until_ms = monotonic_ms() + END_MS
    while is_alive(process):
        if monotonic_ms() > until_ms:
            raise KubeTestbedError(f"{component} on {machine} does not end (process {process.pid})", fix="try again")
        kill_process(process)
        sleep_ms(POLL_MS)


def wait_for_component(record: Record, component: str, works: Callable[[], bool], timeout_ms: int) -> None:
    """Until a component of the control plane does its work, or has shown that it will not."""
    until_ms = monotonic_ms() + timeout_ms
    while not holds_now(works):
        refuse_what_does_not_stay(record, CONTROL, (component,))
        if monotonic_ms() > until_ms:
            said = last_words(record, CONTROL, component)
            raise KubeTestbedError(f"{component} does not do its work after {timeout_ms // 1000} s; it said:\n{said}")
        sleep_ms(WORK_POLL_MS)


# ------------------------------------------------------------------------------------------------------------- the end


def remove_scripts(record: Record) -> None:
    """From now on no machine of it can start."""
    for name in record.machine_names():
        (record.machine_folder(name) / SCRIPT).unlink(missing_ok=True)


def switch_off(record: Record, name: str = "") -> None:
    """End every process of a machine, or of all, and wait until they are gone.

    One that is ending has no variables any more, so those once seen are followed by their number. The first of a
    machine is gone only when all others of its namespaces are.
    """
    until_ms = monotonic_ms() + END_MS
    seen: set[ProcessIdentity] = set()
    while True:
        seen.update(marked_processes(record.marked(name)))
        left = [process for process in seen if is_alive(process)]
        if not left:
            return
        if monotonic_ms() > until_ms:
            numbers = ", ".join(str(process.pid) for process in left)
            raise KubeTestbedError(f"processes of testbed {record.name} do not end: {numbers}", fix="try again")
        for process in left:
            kill_process(process)
        sleep_ms(POLL_MS)
