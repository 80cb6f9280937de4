"""Which bounds the kernel keeps, read from what it says of itself; and what the supervisor is told of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuyard.agent import cgroups
from gpuyard.agent.cgroups import CPU, MEMORY, PIDS, Cgroups, Hierarchy, divisible, memberships, mounts, own_place
from gpuyard.agent.home import prepare
from gpuyard.agent.process_runtime import ProcessRuntime
from gpuyard.platform.clock import boot_ms
from gpuyard.wire.agents import AttemptReport, Ending, Isolation, Keeping, Phase
from tests.agent.machines import a_script, an_id
from tests.agent.manager import eventually
from tests.agent.runtimes import NoDevices, has_ended

OLD = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
"""
UNIFIED = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
HYBRID = OLD + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
SERVICE = "/system.slice/gpuyard.service"


def place(controller: str, table: str, own: str) -> str | None:
    found = own_place(controller, memberships(own), mounts(table))
    return str(found.folder) if found else None


# ----------------------------------------------------------------------------------------------------- where we are


def test_of_version_1_every_controller_has_a_place_of_its_own() -> None:
    own = "8:pids:/\n4:memory:/some/where\n1:cpu,cpuacct:/user.slice\n9:name=systemd:/\n"
    assert place(CPU, OLD, own) == "/sys/fs/cgroup/cpu,cpuacct/user.slice"
    assert place(MEMORY, OLD, own) == "/sys/fs/cgroup/memory/some/where"
    assert place(PIDS, OLD, own) == "/sys/fs/cgroup/pids"


def test_of_version_2_all_have_the_same() -> None:
    assert {place(name, UNIFIED, f"0::{SERVICE}\n") for name in (CPU, MEMORY, PIDS)} == {f"/sys/fs/cgroup{SERVICE}"}


def test_where_there_are_both_a_controller_is_where_the_kernel_has_it() -> None:
    own = f"4:memory:/m\n0::{SERVICE}\n"
    assert place(MEMORY, HYBRID, own) == "/sys/fs/cgroup/memory/m"
    assert place(CPU, HYBRID, own) == f"/sys/fs/cgroup/unified{SERVICE}"


def test_a_container_sees_only_a_part_of_the_hierarchy() -> None:
    table = "32 31 0:29 /docker/1f /sys/fs/cgroup/cpu ro,relatime - cgroup cgroup rw,cpu\n"
    assert place(CPU, table, "1:cpu:/docker/1f\n") == "/sys/fs/cgroup/cpu"
    assert place(CPU, table, "1:cpu:/docker/1f/inner\n") == "/sys/fs/cgroup/cpu/inner"
    assert place(CPU, table, "1:cpu:/docker/1fe\n") is None
    assert place(CPU, table, "1:cpu:/\n") is None


def test_outside_of_our_namespace_there_is_no_place() -> None:
    assert place(CPU, UNIFIED, "0::/../../elsewhere\n") is None


def test_blanks_in_a_mount_point_are_read() -> None:
    table = r"30 23 0:26 / /my\040groups rw - cgroup2 cgroup2 rw"
    assert place(CPU, table, "0::/x\n") == "/my groups/x"


@pytest.mark.parametrize("text", ["", "\n", "nonsense\n", "1:cpu\n", "30 23 0:26 / /x rw - \n", "- cgroup cgroup\n"])
def test_what_cannot_be_read_is_no_place(text: str) -> None:
    assert place(CPU, text, f"0::{SERVICE}\n") is None
    assert place(CPU, UNIFIED, text) is None


# ------------------------------------------------------------------------------------------------- whose a folder is


def own(path: str) -> cgroups.Own:
    found = own_place(CPU, memberships(f"0::{path}\n"), mounts(UNIFIED))
    assert found is not None
    return found


def delegated(*paths: str) -> Callable[[Path], bool]:
    return lambda folder: str(folder) in {f"/sys/fs/cgroup{path}" for path in paths}


def test_the_top_of_what_we_see_is_ours_to_divide() -> None:
    assert divisible(own("/"), delegated()) == Path("/sys/fs/cgroup")


def test_a_cgroup_that_another_program_made_is_left_alone() -> None:
    assert divisible(own("/user.slice/session-1.scope"), delegated()) is None
    assert divisible(own(f"{SERVICE}/inner"), delegated(SERVICE)) is None


def test_what_was_delegated_to_us_is_ours_to_divide() -> None:
    assert divisible(own(SERVICE), delegated(SERVICE)) == Path(f"/sys/fs/cgroup{SERVICE}")


def test_from_a_subgroup_of_its_own_an_agent_divides_the_one_above() -> None:
    inner = own(f"{SERVICE}/{cgroups.AGENT_SUBGROUP}")
    assert divisible(inner, delegated(SERVICE)) == Path(f"/sys/fs/cgroup{SERVICE}")
    assert divisible(inner, delegated()) is None
    assert divisible(own(f"/{cgroups.AGENT_SUBGROUP}"), delegated()) == Path("/sys/fs/cgroup")


def test_switched_off_means_booked_and_polled() -> None:
    found = cgroups.find("x", "none", 2000)
    assert (found.cores, found.memory, found.hierarchies) == (Keeping.BOOKED, Keeping.POLLED, ())
    assert "switched off" in found.note


def test_where_none_can_be_made_the_reason_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.platform.cgroups.own_memberships", lambda: "0::/session.scope\n")
    monkeypatch.setattr("gpuyard.platform.cgroups.mount_table", lambda: UNIFIED)
    found = cgroups.find("x", "", 2000)
    why = "the cgroup /sys/fs/cgroup/session.scope belongs to another program, which has not delegated it"
    assert (found.hierarchies, found.note) == ((), f"cores and memory: {why}")


def test_a_hierarchy_that_asks_for_more_than_we_say_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    table = "32 31 0:29 / /groups rw - cgroup cgroup rw,cpu,cpuset\n"
    monkeypatch.setattr("gpuyard.platform.cgroups.own_memberships", lambda: "1:cpu,cpuset:/\n")
    monkeypatch.setattr("gpuyard.platform.cgroups.mount_table", lambda: table)
    assert "shared with cpuset" in cgroups.find("x", "", 2000).note


# ------------------------------------------------------------------------------------------------------ what is set


def settings(made: Cgroups, cpu_milli: int = 0, memory_bytes: int = 0) -> dict[str, str]:
    """Below the task's own folder, by file; those of the parent under `../`."""
    id = an_id()
    found = {}
    for name, value in made.entries(id, cpu_milli, memory_bytes):
        if name in ("cgroup_set", "cgroup_try"):
            file, _, said = value.rpartition("=")
            up = "" if cgroups.TASK in file else "../"
            found[f"{up}{Path(file).name}"] = said
    return found


OLD_ONES = Cgroups(
    (Hierarchy(Path("/c/gpuyard-x"), False, (CPU,)), Hierarchy(Path("/m/gpuyard-x"), False, (MEMORY,))),
    machine_cpu_milli=4000,
)
NEW_ONES = Cgroups((Hierarchy(Path("/u/gpuyard-x"), True, (CPU, MEMORY, PIDS)),), machine_cpu_milli=4000)


def test_bounds_of_version_1() -> None:
    assert settings(OLD_ONES, 500, 1 << 30) == {
        "../cpu.shares": "4096",
        "cpu.shares": "512",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "50000",
        "memory.limit_in_bytes": str(1 << 30),
        "memory.memsw.limit_in_bytes": str(1 << 30),
        "memory.swappiness": "0",
    }


def test_bounds_of_version_2() -> None:
    assert settings(NEW_ONES, 2500, 1 << 30) == {
        "../cgroup.subtree_control": "+cpu +memory +pids",
        "../cpu.weight": "400",
        "cpu.weight": "250",
        "cpu.max": "250000 100000",
        "memory.max": str(1 << 30),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "32768",
    }


def test_who_asks_for_nothing_has_no_bound_and_the_weight_of_a_core() -> None:
    assert settings(OLD_ONES) == {"../cpu.shares": "4096", "cpu.shares": "1024"}
    assert not [name for name, _ in NEW_ONES.entries(an_id(), 0, 0) if name == "cgroup_oom"]


def test_the_smallest_bound_is_what_the_kernel_takes() -> None:
    assert settings(OLD_ONES, 1)["cpu.cfs_quota_us"] == "1000"


def test_every_attempt_has_folders_of_its_own() -> None:
    one, other = (dict(OLD_ONES.entries(an_id(), 0, 0))["cgroup"] for _ in range(2))
    assert one != other


# ------------------------------------------------------------------ a supervisor in folders that only look like cgroups


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., AttemptReport]]:
    """Have a task run to its end by a real supervisor, in a hierarchy made of plain files."""
    home = prepare(tmp_path / "home", Isolation.NONE)
    running: list[ProcessRuntime] = []

    def once(
        hierarchy: Hierarchy, script: str, files: dict[str, str], memory_bytes: int, lease_ms: int = 60_000
    ) -> AttemptReport:
        task = a_script(script, memory_bytes=memory_bytes)
        hierarchy.folder(task.id).mkdir(parents=True)
        for name, text in files.items():
            (hierarchy.folder(task.id) / name).write_text(text)
        runtime = ProcessRuntime(home, NoDevices(), Isolation.NONE, Cgroups((hierarchy,)))
        running.append(runtime)
        runtime.renew(boot_ms() + lease_ms, 60_000)
        runtime.start(task)
        eventually(lambda: has_ended(runtime, task.id))
        return runtime.attempts()[0]

    yield once
    for runtime in running:
        runtime.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unified", "files", "limit"),
    [
        (False, {"tasks": "", "memory.oom_control": "oom_kill_disable 0\noom_kill 1\n"}, "memory.limit_in_bytes"),
        (True, {"cgroup.procs": "", "memory.events": "low 0\noom 1\noom_kill 1\n"}, "memory.max"),
    ],
    ids=["version 1", "version 2"],
)
@pytest.mark.parametrize("script", ["kill -KILL $$", "sleep 60"], ids=["the command itself", "a process below it"])
def test_what_the_kernel_ended_for_lack_of_memory_is_told_as_such(
    run: Callable[..., AttemptReport], tmp_path: Path, unified: bool, files: dict[str, str], limit: str, script: str
) -> None:
    hierarchy = Hierarchy(tmp_path / "groups", unified, (MEMORY,))
    (tmp_path / "groups").mkdir()
    (tmp_path / "groups" / "cgroup.subtree_control").touch()
    ended = run(hierarchy, script, {limit: "", **files}, 64 << 20)
    assert (ended.phase, ended.ending) == (Phase.ENDED, Ending.OUT_OF_MEMORY)
    assert "asked for 64 MiB" in ended.message
    assert (hierarchy.folder(ended.id) / limit).read_text() == str(64 << 20)
    entered = "cgroup.procs" if unified else "tasks"
    assert (hierarchy.folder(ended.id) / entered).read_text() == "0"


@pytest.mark.slow
def test_without_a_kernel_that_ended_anything_an_exit_is_an_exit(
    run: Callable[..., AttemptReport], tmp_path: Path
) -> None:
    files = {"tasks": "", "memory.limit_in_bytes": "", "memory.oom_control": "oom_kill 0\n"}
    ended = run(Hierarchy(tmp_path / "groups", False, (MEMORY,)), "kill -KILL $$", files, 64 << 20)
    assert (ended.ending, ended.exit_code) == (Ending.EXITED, 137)


@pytest.mark.slow
def test_a_bound_that_cannot_be_set_keeps_a_task_from_starting(
    run: Callable[..., AttemptReport], tmp_path: Path
) -> None:
    ended = run(Hierarchy(tmp_path / "groups", False, (MEMORY,)), "exit 0", {"tasks": ""}, 64 << 20)
    assert ended.ending is Ending.NOT_STARTED
    assert "memory.limit_in_bytes" in ended.message


@pytest.mark.slow
def test_a_command_whose_lease_is_over_ends_at_once_without_a_cgroup(
    run: Callable[..., AttemptReport], tmp_path: Path
) -> None:
    hierarchy = Hierarchy(tmp_path / "groups", False, (MEMORY,))
    ended = run(hierarchy, "exit 0", {"tasks": ""}, 64 << 20, lease_ms=1)
    assert (ended.ending, ended.exit_code) == (Ending.LEASE_EXPIRED, None)
    assert (hierarchy.folder(ended.id) / "tasks").read_text() == ""
