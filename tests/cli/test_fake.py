"""`gpuyard fake` as a person uses it: up, look, break, use, down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuyard.cli.main import cli
from gpuyard.fakegpu.control import DaemonStatus
from tests.fakegpu.daemons import eventually

ROOT = Path(__file__).parents[2]
GPUYARD = [sys.executable, "-c", "from gpuyard.cli.main import main; main()"]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["fake", *map(str, arguments)], prog_name="gpuyard")


def done(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def error(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    return result.stderr


def program(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, which `run` turns into another program."""
    command = [*GPUYARD, "fake", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("fake") / "home"
    told = done("up", "--gpus", "2", "--product", "A100", "--machines", "2", "--port", "0", "--home", made)
    parts = [line.split()[0] for line in told.splitlines() if line and "is being built" not in line]
    assert parts[:4] == ["NVML", "nvidia-smi", "model", "exporter"]
    yield made
    assert done("down", "--home", made).startswith("ended process ")


def in_shell(home: Path, script: str) -> str:
    """A script in a shell that sees the fake GPUs."""
    result = subprocess.run(
        ["sh", "-c", f'eval "$ENVIRONMENT"\n{script}'],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "ENVIRONMENT": done("env", "--home", home)},
    )
    return result.stdout


# ------------------------------------------------------------------------------------------------------- with a daemon


@pytest.mark.slow
def test_a_shell_sees_the_gpus(home: Path) -> None:
    assert in_shell(home, "nvidia-smi -L").count("NVIDIA A100-SXM4-80GB") == 2
    assert json.loads(done("env", "node-2", "--home", home, "-o", "json"))["state"].endswith("/node-2")


@pytest.mark.slow
def test_a_second_one_is_refused(home: Path) -> None:
    assert "fake GPUs are already up in" in error("up", "--home", home, "--port", "0")


@pytest.mark.slow
def test_a_fault_shows_everywhere_and_is_healed(home: Path) -> None:
    assert done("fault", "node-1", "1", "xid:79", "--for", "5m", "--home", home) == "xid:79 on GPU 1 of node-1 for 5m\n"
    assert "off-the-bus: xid:79 (" in done("status", "node-1", "--home", home)
    assert "GPU is lost" in in_shell(home, "nvidia-smi 2>&1")
    assert done("heal", "node-1", "1", "--home", home) == "GPU 1 of node-1 is well\n"
    assert "GPU is lost" not in in_shell(home, "nvidia-smi 2>&1")


@pytest.mark.slow
def test_a_program_keeps_a_gpu_busy_as_long_as_it_runs(home: Path) -> None:
    query = "nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader,nounits"
    profile = "[{utilization: 80}]"
    on = ("--home", home, "--gpu", "1", "--memory", "3GiB", "--profile", profile)
    seen = program("run", *on, "--", "sh", "-c", query).stdout
    assert seen.splitlines() == ["0, 0", "80, 3072"]
    assert eventually(lambda: in_shell(home, query).splitlines() == ["0, 0", "0, 0"], within_s=2)


@pytest.mark.slow
def test_its_exit_code_is_its_own(home: Path) -> None:
    assert program("run", "--home", home, "--", "sh", "-c", "exit 7").returncode == 7


@pytest.mark.slow
def test_somebody_uses_a_gpu_behind_our_back(home: Path) -> None:
    apps = "nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits"
    process = subprocess.Popen(["sleep", "60"])
    try:
        told = done("use", "node-1", "0", "--pid", str(process.pid), "--memory", "4GiB", "--home", home)
        assert told == f"process {process.pid} uses 4GiB of GPU 0 of node-1\n"
        assert f"{process.pid}, 4096\n" in in_shell(home, apps)
    finally:
        process.kill()
        process.wait()
    assert eventually(lambda: in_shell(home, apps) == "", within_s=2)


@pytest.mark.slow
def test_the_status_is_data_too(home: Path) -> None:
    found = json.loads(done("status", "--home", home, "-o", "json"))
    assert (found["machine_count"], found["gpu_count"]) == (2, 4)
    assert [machine["reading"]["machine"] for machine in found["machines"]] == ["node-1", "node-2"]


@pytest.mark.slow
def test_labels_of_a_running_machine(home: Path) -> None:
    assert "nvidia.com/gpu.count=2\n" in done("labels", "node-1", "--home", home)
    assert json.loads(done("labels", "node-1", "--basic", "-o", "json", "--home", home)) == {
        "nvidia.com/gpu.memory": "81920",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/mig.strategy": "none",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    }


@pytest.mark.slow
def test_what_cannot_be_done_is_told(home: Path) -> None:
    assert error("labels", "node-3", "--home", home).startswith('error: no machine is called "node-3"; did you mean')
    assert error("fault", "node-1", "5", "xid:79", "--home", home).startswith("error: node-1 has no GPU 5")
    assert 'unknown fault "melt"' in error("fault", "node-1", "0", "melt", "--home", home)
    assert "--for" in error("fault", "node-1", "0", "xid:79", "--for", "5 parsecs", "--home", home)
    assert "no process has the number" in error(
        "use", "node-1", "0", "--pid", "4194305", "--memory", "1GiB", "--home", home
    )
    assert "there is no such program" in error("run", "--home", home, "--", "no-such-program")
    assert "--memory" in error("run", "--memory", "lots", "--home", home, "--", "true")


# ---------------------------------------------------------------------------------------------------- without a daemon


def test_without_a_daemon_every_command_says_how_to_start_one(tmp_path: Path) -> None:
    for command in (["status"], ["down"], ["env"], ["heal", "node-1", "0"], ["labels", "node-1"]):
        told = error(*command, "--home", tmp_path)
        assert told.splitlines()[1] == "  start some: gpuyard fake up --gpus 8 --product A100"


def test_labels_of_a_file_need_no_daemon() -> None:
    fleet = ROOT / "tests" / "fakegpu" / "valid" / "seed.yaml"
    assert done("labels", "node-a", "--config", fleet, "--basic").splitlines() == [
        "nvidia.com/gpu.memory=11441",
        "nvidia.com/gpu.count=2",
        "nvidia.com/mig.strategy=mixed",
        "nvidia.com/gpu.product=Tesla-K80",
    ]
    assert 'no machine is called "node-b"' in error("labels", "node-b", "--config", fleet)


def test_a_mistake_is_told_before_anything_starts(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("pools: {a: {nodes: 1, product: A1000}}\n")
    told = error("up", "--config", fleet, "--home", tmp_path / "home")
    assert told.startswith(f"error: {fleet}:1:32: ")
    assert 'unknown product "Q9"' in error("up", "--product", "Q9", "--home", tmp_path / "home")
    piped = run("up", "--config", "-")
    assert (piped.exit_code, "name a file" in piped.stderr) == (2, True)
    both = run("up", "--config", fleet, "--gpus", "3")
    assert (both.exit_code, "leave out --gpus" in both.stderr) == (2, True)


def test_a_mistake_is_told_of_the_file_as_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text("pools: {a: {nodes: 1, product: A1000}}\n")
    assert error("up", "--config", "fleet.yaml", "--home", "home").startswith("error: fleet.yaml:1:32: ")


def test_a_list_of_phases_is_repeated_by_what_stands_beside_it() -> None:
    phases = "[{time: 1h, utilization: 80}, {time: 1h, utilization: 0}]"
    assert done("profile", phases, "--repeat", "5").endswith("5 times, then idle\n")
    assert done("profile", phases, "--repeat", "forever").endswith("as long as the task runs\n")
    assert "a whole number from 1" in error("profile", phases, "--repeat", "often")
    assert "say with --profile what is repeated" in error("run", "--repeat", "5", "--", "true")


def test_a_profile_is_shown_as_it_is_understood() -> None:
    told = done("profile", '{"phases": [{"time": "10m", "utilization": "10-30"}], "repeat": 5}')
    assert [line.split() for line in told.splitlines()[1:]] == [
        ["1", "10m", "10-30", "%", "the", "task's", "own"],
        ["5", "times,", "then", "idle"],
    ]
    assert json.loads(done("profile", "[{utilization: 5}]", "-o", "json"))["phases"][0]["low_percent"] == 5
    assert "130" in error("profile", "[{utilization: 130}]")
    assert "no such file" in error("profile", "no-such-file.yaml")


def test_one_is_not_many() -> None:
    assert DaemonStatus(1, "", "", None, None, 0, 1, 1, ()).size() == "1 machine, 1 GPU"
    assert DaemonStatus(1, "", "", None, None, 0, 2, 0, ()).size() == "2 machines, 0 GPUs"


def test_the_products_are_listed() -> None:
    assert [line.split()[0] for line in done("products").splitlines() if line[:1].strip()][1:3] == ["K80", "T4"]
    assert {product["key"] for product in json.loads(done("products", "-o", "json"))} >= {"H100", "B200", "L40S"}


def test_the_example_is_a_fleet() -> None:
    assert "nvidia.com/mig-3g.40gb.count=1\n" in done("labels", "node-b", "--config", ROOT / "examples" / "fleet.yaml")


# --------------------------------------------------------------------------------------------------------- Kubernetes


def test_the_help_of_the_device_plugin_teaches() -> None:
    told = done("device-plugin", "--help")
    for word in ("nvidia.com/gpu", "--no-inject", "--plugin-dir", "NODE_NAME", "registers again"):
        assert word in told


def test_a_device_plugin_cannot_follow_a_pipe(tmp_path: Path) -> None:
    assert "name a file" in error("device-plugin", "--config", "-", "--home", tmp_path / "home")


def test_faults_may_be_of_all_gpus_and_of_the_plugin(home: Path) -> None:
    assert done("fault", "node-2", "all", "plugin:hang", "--home", home) == (
        "plugin:hang on all GPUs of node-2 until it is healed\n"
    )
    shown = json.loads(done("status", "node-2", "-o", "json", "--home", home))
    assert [fault["fault"] for fault in shown["machines"][0]["faults"]] == ["plugin:hang", "plugin:hang"]
    assert done("heal", "node-2", "all", "--home", home) == "all GPUs of node-2 are well\n"
    assert "plugin:crash" in error("fault", "node-2", "0", "plugin:crush", "--home", home)
