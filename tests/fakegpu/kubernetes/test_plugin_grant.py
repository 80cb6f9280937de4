"""What containers get, and that nobody takes it from them again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.fleet import a_fleet
from gpuyard.fakegpu.kubernetes.plugin_grant import grant, keep_directory, placed_tools, written_list
from gpuyard.fakegpu.publish import Publisher


def test_a_grant_names_the_ids_and_mounts_what_shows_them(tmp_path: Path) -> None:
    tools = placed_tools(tmp_path / "home")
    given = grant(["GPU-b", "GPU-a"], tools, tmp_path / "state", tmp_path / "list")
    assert given.variables == {"NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-a", "GPUYARD_FAKE_STATE": "/run/gpuyard-fake"}
    assert {mount.container_path: mount.host_path for mount in given.mounts} == {
        "/run/gpuyard-fake": str(tmp_path / "state"),
        "/run/gpuyard-fake.granted": str(tmp_path / "list"),
        "/usr/bin/nvidia-smi": str(tools.program),
        "/usr/lib/libnvidia-ml.so.1": str(tools.library),
        "/usr/lib64/libnvidia-ml.so.1": str(tools.library),
    }


def test_the_tools_lie_below_the_home_and_stay_the_same_file(tmp_path: Path) -> None:
    first = placed_tools(tmp_path)
    inode = first.library.stat().st_ino
    assert placed_tools(tmp_path) == first
    assert first.library.stat().st_ino == inode
    assert first.program.is_relative_to(tmp_path)
    assert first.program.stat().st_mode & 0o777 == 0o755


def test_the_plugins_of_several_nodes_may_begin_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        placed = [threads.submit(placed_tools, tmp_path) for _ in range(32)]
        assert len({done.result().program for done in placed}) == 1
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["libnvidia-ml.so.1", "nvidia-smi"]


def test_a_list_is_written_once_for_the_same_ids(tmp_path: Path) -> None:
    first = written_list(["GPU-a", "GPU-b"], tmp_path)
    inode = first.stat().st_ino
    assert written_list(["GPU-a", "GPU-b"], tmp_path) == first
    assert (first.read_text(), first.stat().st_ino) == ("GPU-a,GPU-b\n", inode)
    assert written_list(["GPU-a"], tmp_path) != first


def test_a_directory_that_is_mounted_outlives_the_daemon(tmp_path: Path) -> None:
    reading = next(Engine(a_fleet(machines=["node-1"])).readings())
    with Publisher(tmp_path) as publisher:
        publisher.write(reading)
        state = publisher.directory("node-1")
        keep_directory(state)
        inode = state.stat().st_ino
        publisher.remove("node-1")
        assert not (state / "state").exists()
        publisher.write(reading)
        assert state.stat().st_ino == inode
