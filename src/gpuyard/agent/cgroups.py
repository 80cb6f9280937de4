"""Which bounds of a task the kernel itself can keep here, and the cgroups that make it do so.

Place in the flow: daemon ─find─▶ **cgroups** ─entries of the spec─▶ supervisor/cell, which makes, enters and removes
them. A machine has one hierarchy for everything (version 2), one for each controller (version 1), or both.

    OURS/gpuyard-INCARNATION/task-ATTEMPT     OURS: a folder of the hierarchy that is ours to divide

Invariant: a folder is made only where it is ours to divide: at the top of what we see, in what was delegated to us, or
where the operator said so. A cgroup that another program made for itself, or for us, is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.agent.home import folder_name
from gpuyard.agent.supervisor.cell import Cell
from gpuyard.platform import cgroups as kernel
from gpuyard.wire.agents import AttemptId, Keeping

CPU: Final = "cpu"
MEMORY: Final = "memory"
PIDS: Final = "pids"
CONTROLLERS: Final = (CPU, MEMORY, PIDS)
UNIFIED: Final = ""
"""What /proc/self/cgroup calls the one hierarchy of version 2."""
NEEDS_MORE: Final = "cpuset"
"""A hierarchy with this controller takes nobody before it is told cores and memory nodes; it is not used."""

PARENT: Final = "gpuyard-"
TASK: Final = "task-"
TRIAL: Final = "trial"
AGENT_SUBGROUP: Final = "gpuyard-agent"
"""An agent that finds itself in a folder of this name divides the one above it (`DelegateSubgroup=gpuyard-agent`)."""
NEVER: Final = "none"
"""As the operator's word: make no cgroups."""

PERIOD_US: Final = 100_000
LEAST_QUOTA_US: Final = 1_000
"""The kernel takes no less: a hundredth of a core."""
CORE_SHARES: Final = 1_024
MOST_SHARES: Final = 262_144
CORE_WEIGHT: Final = 100
MOST_WEIGHT: Final = 10_000
MAX_TASK_PIDS: Final = 32_768
"""Processes and threads of one task."""


# ------------------------------------------------------------------------------------------------- what the kernel says


class Mount(msgspec.Struct, frozen=True):
    """One hierarchy as it is mounted: `root` is the cgroup that is seen at `point`."""

    root: str
    point: str
    unified: bool
    controllers: frozenset[str] = frozenset()


class Own(msgspec.Struct, frozen=True):
    """The folder this process is in, in one hierarchy."""

    mount: Mount
    folder: Path

    def is_top(self, folder: Path) -> bool:
        return folder == Path(self.mount.point)


def memberships(text: str) -> dict[str, str]:
    """From /proc/self/cgroup: the path in the hierarchy of each controller, and in the unified one."""
    found = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if path.startswith("/"):
            found.update(dict.fromkeys(names.split(","), path))
    return found


def mounts(text: str) -> tuple[Mount, ...]:
    """From /proc/self/mountinfo: the hierarchies, in the order in which they were mounted."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        place, kind = before.split(" "), after.split(" ")
        if len(place) >= 5 and len(kind) >= 3 and kind[0] in ("cgroup", "cgroup2"):
            options = frozenset(kind[2].split(","))
            found.append(Mount(_plain(place[3]), _plain(place[4]), kind[0] == "cgroup2", options))
    return tuple(found)


def _plain(path: str) -> str:
    """Blanks and the like are written as octal numbers there."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def own_place(controller: str, paths: dict[str, str], mounted: Iterable[Mount]) -> Own | None:
    """Where we are in the hierarchy that has this controller: its own one of version 1, else the unified one."""
    old = controller in paths
    path = paths.get(controller if old else UNIFIED)
    if path is None:
        return None
    for mount in mounted:
        fits = controller in mount.controllers if old else mount.unified
        if fits and mount.unified is not old:
            below = _below(path, mount.root)
            if below is not None:
                return Own(mount, Path(mount.point) / below)
    return None


def _below(path: str, root: str) -> str | None:
    """The rest of the path below what is mounted; None if we are elsewhere, as in another namespace."""
    if ".." in path.split("/"):
        return None
    root = root.rstrip("/")
    return path[len(root) :].strip("/") if path == root or path.startswith(f"{root}/") else None


def divisible(own: Own, is_delegated: Callable[[Path], bool]) -> Path | None:
    """The folder that is ours to divide; None if whoever made the one we are in has not said so."""
    folder = own.folder.parent if own.folder.name == AGENT_SUBGROUP else own.folder
    return folder if own.is_top(folder) or is_delegated(folder) else None


# --------------------------------------------------------------------------------------------------- what we make of it


class Hierarchy(msgspec.Struct, frozen=True):
    """A parent of ours, and which bounds the kernel keeps below it."""

    parent: Path
    unified: bool
    controllers: tuple[str, ...]

    def folder(self, id: AttemptId) -> Path:
        return self.parent / f"{TASK}{folder_name(id)}"


class Cgroups(msgspec.Struct, frozen=True):
    """Where the tasks of this agent have cgroups; none at all is the default."""

    hierarchies: tuple[Hierarchy, ...] = ()
    note: str = ""
    """Why the kernel does not keep all bounds; empty: it does."""
    machine_cpu_milli: int = 0

    def keeps(self, controller: str) -> bool:
        return any(controller in hierarchy.controllers for hierarchy in self.hierarchies)

    @property
    def cores(self) -> Keeping:
        return Keeping.ENFORCED if self.keeps(CPU) else Keeping.BOOKED

    @property
    def memory(self) -> Keeping:
        return Keeping.ENFORCED if self.keeps(MEMORY) else Keeping.POLLED

    def entries(self, id: AttemptId, cpu_milli: int, memory_bytes: int) -> list[tuple[str, str]]:
        """What the supervisor is told of the cgroups of a task; 0: no bound."""
        made: list[tuple[str, str]] = []
        for hierarchy in self.hierarchies:
            folder = hierarchy.folder(id)
            made.append(("cgroup", str(folder)))
            for name, file, value in self._settings(hierarchy, folder, cpu_milli, memory_bytes):
                made.append((name, f"{file}={value}"))
            if MEMORY in hierarchy.controllers and memory_bytes:
                told = "memory.events" if hierarchy.unified else "memory.oom_control"
                made.append(("cgroup_oom", str(folder / told)))
        return made

    def _settings(
        self, hierarchy: Hierarchy, folder: Path, cpu_milli: int, memory_bytes: int
    ) -> Iterable[tuple[str, Path, str]]:
        """In this order: what must be set, and what is set where the kernel has it."""
        parent, unified = hierarchy.parent, hierarchy.unified
        if unified:
            yield "cgroup_set", parent / "cgroup.subtree_control", _enabling(hierarchy.controllers)
        if CPU in hierarchy.controllers:
            # Else all tasks together would weigh as little as one other process of the machine.
            yield "cgroup_try", parent / _weight_file(unified), _weight(unified, self.machine_cpu_milli)
            yield "cgroup_try", folder / _weight_file(unified), _weight(unified, cpu_milli)
            if cpu_milli:
                yield from (("cgroup_set", folder / file, value) for file, value in _quota(unified, cpu_milli))
        if MEMORY in hierarchy.controllers and memory_bytes:
            yield "cgroup_set", folder / _memory_file(unified), str(memory_bytes)
            yield from (("cgroup_try", folder / file, value) for file, value in _no_swap(unified, memory_bytes))
        if PIDS in hierarchy.controllers:
            yield "cgroup_set", folder / "pids.max", str(MAX_TASK_PIDS)

    def sweep(self, living: frozenset[AttemptId]) -> None:
        """End what is left in cgroups of ours whose attempt is none of these, and remove them."""
        for hierarchy in self.hierarchies:
            names = {hierarchy.folder(id).name for id in living}
            for folder in hierarchy.parent.glob(f"{TASK}*"):
                if folder.name not in names:
                    cell = Cell([str(folder)])
                    cell.kill()
                    cell.remove()


def _enabling(controllers: Iterable[str]) -> str:
    return " ".join(f"+{name}" for name in controllers)


def _weight_file(unified: bool) -> str:
    return "cpu.weight" if unified else "cpu.shares"


def _weight(unified: bool, cpu_milli: int) -> str:
    """In proportion to the cores; who asks for none counts as one core."""
    core, most = (CORE_WEIGHT, MOST_WEIGHT) if unified else (CORE_SHARES, MOST_SHARES)
    return str(min(max(core * (cpu_milli or 1000) // 1000, 2), most))


def _quota(unified: bool, cpu_milli: int) -> tuple[tuple[str, str], ...]:
    quota_us = max(PERIOD_US * cpu_milli // 1000, LEAST_QUOTA_US)
    if unified:
        return (("cpu.max", f"{quota_us} {PERIOD_US}"),)
    return (("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", str(quota_us)))


def _memory_file(unified: bool) -> str:
    return "memory.max" if unified else "memory.limit_in_bytes"


def _no_swap(unified: bool, memory_bytes: int) -> tuple[tuple[str, str], ...]:
    """Also: a task that runs out of memory ends as a whole."""
    if unified:
        return (("memory.swap.max", "0"), ("memory.oom.group", "1"))
    return (("memory.memsw.limit_in_bytes", str(memory_bytes)), ("memory.swappiness", "0"))


# ------------------------------------------------------------------------------------------------------------- finding


class Refusal(msgspec.Struct, frozen=True):
    """Why the kernel cannot keep a bound here."""

    controller: str
    why: str


def find(name: str, chosen: str, machine_cpu_milli: int) -> Cgroups:
    """What can be used here, each tried once. `name`: of the parent; `chosen`: the operator's word, else empty."""
    if chosen == NEVER:
        return Cgroups(note="cgroups are switched off (--cgroup none)")
    paths, mounted = memberships(kernel.own_memberships()), mounts(kernel.mount_table())
    found: dict[Path, Hierarchy] = {}
    refused = []
    for controller in CONTROLLERS:
        one = _hierarchy(controller, own_place(controller, paths, mounted), name, chosen)
        if isinstance(one, Refusal):
            refused.append(one)
        else:
            former = found.get(one.parent, msgspec.structs.replace(one, controllers=()))
            found[one.parent] = msgspec.structs.replace(former, controllers=(*former.controllers, controller))
    return Cgroups(tuple(found.values()), _note(refused), machine_cpu_milli)


def _note(refused: list[Refusal]) -> str:
    """Each reason once, with what it is about; only of what people ask for."""
    about: dict[str, list[str]] = {}
    for one in refused:
        if one.controller != PIDS:
            about.setdefault(one.why, []).append({CPU: "cores", MEMORY: "memory"}[one.controller])
    return "; ".join(f"{' and '.join(names)}: {why}" for why, names in about.items())


def _hierarchy(controller: str, own: Own | None, name: str, chosen: str) -> Hierarchy | Refusal:
    if own is None:
        return Refusal(controller, "no cgroup hierarchy with it is mounted")
    if NEEDS_MORE in own.mount.controllers:
        return Refusal(controller, f"its hierarchy is shared with {NEEDS_MORE}")
    place = Path(own.mount.point) / chosen.strip("/") if chosen else divisible(own, kernel.is_marked_delegated)
    if place is None:
        return Refusal(controller, f"the cgroup {own.folder} belongs to another program, which has not delegated it")
    made = Hierarchy(place / f"{PARENT}{name}", own.mount.unified, (controller,))
    try:
        _try(made, place)
    except OSError as error:
        return Refusal(controller, f"no cgroup can be made in {place}: {error.strerror}")
    return made


def _try(made: Hierarchy, place: Path) -> None:
    """Make one and set a bound; what was there before, as of tasks that run, is not touched."""
    place.mkdir(parents=True, exist_ok=True)
    folder, enabling = made.parent / TRIAL, _enabling(made.controllers)
    passed_down = (place, made.parent) if made.unified else ()
    settings = [
        *(f"{at / 'cgroup.subtree_control'}={enabling}" for at in passed_down),
        *(f"{folder / file}={value}" for file, value in _trial(made)),
    ]
    cell = Cell([str(folder)], settings)
    try:
        cell.make()
    finally:
        cell.remove()


def _trial(made: Hierarchy) -> tuple[tuple[str, str], ...]:
    controller = made.controllers[0]
    if controller == CPU:
        return _quota(made.unified, 1000)
    if controller == MEMORY:
        return ((_memory_file(made.unified), str(1 << 30)),)
    return (("pids.max", str(MAX_TASK_PIDS)),)
