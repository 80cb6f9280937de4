"""Tasks in real cgroups: their bounds hold, nobody slips away, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.agent import cgroups
from gpuyard.agent.cgroups import CPU, MEMORY, Cgroups
from gpuyard.agent.supervisor.cell import Cell, members
from gpuyard.platform import cgroups as kernel
from gpuyard.platform.locks import holder
from gpuyard.wire.agents import AttemptId, Ending, Keeping, Phase, Stop
from tests.agent.machines import Machine, a_script, a_task, all_gone, is_running, pids_in, wait_for_output
from tests.agent.manager import Manager, eventually

pytestmark = pytest.mark.slow

SLIPS_AWAY = "(env -i setsid sh -c 'sleep 300 & echo $! > {pids}' &); echo up; exec sleep 300"
"""A daemon by the book: it forked twice, has a session of its own, and none of its variables."""


@pytest.fixture(scope="module")
def found() -> Cgroups:
    """What the kernel keeps here."""
    return cgroups.find(f"test-{os.getpid()}", "", 2000)


@pytest.fixture
def _needs_cores(found: Cgroups) -> None:
    if not found.keeps(CPU):
        pytest.skip(f"no cgroups for cores here: {found.note}")


@pytest.fixture
def _needs_memory(found: Cgroups) -> None:
    if not found.keeps(MEMORY):
        pytest.skip(f"no cgroups for memory here: {found.note}")


def folders(machine: Machine, found: Cgroups) -> list[Path]:
    """All cgroups of that machine's tasks that are there now."""
    name = f"{cgroups.PARENT}{(machine.home / 'incarnation').read_text()}"
    parents = [hierarchy.parent.with_name(name) for hierarchy in found.hierarchies]
    return [
        folder for parent in parents if parent.exists() for folder in (parent, *parent.iterdir()) if folder.is_dir()
    ]


def guard_of(machine: Machine, id: AttemptId) -> int:
    pid = holder(machine.folder(id) / "guard")
    assert pid is not None
    return pid


def a_sleeper(cell: Cell) -> subprocess.Popen[bytes]:
    """A process in that cell."""
    script = f"echo $$ > {cell.folders[0]}/cgroup.procs; exec sleep 300"
    made = subprocess.Popen(["sh", "-c", script])
    eventually(lambda: made.pid in members(cell.folders[0]), what=cell.folders)
    return made


# ------------------------------------------------------------------------------------------------------------ bounds


def test_a_machine_says_how_it_keeps_bounds(machine: Machine, manager: Manager, found: Cgroups) -> None:
    told = manager.hellos[-1].facts
    assert (told.cores_kept, told.memory_kept, bool(told.limits_note)) == (found.cores, found.memory, bool(found.note))


def test_an_operator_can_do_without(idle_machine: Machine, manager: Manager, found: Cgroups) -> None:
    idle_machine.start("--fake-gpus", "0", "--isolation", "none", "--cgroup", "none")
    task = a_script("echo up; sleep 60", cpu_milli=500)
    manager.want(task)
    wait_for_output(manager, task.id)
    assert manager.hellos[-1].facts.cores_kept is Keeping.BOOKED
    assert folders(idle_machine, found) == []


@pytest.mark.usefixtures("_needs_cores")
def test_a_busy_loop_gets_no_more_cores_than_it_asked_for(machine: Machine, manager: Manager) -> None:
    script = (
        "import time\nbegan = time.monotonic()\n"
        "while time.monotonic() < began + 1.5: pass\n"
        "print(int(1000 * time.process_time() / (time.monotonic() - began)))"
    )
    task = a_task("python3", "-c", script, cpu_milli=500)
    manager.want(task)
    assert manager.wait_for(task.id, Phase.ENDED).ending is Ending.EXITED
    used_milli = int(manager.whole_log(task.id))
    # How little it gets is up to whoever else is busy on this machine.
    assert 20 < used_milli < 650


@pytest.mark.usefixtures("_needs_cores")
def test_the_checkpoint_hook_is_bounded_as_the_task_is(machine: Machine, manager: Manager, tmp_path: Path) -> None:
    hook = ("sh", "-c", f"cat /proc/self/cgroup > {tmp_path}/hook")
    script = f"cat /proc/self/cgroup > {tmp_path}/task; echo up; sleep 60"
    task = a_script(script, cpu_milli=500, checkpoint=hook)
    manager.want(task)
    wait_for_output(manager, task.id)
    manager.stop(task.id, Stop("enough", grace_ms=5_000))
    manager.wait_for(task.id, Phase.ENDED)
    assert (tmp_path / "hook").read_text() == (tmp_path / "task").read_text()
    assert "/task-" in (tmp_path / "task").read_text()


@pytest.mark.usefixtures("_needs_memory")
def test_a_memory_hog_is_ended_by_the_kernel_and_told_as_such(machine: Machine, manager: Manager) -> None:
    task = a_task("python3", "-c", "held = b'x' * (400 << 20)", memory_bytes=64 << 20)
    manager.want(task)
    ended = manager.wait_for(task.id, Phase.ENDED)
    assert ended.ending is Ending.OUT_OF_MEMORY
    assert "the kernel ended it: it asked for 64 MiB" in ended.message


# ---------------------------------------------------------------------------------------------------------- endings


@pytest.mark.usefixtures("_needs_cores")
def test_a_daemon_dies_with_its_task_and_the_folders_go(
    machine: Machine, manager: Manager, found: Cgroups, tmp_path: Path
) -> None:
    task = a_script(SLIPS_AWAY.format(pids=tmp_path / "pids"))
    manager.want(task)
    daemons = pids_in(tmp_path / "pids", 1)
    assert folders(machine, found)
    manager.stop(task.id, Stop("enough", grace_ms=0))
    manager.wait_for(task.id, Phase.ENDED)
    assert not any(is_running(pid) for pid in daemons)
    assert folders(machine, found) == []


@pytest.mark.usefixtures("_needs_cores")
@pytest.mark.parametrize("killed", ["supervisor", "guard and supervisor", "all"])
def test_a_daemon_outlives_none_of_those_who_watch_it(
    machine: Machine, manager: Manager, found: Cgroups, tmp_path: Path, killed: str
) -> None:
    task = a_script(SLIPS_AWAY.format(pids=tmp_path / "pids"))
    manager.want(task)
    daemons = pids_in(tmp_path / "pids", 1)
    manager.wait_for(task.id, Phase.RUNNING)
    watchers = [machine.supervisor(task.id)]
    if killed != "supervisor":
        watchers.insert(0, guard_of(machine, task.id))
    if killed == "all":
        machine.kill()
    for pid in watchers:
        os.kill(pid, signal.SIGKILL)
    if killed == "all":
        machine.start()
    assert manager.wait_for(task.id, Phase.ENDED).ending is Ending.LOST
    all_gone(daemons)
    eventually(lambda: folders(machine, found) == [], what=folders)


@pytest.mark.usefixtures("_needs_cores")
def test_a_restart_clears_what_is_ours_by_name_and_nothing_else(
    machine: Machine, manager: Manager, found: Cgroups
) -> None:
    parent = found.hierarchies[0].parent.with_name(f"{cgroups.PARENT}{(machine.home / 'incarnation').read_text()}")
    foreign = parent.with_name(f"{cgroups.PARENT}test-other-{os.getpid()}")
    cells = [Cell([str(parent / "task-of-old.0.1")]), Cell([str(foreign / "task-of-old.0.1")])]
    sleepers = []
    try:
        for cell in cells:
            cell.make()
            sleepers.append(a_sleeper(cell))
        machine.kill()
        machine.start()
        assert sleepers[0].wait(5) == -signal.SIGKILL
        eventually(lambda: not parent.exists(), what=parent)
        assert members(cells[1].folders[0]) == [sleepers[1].pid]
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
        for cell in cells:
            cell.remove()


@pytest.mark.usefixtures("_needs_cores")
def test_an_agent_that_starts_leaves_running_tasks_in_their_cgroups(
    machine: Machine, manager: Manager, found: Cgroups
) -> None:
    task = a_script("echo up; sleep 60", cpu_milli=500)
    manager.want(task)
    wait_for_output(manager, task.id)
    before = folders(machine, found)
    machine.kill()
    machine.start()
    eventually(lambda: any(report.id == task.id for report in manager.now_reported), what="found again")
    assert folders(machine, found) == before != []


# ------------------------------------------------------------------------------------------------- one cell by itself


def unified_place() -> Path | None:
    """Of a controller that version 1 does not have."""
    paths, mounted = cgroups.memberships(kernel.own_memberships()), cgroups.mounts(kernel.mount_table())
    own = cgroups.own_place("any", paths, mounted)
    return cgroups.divisible(own, kernel.is_marked_delegated) if own else None


@pytest.fixture(params=["version 1", "version 2"])
def cell(request: pytest.FixtureRequest, found: Cgroups) -> Iterator[Cell]:
    old = [hierarchy.parent.parent for hierarchy in found.hierarchies if not hierarchy.unified]
    place = unified_place() if request.param == "version 2" else next(iter(old), None)
    if place is None or not os.access(place, os.W_OK):
        pytest.skip(f"no cgroups of {request.param} may be made here")
    made = Cell([str(place / f"{cgroups.PARENT}test-{os.getpid()}" / "task-alone")])
    yield made
    made.kill()
    made.remove()


def test_everybody_in_a_cell_is_killed_also_in_cgroups_made_inside(cell: Cell) -> None:
    cell.make()
    inner = Cell([f"{cell.folders[0]}/made/inside"])
    inner.make()
    sleepers = [a_sleeper(one) for one in (cell, inner)]
    try:
        assert sorted(members(cell.folders[0])) == sorted(sleeper.pid for sleeper in sleepers)
        assert cell.kill() == 2
        assert [sleeper.wait(5) for sleeper in sleepers] == [-signal.SIGKILL] * 2
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
    cell.remove()
    assert not Path(cell.folders[0]).parent.exists()


def test_a_cell_with_somebody_in_it_is_not_removed(cell: Cell) -> None:
    cell.make()
    sleeper = a_sleeper(cell)
    try:
        cell.remove()
        assert members(cell.folders[0]) == [sleeper.pid]
    finally:
        sleeper.kill()
        sleeper.wait()
