"""A data job with a schedule is a recurring job of the manager, for as long as it is deployed and enabled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuyard.worlds.standalone.intents import RunSchedule
from gpuyard.worlds.standalone.records import ScheduleRecord
from tests.service.yard import Yard
from tests.vdk.control.jobs import DataJobs

CRON = {"schedule": {"schedule_cron": "11 23 * * *"}}


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("yard")) as running:
        yield running


@pytest.fixture
def jobs(yard: Yard) -> DataJobs:
    return DataJobs(yard)


def schedule(jobs: DataJobs, name: str) -> ScheduleRecord | None:
    return jobs.yard.manager.state.schedules.get(f"vision/vdk.{name}")


def scheduled(jobs: DataJobs, name: str) -> ScheduleRecord:
    found = schedule(jobs, name)
    assert found is not None
    return found


def test_it_comes_with_the_deployment_and_goes_with_it(jobs: DataJobs) -> None:
    name = jobs.create(config=CRON)
    assert schedule(jobs, name) is None
    first = jobs.deploy(name, "1\n", gpus=1)
    assert (scheduled(jobs, name).recurrence.cron, scheduled(jobs, name).recurrence.time_zone) == ("11 23 * * *", "UTC")
    assert scheduled(jobs, name).submission.work.parcel == first
    second = jobs.deploy(name, "2\n", gpus=2)
    assert scheduled(jobs, name).submission.work.parcel == second
    assert scheduled(jobs, name).submission.form.tasks[0].request.devices == 2
    path = f"/jobs/{name}/deployments/production"
    jobs.ask("PATCH", path, json={"enabled": False})
    assert schedule(jobs, name) is None
    jobs.ask("PATCH", path, json={"enabled": True})
    assert scheduled(jobs, name).submission.user == "lea"
    jobs.ask("DELETE", path)
    assert schedule(jobs, name) is None
    jobs.deploy(name)
    assert schedule(jobs, name) is not None
    jobs.ask("DELETE", f"/jobs/{name}")
    assert schedule(jobs, name) is None


def test_it_follows_the_definition(jobs: DataJobs) -> None:
    name = jobs.ready()
    assert schedule(jobs, name) is None
    jobs.ask("PUT", f"/jobs/{name}", json={"job_name": name, "config": CRON})
    assert scheduled(jobs, name).recurrence.cron == "11 23 * * *"
    jobs.ask("PUT", f"/jobs/{name}", json={"job_name": name, "config": {"schedule": {"schedule_cron": " "}}})
    assert schedule(jobs, name) is None


def test_it_can_be_looked_at_paused_and_resumed_as_any_schedule(jobs: DataJobs, yard: Yard) -> None:
    name = jobs.create(config=CRON)
    jobs.deploy(name, gpus=1)
    path = f"/v1/schedules/vision/vdk.{name}"
    shown = yard.ask("lea", "GET", path)
    assert shown.status_code == 200, shown.text
    assert (shown.json()["cron"], shown.json()["owner"]) == ("11 23 * * *", "lea")
    assert yard.ask("lea", "POST", f"{path}/pause").status_code == 200
    jobs.deploy(name, "again = 1\n")
    assert scheduled(jobs, name).paused
    assert yard.ask("vic", "GET", path).status_code == 200
    assert yard.ask("sam", "GET", path).status_code == 404


def test_its_runs_are_executions_that_nobody_started_by_hand(jobs: DataJobs, yard: Yard) -> None:
    name = jobs.create(config=CRON)
    version = jobs.deploy(name)
    done = yard.do(RunSchedule("vision", f"vdk.{name}"))
    yard.wait_for(done.jobs[0], "running")
    (shown,) = jobs.ask("GET", f"/jobs/{name}/executions").json()
    assert (shown["type"], shown["started_by"], shown["status"]) == ("scheduled", "scheduled/gpuyard/lea", "running")
    assert shown["deployment"]["job_version"] == version
    assert jobs.try_start(name).json()["reason"] == "DataJobRuns"
    jobs.finish(done.jobs[0])


@pytest.mark.parametrize("cron", ["every day", "61 * * * *", "* * * *", "x" * 500])
def test_an_expression_that_is_none_is_refused_when_it_is_written(jobs: DataJobs, cron: str) -> None:
    name = jobs.ready()
    body = {"job_name": name, "config": {"schedule": {"schedule_cron": cron}}}
    refused = jobs.ask("PUT", f"/jobs/{name}", json=body)
    assert (refused.status_code, refused.json()["field"]) == (400, "schedule_cron")
    assert refused.json()["countermeasures"]
    assert jobs.ask("GET", f"/jobs/{name}").json()["config"]["schedule"] == {"schedule_cron": None}


def test_a_version_that_is_refused_leaves_the_schedule_as_it_was(jobs: DataJobs) -> None:
    name = jobs.create(config=CRON)
    version = jobs.deploy(name)
    assert jobs.ask("POST", f"/jobs/{name}/deployments", json={"job_version": "0" * 64}).status_code == 404
    assert scheduled(jobs, name).submission.work.parcel == version
