"""The daemon as a process: its sockets, its file, its end."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
from pathlib import Path

import pytest

from gpuyard.errors import FakeGpuError
from gpuyard.fakegpu.control import SOCKET, Break, DaemonStatus, Labels, NotUpError, Request, Status, ask, prepare_home
from tests.fakegpu.daemons import ended_at_once, eventually, page, running

pytestmark = pytest.mark.slow

SEED = """\
mig-strategy: mixed
nodes:
  node-a:
    gpu-memory: 11441
    gpu-product: Tesla-K80
    gpus:
      - id: GPU-8fc73fbd-91f0-697e-57ef-fc978bd54af1
        # This section is filled by the status updater
        metrics:
          metadata:
            namespace: runai-project-a
            pod: pod
            container: container
          utilization: 10
          fb-used: 5000
      - id: GPU-kdiue726-57ef-91f0-837f-qjk49djklsk8
        # This section is filled by the status updater
        metrics:
          metadata:
            namespace: runai-project-a
            pod: pod
            container: container
          utilization: 100
          fb-used: 10000
"""


def full_status(home: Path) -> DaemonStatus:
    return ask(home, Status(), DaemonStatus)


def test_the_seeds_file_is_exported_as_written(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(SEED)
    with running(tmp_path / "home", config=fleet) as status:
        lines = page(status.exporter).splitlines()
        assert page(status.exporter.removesuffix("/metrics") + "/health") == "OK\n"
        labels = ask(tmp_path / "home", Labels("node-a", seed_only=True), dict[str, str])
    known = [line for line in lines if line.startswith(("DCGM_FI_DEV_GPU_UTIL{", "DCGM_FI_DEV_FB_"))]
    of_first = [line for line in known if "8fc73fbd" in line and "RESERVED" not in line]
    assert [(line.split("{")[0], line.rsplit(" ")[-1]) for line in of_first] == [
        ("DCGM_FI_DEV_GPU_UTIL", "10"),
        ("DCGM_FI_DEV_FB_FREE", "6441"),
        ("DCGM_FI_DEV_FB_USED", "5000"),
    ]
    assert all('Hostname="node-a"' in line and 'pod="pod"' in line for line in known)
    assert labels == {
        "nvidia.com/gpu.memory": "11441",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/gpu.product": "Tesla-K80",
    }


def test_a_changed_file_takes_effect_and_a_bad_one_does_not(tmp_path: Path) -> None:
    home, fleet = tmp_path / "home", tmp_path / "fleet.yaml"
    fleet.write_text("pools: {a: {nodes: 1, gpus: 2, product: T4}}\n")
    with running(home, config=fleet):
        assert full_status(home).gpu_count == 2
        fleet.write_text("pools: {a: {nodes: 1, gpus: 4, product: T4}}\n")
        assert eventually(lambda: full_status(home).gpu_count == 4)
        fleet.write_text("pools: {a: {nodes: 1, gpus: 6, product: T5}}\n")
        assert eventually(lambda: full_status(home).config_error is not None)
        kept = full_status(home)
        assert kept.gpu_count == 4
        assert f"{fleet}:1:" in str(kept.config_error)
        fleet.unlink()
        assert eventually(lambda: "no such file" in str(full_status(home).config_error))
        fleet.write_text("pools: {a: {nodes: 3, gpus: 1, product: T4}}\n")
        assert eventually(lambda: full_status(home).machine_count == 3)
        assert full_status(home).config_error is None


def test_a_fault_is_on_the_page_at_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running(home, gpus=1) as status:
        ask(home, Break("node-1", 0, "xid:48", 800), type(None))
        assert 'err_code="48"' in page(status.exporter)
        assert eventually(lambda: 'err_code="0"' in page(status.exporter), within_s=2)


def test_a_daemon_of_another_version_is_told_as_that(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running(home, gpus=1), pytest.raises(FakeGpuError, match="another version"):
        ask(home, Status(), dict[str, int])


def test_a_machine_nobody_has_is_not_found(tmp_path: Path) -> None:
    with running(tmp_path / "home", gpus=1) as status:
        assert 'Hostname="node-1"' in page(f"{status.exporter}?node=node-1")
        with pytest.raises(OSError, match="404"):
            page(f"{status.exporter}?node=node-2")


def test_a_second_daemon_in_the_same_home_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running(home):
        code, told = ended_at_once(home)
        assert (code, "is written by another process" in told) == (2, True)
        assert full_status(home).machine_count == 1


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    with running(tmp_path / "a") as status:
        port = int(status.exporter.split(":")[2].split("/")[0])
        code, told = ended_at_once(tmp_path / "b", port=port)
        assert (code, told.splitlines()[0]) == (2, f"error: port {port} of 127.0.0.1 is taken")


def test_nonsense_on_the_socket_gets_an_answer(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running(home):
        socket = home / SOCKET
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        for line in (b"nonsense\n", b'{"type": "Explode"}\n', b"[]\n"):
            assert b"not a request of this daemon" in asyncio.run(raw(socket, line))
        assert full_status(home).machine_count == 1


async def raw(socket: Path, line: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(line)
    answer = await reader.readline()
    writer.close()
    return answer


def test_it_ends_by_a_signal_and_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running(home) as status:
        os.kill(status.pid, signal.SIGTERM)
        assert eventually(lambda: not (home / SOCKET).exists(), within_s=5)
        assert eventually(lambda: not any((home / "machines").iterdir()), within_s=5)
    with pytest.raises(NotUpError, match="no fake GPUs are up"):
        full_status(home)


def test_after_a_crash_it_starts_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running(home) as status:
        os.kill(status.pid, signal.SIGKILL)
        assert eventually(lambda: not answers(home), within_s=5)
        with running(home, gpus=3):
            assert full_status(home).gpu_count == 3


def answers(home: Path, request: Request = Status(limit=0)) -> bool:  # noqa: B008 - a frozen value
    try:
        ask(home, request, DaemonStatus)
    except NotUpError:
        return False
    return True


def test_a_home_must_be_ours_and_its_name_short(tmp_path: Path) -> None:
    with pytest.raises(FakeGpuError, match="too long"):
        prepare_home(tmp_path / ("x" * 120))
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(FakeGpuError, match="cannot be made"):
        prepare_home(file / "home")


def test_a_directory_taken_away_is_no_end(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running(home):
        shutil.rmtree(home / "machines" / "node-1")
        assert eventually(lambda: (home / "machines" / "node-1" / "state").exists(), within_s=2)
        assert full_status(home).machine_count == 1


def test_what_is_not_ours_in_a_machines_directory_stays(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running(home):
        note = home / "machines" / "node-1" / "note"
        note.write_text("mine")
    assert [path.name for path in note.parent.iterdir()] == ["note"]
    with running(home):
        assert full_status(home).machine_count == 1
