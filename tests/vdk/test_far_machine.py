"""A data job on a second machine: its sources travel over the agent's stream, and VDK's command line speaks TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuyard.sdk.bodies import JobRequest
from tests.namespaces import needs_namespaces
from tests.service.test_second_machine import invitation, two_machines
from tests.vdk.control.folders import config, written
from tests.vdk.programs import Vdkcli, require_vdk
from tests.yard import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("yard"), needs_namespaces]

STEP = "import os\ndef run(job_input):\n    print('it is', os.environ['GPUYARD_TEAM'], sorted(os.listdir('.')))\n"


def test_it_runs_there_with_the_sources_that_were_deployed_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUYARD_VDK_COMMAND", str(require_vdk() / "vdk"))
    with two_machines() as both, both.client() as client:
        # The machine that is there first is full when the other one comes.
        near = client.submit_job(JobRequest(command="sleep 600", gpus=8)).jobs[0]
        wait_for(lambda: client.get_job(near.id).state == "running", 60)
        both.start_agent("--join", invitation(both))
        wait_for(lambda: client.status().ready_nodes == 2, 60, both.said)

        ca = str(both.yard.home / "ca" / "ca.pem")
        url = f"https://{both.far.address}:{both.yard.port}"
        vdkcli = Vdkcli(url, tmp_path, SSL_CERT_FILE=ca, REQUESTS_CA_BUNDLE=ca, OAUTHLIB_INSECURE_TRANSPORT="")
        vdkcli.login((both.yard.home / "admin.token").read_text().strip())
        job = written(tmp_path / "far-job", {"config.ini": config("default", gpus=8), "10_step.py": STEP})
        vdkcli.run("create", "--cloud", "-n", "far-job", "-t", "default")
        vdkcli.run("deploy", "-n", "far-job", "-t", "default", "-p", str(job), "-r", "test")
        id = vdkcli.json("execute", "--start", "-n", "far-job", "-t", "default")["execution_id"]
        wait_for(lambda: client.get_job(id).state == "succeeded", 60, lambda: str(client.get_job(id)))
        log = vdkcli.run("execute", "--logs", "-n", "far-job", "-t", "default").stdout
        assert "it is default ['far-job']" in log
        assert f"Run job with directory {both.folder}/far/open/jobs/" in log
