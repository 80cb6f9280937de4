"""The agent that a manager leaves behind serves the next one, whatever address and GPUs that is started with."""

from __future__ import annotations

import pytest

from tests.ports import free_ports
from tests.yard import open_folder, running_yard, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("yard")]


def test_a_manager_that_comes_back_elsewhere_finds_its_machine_and_what_runs_there() -> None:
    with open_folder() as folder, running_yard(folder, "--fake-gpus", "2") as yard:
        yard.ready().close()
        job = yard.gpuyard("submit", "--", "sleep", "300").stdout.split()[0]
        with yard.client() as client:
            wait_for(lambda: client.get_job(job).state == "running")
        before = yard.agent_pid()
        yard.kill_manager()
        yard.port, yard.agents_port = free_ports(2)
        yard.start()
        wait_for(lambda: yard.agent_pid() not in (0, before))
        assert yard.gpuyard("run", "--", "echo", "here").stdout.strip() == "here"
        with yard.client() as client:
            found = client.get_job(job)
            assert (found.state, found.restarts) == ("running", 0)


def test_an_agent_that_serves_the_same_manager_is_left_alone() -> None:
    with open_folder() as folder, running_yard(folder, "--fake-gpus", "2") as yard:
        yard.ready().close()
        before = yard.agent_pid()
        yard.kill_manager()
        yard.start()
        assert yard.gpuyard("run", "--", "echo", "here").stdout.strip() == "here"
        assert yard.agent_pid() == before
