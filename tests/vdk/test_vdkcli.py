"""VDK's own command line against the running manager, and data jobs that `vdk run` carries out on its machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpuyard.vdk.control.face import PART
from gpuyard.vdk.control.register import Register
from gpuyard.vdk.control.state import JobKey
from gpuyard.worlds.standalone.store.address import beside
from tests.vdk.control.folders import config, wheel, written
from tests.vdk.programs import Vdkcli, require_vdk
from tests.yard import Yard, open_folder, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vdk")]

TEAM = "default"
FIRST = """
import os
def run(job_input):
    print("first step", job_input.get_arguments(), os.environ["CUDA_VISIBLE_DEVICES"].count("GPU-"))
"""
SECOND = """
import subprocess
def run(job_input):
    print("second step", subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.count("GPU "))
"""
FAILS = "def run(job_input):\n    raise ValueError('bad luck')\n"
SLEEPS = "import time\ndef run(job_input):\n    print('asleep', flush=True)\n    time.sleep(600)\n"


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    """Two GPUs. What runs is another user's, so it lies where others can go."""
    with open_folder() as folder:
        (folder / "vdk").symlink_to(require_vdk() / "vdk")
        made = Yard(folder / "home", "--fake-gpus", "2", "--vdk-command", str(folder / "vdk"))
        try:
            made.start()
            made.ready().close()
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="module")
def vdkcli(yard: Yard, tmp_path_factory: pytest.TempPathFactory) -> Vdkcli:
    made = Vdkcli(yard.url, tmp_path_factory.mktemp("vdk"))
    made.login((yard.home / "admin.token").read_text().strip())
    return made


def deployed(vdkcli: Vdkcli, folder: Path, name: str, files: Mapping[str, str | bytes], **needs: object) -> str:
    """The version."""
    job = written(folder / name, {"config.ini": config(TEAM, **needs), **files})
    vdkcli.run("create", "--cloud", "-n", name, "-t", TEAM)
    done = vdkcli.json("deploy", "-n", name, "-t", TEAM, "-p", str(job), "-r", "test")
    return str(done["job_version"])


def started(vdkcli: Vdkcli, name: str, *more: str) -> str:
    return str(vdkcli.json("execute", "--start", "-n", name, "-t", TEAM, *more)["execution_id"])


def ended(yard: Yard, vdkcli: Vdkcli, name: str, id: str) -> dict[str, Any]:
    with yard.client() as client:
        wait_for(lambda: client.get_job(id).ended_at is not None, 120)
    (shown,) = vdkcli.json("execute", "--show", "-n", name, "-t", TEAM, "-i", id)
    found: dict[str, Any] = shown
    return found


def test_a_job_of_two_steps_runs_with_its_arguments_and_gpu(yard: Yard, vdkcli: Vdkcli, tmp_path: Path) -> None:
    version = deployed(vdkcli, tmp_path, "two-steps", {"10_first.py": FIRST, "20_second.py": SECOND}, gpus=1)
    id = started(vdkcli, "two-steps", "--arguments", '{"epochs": 3}')
    shown = ended(yard, vdkcli, "two-steps", id)
    log = vdkcli.run("execute", "--logs", "-n", "two-steps", "-t", TEAM, "-i", id).stdout
    assert (shown["status"], shown["message"], shown["job_version"]) == ("succeeded", "Success", version), log
    assert "first step {'epochs': 3} 1" in log
    assert "second step 1" in log
    assert log.index("first step") < log.index("second step")
    listed = vdkcli.json("execute", "--list", "-n", "two-steps", "-t", TEAM)
    assert [(one["id"], one["type"]) for one in listed] == [(id, "manual")]
    assert listed[0]["started_by"] == "manual/vdk-control-cli/admin"


def test_a_job_that_fails_is_an_error_of_its_user_and_one_that_is_cancelled_is_not(
    yard: Yard, vdkcli: Vdkcli, tmp_path: Path
) -> None:
    deployed(vdkcli, tmp_path, "fails-always", {"10_step.py": FAILS})
    deployed(vdkcli, tmp_path, "sleeps-long", {"10_step.py": SLEEPS}, gpus=1)
    failing, sleeping = started(vdkcli, "fails-always"), started(vdkcli, "sleeps-long")
    assert ended(yard, vdkcli, "fails-always", failing)["status"] == "user_error"
    assert "ValueError: bad luck" in vdkcli.run("execute", "--logs", "-n", "fails-always", "-t", TEAM).stdout
    (shown,) = vdkcli.json("execute", "--show", "-n", "sleeps-long", "-t", TEAM, "-i", sleeping)
    assert shown["status"] == "running"
    again = vdkcli.run("execute", "--start", "-n", "sleeps-long", "-t", TEAM, check=False)
    assert again.returncode == 2
    assert "what: The data job runs already" in again.stderr
    vdkcli.run("execute", "--cancel", "-n", "sleeps-long", "-t", TEAM, "-i", sleeping)
    assert ended(yard, vdkcli, "sleeps-long", sleeping)["status"] == "cancelled"


def test_what_requirements_name_is_installed_for_the_job_and_what_cannot_be_is_told(
    yard: Yard, vdkcli: Vdkcli, tmp_path: Path
) -> None:
    name, data = wheel("probe", "WORD = 'of the requirements'\n")
    step = "import probe\ndef run(job_input):\n    print('a word', probe.WORD)\n"
    files: dict[str, str | bytes] = {"requirements.txt": f"./{name}\n", name: data, "10_step.py": step}
    deployed(vdkcli, tmp_path, "has-packages", files)
    shown = ended(yard, vdkcli, "has-packages", started(vdkcli, "has-packages"))
    log = vdkcli.run("execute", "--logs", "-n", "has-packages", "-t", TEAM).stdout
    assert (shown["status"], "a word of the requirements" in log) == ("succeeded", True), log
    deployed(vdkcli, tmp_path, "lacks-packages", {"requirements.txt": "--no-index\nno-such==1\n", "10_step.py": step})
    shown = ended(yard, vdkcli, "lacks-packages", started(vdkcli, "lacks-packages"))
    assert shown["status"] == "user_error"
    assert "what requirements.txt names could not be installed on machine" in shown["message"]
    assert "no-such==1" in vdkcli.run("execute", "--logs", "-n", "lacks-packages", "-t", TEAM).stdout


def test_every_other_command_of_it_works(vdkcli: Vdkcli, tmp_path: Path) -> None:
    job = ("-n", "all-commands", "-t", TEAM)
    version = deployed(vdkcli, tmp_path, "all-commands", {"10_step.py": SLEEPS})
    assert "already exists" in vdkcli.run("create", "--cloud", *job).stderr
    vdkcli.run("properties", *job, "--set", "since", "2026", "--set", "n", "5")
    assert vdkcli.json("properties", *job, "--get", "n") == {"n": "5"}
    vdkcli.run("properties", *job, "--delete", "n")
    assert vdkcli.json("properties", *job, "--list") == {"since": "2026"}
    listed = {one["job_name"]: one for one in vdkcli.json("list", "-t", TEAM, "-mmm")}
    assert (listed["all-commands"]["status"], listed["all-commands"]["job_version"]) == ("ENABLED", version)
    vdkcli.run("deploy", "--disable", *job)
    (deployment,) = vdkcli.json("deploy", "--show", *job)
    assert (deployment["enabled"], deployment["last_deployed_by"]) == (False, "admin")
    shown = vdkcli.json("show", *job)
    assert (shown["deployments"][0]["job_version"], shown["executions"]) == (version, [])
    vdkcli.run("download-job", *job, "-p", str(tmp_path / "all-commands"))
    assert (tmp_path / "all-commands" / "all-commands" / "10_step.py").read_text() == SLEEPS
    assert "gpuyard" in vdkcli.run("info", "-t", TEAM).stdout
    vdkcli.run("deploy", "--remove", *job)
    refused = vdkcli.run("execute", "--start", *job, check=False)
    assert 'why: data job "all-commands" is not deployed' in refused.stderr
    vdkcli.run("delete", *job, "--yes")
    assert vdkcli.run("show", *job, check=False).returncode == 2


def test_a_wrong_configuration_is_refused_before_anything_is_deployed(vdkcli: Vdkcli, tmp_path: Path) -> None:
    job = written(tmp_path / "wrong-config", {"config.ini": config(TEAM, gpus="plenty"), "10_step.py": SLEEPS})
    vdkcli.run("create", "--cloud", "-n", "wrong-config", "-t", TEAM)
    done = vdkcli.run("deploy", "-n", "wrong-config", "-t", TEAM, "-p", str(job), "-r", "test", check=False)
    assert done.returncode == 2
    assert 'why: config.ini:6:1: gpus "plenty" is not a number' in done.stderr
    assert vdkcli.json("deploy", "--show", "-n", "wrong-config", "-t", TEAM) == []


def test_a_wrong_token_is_refused_in_words(yard: Yard, tmp_path: Path) -> None:
    stranger = Vdkcli(yard.url, tmp_path)
    done = stranger.run("login", "-t", "api-token", "-u", f"{yard.url}/oauth2/token", "-a", "gy_0_0", check=False)
    assert done.returncode == 1
    assert "the token is not valid: wrong, expired, revoked or used" in done.stdout
    refused = stranger.run("list", "-t", TEAM, check=False)
    assert "Error" in refused.stderr


def test_our_own_command_starts_it_in_the_spelling_of_the_seed(yard: Yard, vdkcli: Vdkcli, tmp_path: Path) -> None:
    deployed(vdkcli, tmp_path, "our-command", {"10_step.py": FIRST}, gpus="0.5")
    job = ("-j", "our-command", "-t", TEAM)
    done = yard.gpuyard("execute", "--start", *job, "--arguments", '{"a": 1}', "--wait", "-o", "json")
    id = json.loads(done.stdout)["id"]
    assert json.loads(yard.gpuyard("execute", "--show", *job, "-o", "json").stdout)["status"] == "succeeded"
    assert "first step {'a': 1} 1" in yard.gpuyard("execute", "--logs", "-n", "our-command", "-t", TEAM).stdout
    assert json.loads(yard.gpuyard("execute", "--list", *job, "-o", "json").stdout)[0]["id"] == id


def test_a_machine_without_vdk_says_so(yard: Yard, vdkcli: Vdkcli, tmp_path: Path) -> None:
    deployed(vdkcli, tmp_path, "no-vdk-here", {"10_step.py": SLEEPS})
    program = yard.home.parent / "vdk"
    leads_to = program.readlink()
    program.unlink()
    try:
        shown = ended(yard, vdkcli, "no-vdk-here", started(vdkcli, "no-vdk-here"))
    finally:
        program.symlink_to(leads_to)
    assert shown["status"] == "platform_error"
    assert f"has no program {program} that the job may run" in shown["message"]


def test_a_backup_holds_data_jobs_and_their_sources(yard: Yard, vdkcli: Vdkcli, tmp_path: Path) -> None:
    version = deployed(vdkcli, tmp_path, "backed-up", {"10_step.py": SLEEPS})
    file, database = tmp_path / "yard.backup", str(tmp_path / "other" / "gpuyard.db")
    assert "and data-jobs: " in yard.gpuyard("backup", str(file)).stdout
    yard.gpuyard("restore", str(file), "--database", database)
    with closing(Register.open(beside(database, PART))) as restored:
        deployment = restored.job(JobKey(TEAM, "backed-up")).deployment
        assert deployment is not None
        assert deployment.digest == version
        assert SLEEPS.encode() in (restored.archive(version) or b"")
