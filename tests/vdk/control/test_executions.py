"""Executions: how they go, what is told when they cannot start, and that a yes is a place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuyard.vdk.control.launch import PLATFORM_ERROR, REQUIREMENTS_FAILED, SKIPPED, SOURCES_FAILED, VDK_MISSING
from gpuyard.vdk.control.state import JobKey
from gpuyard.wire.access import Caller
from gpuyard.wire.agents import ParcelPiece, ReadParcel
from tests.service.yard import Yard
from tests.vdk.control.folders import config, packed
from tests.vdk.control.jobs import OCTETS, DataJobs


@pytest.fixture(scope="module")
def running_yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """One machine with 8 GPUs; vision is owed 4 and may have 8, speech and product are owed 2."""
    with Yard(tmp_path_factory.mktemp("yard")) as running:
        yield running


@pytest.fixture
def yard(running_yard: Yard) -> Iterator[Yard]:
    yield running_yard
    for team in ("vision", "speech", "product"):
        DataJobs(running_yard, "root", team).clear()


@pytest.fixture
def jobs(yard: Yard) -> DataJobs:
    return DataJobs(yard)


# ------------------------------------------------------------------------------------------------------------- its life


def test_an_execution_is_started_runs_and_succeeds(jobs: DataJobs, yard: Yard) -> None:
    name = jobs.create()
    version = jobs.deploy(name, gpus=2)
    id = jobs.start(name, {"epochs": 3})
    yard.wait_for(id, "running")
    shown = jobs.execution(name, id)
    assert (shown["id"], shown["job_name"], shown["status"], shown["type"]) == (id, name, "running", "manual")
    assert shown["started_by"] == "manual/vdk-control-cli/lea"
    assert shown["deployment"]["job_version"] == version
    assert (shown["end_time"], shown["logs_url"]) == (None, None)
    job = yard.ask("lea", "GET", f"/v1/jobs/{id}").json()
    assert (job["name"], job["team"], job["gpus"]) == (name, "vision", "2")
    assert job["env"]["GPUYARD_VDK_ARGUMENTS"] == '{"epochs":3}'
    jobs.finish(id)
    shown = jobs.execution(name, id)
    assert (shown["status"], shown["message"]) == ("succeeded", "Success")
    assert shown["end_time"] is not None
    assert "vdk" in jobs.ask("GET", f"/jobs/{name}/executions/{id}/logs").json()["logs"]


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        (1, "user_error", "a step of the job failed"),
        (137, "user_error", "a step of the job failed"),
        (VDK_MISSING, "platform_error", "machine m1 has no program vdk that the job may run: install vdk-core there"),
        (SOURCES_FAILED, "platform_error", "could not be unpacked on machine m1"),
        (PLATFORM_ERROR, "platform_error", "a fault of the platform"),
        (SKIPPED, "skipped", "vdk skipped it"),
        (REQUIREMENTS_FAILED, "user_error", "requirements.txt names could not be installed on machine m1"),
    ],
)
def test_a_failure_says_whose_it_is(jobs: DataJobs, code: int, status: str, message: str) -> None:
    name = jobs.ready()
    id = jobs.start(name)
    jobs.finish(id, code)
    shown = jobs.execution(name, id)
    assert shown["status"] == status
    assert message in shown["message"]


def test_an_execution_is_cancelled_once(jobs: DataJobs, yard: Yard) -> None:
    name = jobs.ready(gpus=1)
    id = jobs.start(name)
    assert jobs.ask("DELETE", f"/jobs/{name}/executions/{id}").status_code == 200
    yard.wait_for(id, "cancelled")
    assert jobs.execution(name, id)["status"] == "cancelled"
    again = jobs.ask("DELETE", f"/jobs/{name}/executions/{id}")
    assert (again.status_code, again.json()["reason"]) == (409, "WrongState")


def test_a_job_has_one_execution_at_a_time_and_is_not_taken_away_under_it(jobs: DataJobs) -> None:
    name = jobs.ready()
    first = jobs.start(name)
    again = jobs.try_start(name)
    assert (again.status_code, again.json()["reason"]) == (409, "DataJobRuns")
    assert first in again.json()["why"]
    assert jobs.ask("DELETE", f"/jobs/{name}").status_code == 409
    jobs.finish(first)
    second = jobs.start(name)
    jobs.finish(second, 1)
    listed = jobs.ask("GET", f"/jobs/{name}/executions").json()
    assert [(one["id"], one["status"]) for one in listed] == [(second, "user_error"), (first, "succeeded")]
    failed = jobs.ask("GET", f"/jobs/{name}/executions", params={"execution_status": "user_error,cancelled"}).json()
    assert [one["id"] for one in failed] == [second]
    assert jobs.ask("GET", f"/jobs/{name}/executions", params={"execution_status": "odd"}).status_code == 400


def test_each_execution_runs_the_version_that_was_deployed_when_it_started(jobs: DataJobs, yard: Yard) -> None:
    name = jobs.create()
    old = jobs.deploy(name, "old = 1\n")
    id = jobs.start(name)
    new = jobs.deploy(name, "new = 1\n")
    assert jobs.execution(name, id)["deployment"]["job_version"] == old
    jobs.finish(id)
    assert jobs.execution(name, jobs.start(name))["deployment"]["job_version"] == new


def test_a_machine_gets_the_sources_of_jobs_that_were_given_to_it_and_of_no_others(jobs: DataJobs, yard: Yard) -> None:
    name = jobs.create()
    version = jobs.deploy(name, "secret = 1\n")

    def asked(offset: int = 0) -> ParcelPiece:
        return yard.call(lambda: yard.manager.parcel_piece("m1", ReadParcel(version, offset)))

    assert asked().problem == "no job on this machine brings it along"
    id = jobs.start(name)
    yard.wait_for(id, "running")
    whole = asked()
    assert b"secret = 1" in whole.data
    assert asked(whole.size - 10).data == whole.data[-10:]
    assert yard.call(lambda: yard.manager.parcel_piece("m2", ReadParcel(version))).data == b""


def test_an_execution_of_another_job_or_team_is_not_found_under_this_one(jobs: DataJobs, yard: Yard) -> None:
    one, other = jobs.ready(), jobs.ready()
    id = jobs.start(one)
    for name in (other, "no-such-job"):
        for path in (f"/jobs/{name}/executions/{id}", f"/jobs/{name}/executions/{id}/logs"):
            assert jobs.ask("GET", path).json()["reason"] == "ExecutionUnknown"
    plain = yard.submit("lea", team="vision", gpus=0, name=one)
    assert jobs.ask("GET", f"/jobs/{one}/executions/{plain}").json()["reason"] == "ExecutionUnknown"


def test_the_end_of_a_log_can_be_asked_for(jobs: DataJobs, yard: Yard) -> None:
    name = jobs.ready()
    id = jobs.start(name)
    yard.wait_for(id, "running")

    async def write() -> None:
        for attempt in yard.machine.logs:
            if attempt.job == id:
                yard.machine.logs[attempt] = b"".join(b"line %d\n" % number for number in range(50_000))

    yard.call(write)
    path = f"/jobs/{name}/executions/{id}/logs"
    assert jobs.ask("GET", path, params={"tail_lines": 2}).json()["logs"] == "line 49998\nline 49999\n"
    assert jobs.ask("GET", path).json()["logs"].count("\n") == 50_000


def test_arguments_have_a_bound(jobs: DataJobs) -> None:
    name = jobs.ready()
    answer = jobs.try_start(name, {"big": "x" * 70_000})
    assert (answer.status_code, answer.json()["field"]) == (400, "args")


def test_a_person_cannot_pretend_to_be_the_schedule(jobs: DataJobs) -> None:
    name = jobs.ready()
    body = {"started_by": "scheduled/runtime"}
    id = jobs.ask("POST", f"/jobs/{name}/deployments/x/executions", json=body).json()["id"]
    shown = jobs.execution(name, id)
    assert (shown["type"], shown["started_by"]) == ("manual", "manual/scheduled/runtime/lea")


def test_a_start_that_is_sent_again_with_its_key_is_done_once(jobs: DataJobs) -> None:
    name = jobs.ready()
    first = jobs.try_start(name, headers={"Idempotency-Key": "once"})
    again = jobs.try_start(name, headers={"Idempotency-Key": "once"})
    assert (again.status_code, again.headers["location"]) == (202, first.headers["location"])
    other = jobs.try_start(jobs.ready(), headers={"Idempotency-Key": "once"})
    assert (other.status_code, other.json()["reason"]) == (409, "KeyReused")


# ------------------------------------------------------------------------------------------------------------- refusals


def queued(yard: Yard) -> list[str]:
    found = yard.ask("root", "GET", "/v1/jobs", params={"state": "waiting"}).json()["items"]
    return [job["id"] for job in found]


def test_a_team_over_its_budget_is_told_so_with_numbers_where_nothing_is_free(yard: Yard, jobs: DataJobs) -> None:
    speech, product = DataJobs(yard, "sue", "speech"), DataJobs(yard, "root", "product")
    jobs.start(jobs.ready(gpus=4))
    speech.start(speech.ready(gpus=2))
    product.start(product.ready(gpus=2))
    refused = jobs.try_start(jobs.ready(gpus=1))
    assert (refused.status_code, refused.json()["reason"]) == (400, "NoAvailableBudget")
    why = refused.json()["why"]
    assert 'team "vision" is over its budget, and nothing is free for it' in why
    assert "it is owed 4 GPUs and holds 4, the job asks for 1; 0 of 8 GPUs are free" in why
    assert "start it again when a job has ended" in refused.json()["countermeasures"]
    assert queued(yard) == []


def test_refused_then_started_once_another_job_has_ended(yard: Yard, jobs: DataJobs) -> None:
    first = jobs.start(jobs.ready(gpus=8))
    waiting = jobs.ready(gpus=2)
    assert jobs.try_start(waiting).status_code == 400
    jobs.finish(first)
    assert jobs.try_start(waiting).status_code == 202


def test_a_team_within_its_budget_gets_its_own_back(yard: Yard, jobs: DataJobs) -> None:
    greedy = jobs.ready(gpus=8)
    id = jobs.start(greedy)
    yard.wait_for(id, "running")
    speech = DataJobs(yard, "sue", "speech")
    own = speech.start(speech.ready(gpus=2))
    yard.wait_for(own, "running")
    shown = jobs.execution(greedy, id)
    assert shown["status"] == "submitted"
    assert "it gives way to job" in shown["message"]
    assert "hidden (team speech)" in shown["message"]


def test_a_job_no_machine_could_hold_is_told_apart(yard: Yard) -> None:
    product = DataJobs(yard, "root", "product")
    for needs in ({"gpus": 9}, {"gpus": 1, "device_type": "H900"}):
        refused = product.try_start(product.ready(**needs))
        assert (refused.status_code, refused.json()["reason"]) == (400, "NoRoom")
        assert "it could never run here" in refused.json()["why"]


def test_a_team_is_told_of_its_limit(jobs: DataJobs) -> None:
    refused = jobs.try_start(jobs.ready(gpus=9))
    assert (refused.status_code, refused.json()["reason"]) == (400, "NoAvailableBudget")
    assert 'team "vision" would be above its limit' in refused.json()["why"]


def test_budget_without_an_arrangement_is_another_refusal(yard: Yard, jobs: DataJobs) -> None:
    """Three parts of 0.6 lie on three GPUs, and nobody may be moved: two whole ones are owed, and not there."""
    for other in (DataJobs(yard, "sue", "speech"), DataJobs(yard, "root", "product")):
        other.start(other.ready(gpus=2, priority=True))
    for _ in range(3):
        jobs.start(jobs.ready(gpus="0.6", priority=True))
    refused = jobs.try_start(jobs.ready(gpus=2))
    assert (refused.status_code, refused.json()["reason"]) == (400, "NoRoom")
    why = refused.json()["why"]
    assert 'team "vision" has budget for it (it is owed 4 GPUs and holds 1.8, the job asks for 2)' in why
    assert "no arrangement of what runs makes room" in why
    assert queued(yard) == []


@pytest.mark.parametrize("checkpointable", [False, True])
def test_a_job_with_priority_is_moved_for_others_only_if_it_says_that_it_is_checkpointable(
    yard: Yard, jobs: DataJobs, checkpointable: bool
) -> None:
    """Parts of 0.4 and 0.6 lie on two GPUs, and would fit on one: then three whole ones are free."""
    for other in (DataJobs(yard, "sue", "speech"), DataJobs(yard, "root", "product")):
        other.start(other.ready(gpus=2, priority=True))
    beside, _ = [jobs.start(jobs.ready(gpus="0.6", priority=True)) for _ in range(2)]
    small = jobs.start(jobs.ready(gpus="0.4", priority=True, checkpointable=checkpointable))
    jobs.finish(beside)
    yard.wait_for(small, "running")
    before = yard.manager.state.jobs[small].tasks[0].place
    wide = jobs.try_start(jobs.ready(gpus=3))
    if not checkpointable:
        assert (wide.status_code, wide.json()["reason"]) == (400, "NoRoom")
        return
    assert wide.status_code == 202
    yard.wait_for(wide.headers["location"].rpartition("/")[2], "running")
    yard.wait_for(small, "running")
    assert yard.manager.state.jobs[small].tasks[0].place != before


def test_priority_must_fit_the_budget_and_that_is_said(jobs: DataJobs) -> None:
    refused = jobs.try_start(jobs.ready(gpus=5, priority=True))
    assert (refused.status_code, refused.json()["reason"]) == (400, "NoAvailableBudget")
    assert "never stopped for others, so it must fit the budget" in refused.json()["why"]
    assert jobs.try_start(jobs.ready(gpus=4, priority=True)).status_code == 202


def test_two_who_start_at_once_are_not_both_told_yes_for_one_place(yard: Yard, jobs: DataJobs) -> None:
    names = [jobs.ready(gpus=8) for _ in range(4)]

    def start(name: str) -> int:
        with yard.client("lea") as client:
            path = f"/data-jobs/for-team/vision/jobs/{name}/deployments/production/executions"
            return client.post(path, json={}).status_code

    with ThreadPoolExecutor(4) as pool:
        statuses = sorted(pool.map(start, names))
    assert statuses == [202, 400, 400, 400]
    assert queued(yard) == []


def test_one_job_that_is_started_by_many_at_once_runs_once(yard: Yard, jobs: DataJobs) -> None:
    name = jobs.ready()

    def start(_: int) -> int:
        with yard.client("lea") as client:
            path = f"/data-jobs/for-team/vision/jobs/{name}/deployments/production/executions"
            return client.post(path, json={}).status_code

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(start, range(4))) == [202, 409, 409, 409]
    assert len(jobs.ask("GET", f"/jobs/{name}/executions").json()) == 1


def test_changes_of_one_job_at_once_lose_nothing(yard: Yard, jobs: DataJobs) -> None:
    name = jobs.create()
    texts = [f"number = {number}\n" for number in range(6)]

    def change(text: str) -> None:
        with yard.client("lea") as client:
            base = f"/data-jobs/for-team/vision/jobs/{name}"
            data = packed({"config.ini": config("vision"), "10_step.py": text})
            assert client.post(f"{base}/sources", content=data, headers=OCTETS).status_code == 200
            assert client.put(base, json={"job_name": name, "description": text}).status_code == 200

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(change, texts))
    kept = yard.call(lambda: yard.control.desk())
    job = yard.call(lambda: kept.do(lambda register: register.job(JobKey("vision", name))))
    assert len(job.versions) == len(texts)


def test_one_who_was_overtaken_is_told_no_and_is_not_left_in_the_queue(yard: Yard, jobs: DataJobs) -> None:
    """Between what the core was asked and the cycle that decides, somebody else submits."""
    name = jobs.ready(gpus=8)
    manager = yard.manager
    plan_with = manager.plan_with

    async def overtaken(submission: object, caller: Caller) -> object:
        answer = await plan_with(submission, caller)  # type: ignore[arg-type]
        from msgspec.structs import replace

        from gpuyard.worlds.standalone.intents import Submission, Submit
        from tests.service.yard import SYSTEM

        assert isinstance(submission, Submission)
        first = replace(submission.form, preemptible=False, queue="speech")
        request = replace(first.tasks[0].request, devices=2)
        first = replace(first, tasks=(replace(first.tasks[0], request=request),), labels=())
        await manager.do(Submit(replace(submission, form=first, name="faster")), SYSTEM)
        await asyncio.sleep(0.2)
        return answer

    manager.plan_with = overtaken  # type: ignore[assignment, method-assign]
    try:
        refused = jobs.try_start(name)
    finally:
        manager.plan_with = plan_with  # type: ignore[method-assign]
    assert (refused.status_code, refused.json()["reason"]) == (400, "NoAvailableBudget")
    assert queued(yard) == []
    assert [one["status"] for one in jobs.ask("GET", f"/jobs/{name}/executions").json()] == ["cancelled"]
