"""The wheel, as a user gets it: built, installed into an empty environment, and run from somewhere else."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import gpuyard

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "src" / "gpuyard" / "examples"
MANIFESTS = ROOT / "src" / "gpuyard" / "worlds" / "kubernetes" / "manifests"

# One group, so that parallel workers do not each build and install the same wheel.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command as a user would, without this environment's Python settings, and give what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, f"{command} failed:\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The gpuyard command in an environment that holds the wheel, its locked requirements and nothing else."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=True)
    pip = (environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--require-hashes", "-r", ROOT / "requirements" / "runtime.txt", cwd=environment)
    run(*pip, "--no-deps", wheel, cwd=environment)
    run(environment / "bin" / "python", "-m", "pip", "check", cwd=environment)
    return environment / "bin" / "gpuyard"


def test_the_wheel_carries_licence_types_and_examples(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    information = f"gpuyard-{gpuyard.__version__}.dist-info"
    assert {f"{information}/licenses/LICENSE", f"{information}/licenses/NOTICE", "gpuyard/py.typed"} <= names
    assert {f"gpuyard/examples/{example.name}" for example in EXAMPLES.glob("*.yaml")} <= names
    assert {f"gpuyard/worlds/kubernetes/manifests/{file.name}" for file in MANIFESTS.glob("*.yaml")} <= names
    assert {f"gpuyard/examples/kai-demo/{file.name}" for file in (ROOT / "examples" / "kai-demo").iterdir()} <= names
    assert "gpuyard/proto/gpuyard/pool/v1/gpu_resource_manager.proto" in names


def test_the_installed_command_says_its_version(command: Path, tmp_path: Path) -> None:
    assert gpuyard.__version__ in run(command, "--version", cwd=tmp_path)


def test_the_installed_command_lists_its_commands(command: Path, tmp_path: Path) -> None:
    text = run(command, "--help", cwd=tmp_path)
    assert "Usage: gpuyard" in text
    assert "demo" in text


def test_the_installed_demo_runs_away_from_the_source_tree(command: Path, tmp_path: Path) -> None:
    assert "gpu" in run(command, "demo", cwd=tmp_path).lower()
