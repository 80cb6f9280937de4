"""Data jobs over REST: definitions, sources, deployments, properties; the token exchange; errors as VDK reads them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator

import pytest

from gpuyard.service.limits import MAX_FAILURES
from gpuyard.wire.access import Scope
from tests.service.yard import Yard
from tests.vdk.control.folders import STEP, config, packed
from tests.vdk.control.jobs import OCTETS, DataJobs

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("yard")) as running:
        yield running


@pytest.fixture
def jobs(yard: Yard) -> DataJobs:
    return DataJobs(yard)


# ---------------------------------------------------------------------------------------------------------- signing in


@pytest.mark.parametrize("field", ["refresh_token", "api_token"])
def test_a_token_is_exchanged_for_one_to_ask_with(yard: Yard, field: str) -> None:
    form = f"grant_type=refresh_token&{field}={yard.tokens['max']}"
    with yard.client() as nobody:
        answer = nobody.post("/oauth2/token", content=form, headers=FORM)
    assert answer.status_code == 200
    told = answer.json()
    assert told["token_type"] == "bearer"
    assert 0 < told["expires_in"] <= 3_600
    with yard.client(token=told["access_token"]) as client:
        assert client.get("/v1/whoami").json()["user"] == "max"


def test_a_token_that_is_over_soon_says_so(yard: Yard) -> None:
    token = yard.token("max", expires_in_ms=100_000)
    with yard.client() as nobody:
        told = nobody.post("/oauth2/token", content=f"refresh_token={token}", headers=FORM).json()
    assert 90 <= told["expires_in"] <= 100


@pytest.mark.parametrize(
    ("form", "word"),
    [
        ("refresh_token=gy_0_0", "invalid_grant"),
        ("refresh_token=", "invalid_request"),
        ("grant_type=refresh_token", "invalid_request"),
        ("", "invalid_request"),
        ("refresh_token=%ff%ff", "invalid_grant"),
        ("x=" * 30 + "&" * 30, "invalid_request"),
        ("a" * 10_000, "invalid_request"),
    ],
)
def test_what_is_no_token_is_refused_in_the_words_of_oauth(yard: Yard, form: str, word: str) -> None:
    with yard.client() as nobody:
        answer = nobody.post("/oauth2/token", content=form, headers=FORM)
    assert (answer.status_code, answer.json()["error"]) == (400, word)
    assert answer.json()["error_description"]


def test_a_form_without_its_kind_is_none(yard: Yard) -> None:
    with yard.client() as nobody:
        assert nobody.post("/oauth2/token", json={"refresh_token": "x"}).status_code == 415


def test_wrong_tokens_are_counted_as_everywhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Yard(tmp_path_factory.mktemp("yard"), gpus=0) as yard, yard.client() as nobody:
        for _ in range(MAX_FAILURES + 1):
            answer = nobody.post("/oauth2/token", content="refresh_token=gy_0_0", headers=FORM)
        assert answer.status_code == 429
        right = nobody.post("/oauth2/token", content=f"refresh_token={yard.tokens['max']}", headers=FORM)
        assert right.status_code == 200


# ----------------------------------------------------------------------------------------------------------- the errors


@pytest.mark.parametrize(
    ("method", "path", "status", "word"),
    [
        ("GET", "/jobs/no-such-job", 404, "DataJobUnknown"),
        ("GET", "/jobs/no-such-job/keytab", 404, "NoSuchPath"),
        ("POST", "/jobs/no-such-job", 405, "WrongMethod"),
        ("GET", "/jobs?query=jobs(pageSize:0)", 400, "BadParameter"),
        ("GET", "/jobs?no=such", 400, "BadParameter"),
    ],
)
def test_a_refusal_has_the_four_words_of_vdk_and_ours(
    jobs: DataJobs, method: str, path: str, status: int, word: str
) -> None:
    answer = jobs.ask(method, path)
    told = answer.json()
    assert (answer.status_code, told["status"], told["reason"]) == (status, status, word)
    assert told["what"]
    assert told["why"]
    assert told["consequences"] == "Nothing was changed or started."
    assert told["countermeasures"]


def test_without_a_token_one_is_told_how_to_sign_in(yard: Yard) -> None:
    with yard.client() as nobody:
        answer = nobody.get("/data-jobs/for-team/vision/jobs")
    assert answer.status_code == 401
    assert "vdkcli login -t api-token" in answer.json()["countermeasures"]


# ---------------------------------------------------------------------------------------------------------- definitions


def test_a_job_is_made_read_changed_listed_and_taken_away(jobs: DataJobs) -> None:
    name = jobs.create(config={"schedule": {"schedule_cron": "11 23 * * *"}, "contacts": None})
    read = jobs.ask("GET", f"/jobs/{name}").json()
    assert (read["job_name"], read["team"]) == (name, "vision")
    assert read["config"]["schedule"]["schedule_cron"] == "11 23 * * *"
    changed = {**read, "description": "trains", "config": {"schedule": {"schedule_cron": ""}}}
    assert jobs.ask("PUT", f"/jobs/{name}", json=changed).status_code == 200
    assert jobs.ask("GET", f"/jobs/{name}").json()["description"] == "trains"
    listed = jobs.ask("GET", "/jobs", params={"query": "jobs(pageSize: 1000) { jobName config { team } }"}).json()
    assert name in [one["jobName"] for one in listed["data"]["content"]]
    assert jobs.ask("DELETE", f"/jobs/{name}").status_code == 200
    assert jobs.ask("GET", f"/jobs/{name}").status_code == 404
    assert jobs.ask("DELETE", f"/jobs/{name}").status_code == 404


@pytest.mark.parametrize(
    "name", ["", "abc", "A-job-it-is", "1-job-it-is", "job it is", "../../etc", "x" * 46, "jöb-it-is"]
)
def test_a_name_vdk_would_not_take_is_refused(jobs: DataJobs, name: str) -> None:
    answer = jobs.ask("POST", "/jobs", json={"job_name": name})
    assert (answer.status_code, answer.json()["reason"]) == (400, "BadName")


def test_a_team_that_is_none_or_holds_no_jobs_is_refused(yard: Yard) -> None:
    for team, reason in (("nobody", "TeamUnknown"), ("research", "TeamHasTeams")):
        answer = DataJobs(yard, "root", team).ask("POST", "/jobs", json={"job_name": "job-it-is"})
        assert answer.json()["reason"] == reason


def test_the_same_name_belongs_to_each_team_by_itself(yard: Yard) -> None:
    mine, theirs = DataJobs(yard), DataJobs(yard, "sue", "speech")
    name = mine.create("shared-name")
    theirs.create(name)
    again = mine.ask("POST", "/jobs", json={"job_name": name})
    assert (again.status_code, again.json()["reason"]) == (409, "DataJobKnown")


def test_a_job_keeps_its_name_and_team(jobs: DataJobs) -> None:
    name = jobs.create()
    for other in ({"job_name": "other-name"}, {"job_name": name, "team": "speech"}):
        assert jobs.ask("PUT", f"/jobs/{name}", json=other).status_code == 400


def test_pages_of_a_list_follow_one_another(yard: Yard) -> None:
    team = DataJobs(yard, "root", "product")
    names = sorted(team.create() for _ in range(5))
    found = []
    for page in (1, 2, 3):
        query = f'jobs(pageNumber: {page}, pageSize: 2, filter: [{{property: "config.team", pattern: "product"}}])'
        answer = team.ask("GET", "/jobs", params={"query": query}).json()["data"]
        found += [one["jobName"] for one in answer["content"]]
        assert (answer["totalItems"], answer["totalPages"]) == (5, 3)
    assert found == names


# ------------------------------------------------------------------------------------------------- sources, deployments


def test_sources_come_back_as_they_were_uploaded(jobs: DataJobs) -> None:
    name = jobs.create()
    assert jobs.ask("GET", f"/jobs/{name}/sources").status_code == 404
    jobs.deploy(name, "print('x')\n", gpus=1)
    answer = jobs.ask("GET", f"/jobs/{name}/sources")
    assert answer.headers["content-type"] == "application/octet-stream"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as packed_again:
        assert packed_again.namelist() == [f"{name}/10_step.py", f"{name}/config.ini"]
        assert packed_again.read(f"{name}/10_step.py") == b"print('x')\n"


def test_a_wrong_value_in_config_ini_is_refused_when_it_is_deployed(jobs: DataJobs) -> None:
    name = jobs.create()
    answer = jobs.upload(name, gpus="lots")
    assert answer.status_code == 400
    told = answer.json()
    assert told["why"] == 'config.ini:6:1: gpus "lots" is not a number'
    assert told["countermeasures"] == "write digits such as 2 or 0.5"
    assert told["field"] == "gpuyard.gpus"
    assert jobs.ask("POST", f"/jobs/{name}/deployments", json={}).json()["reason"] == "DataJobVersionUnknown"


@pytest.mark.parametrize(("content", "status"), [(b"no zip", 400), (b"", 400), (b"x" * (17 << 20), 413)])
def test_what_is_no_archive_is_refused(jobs: DataJobs, content: bytes, status: int) -> None:
    name = jobs.create()
    assert jobs.ask("POST", f"/jobs/{name}/sources", content=content, headers=OCTETS).status_code == status


def test_sources_that_are_too_large_are_refused_with_the_bound(jobs: DataJobs) -> None:
    name = jobs.create()
    data = packed({"config.ini": config("vision"), "data.csv": "x" * (9 << 20)})
    answer = jobs.ask("POST", f"/jobs/{name}/sources", content=data, headers=OCTETS)
    assert (answer.status_code, answer.json()["reason"]) == (413, "TooLarge")
    assert answer.json()["why"] == "larger than 8 MiB"


def test_a_deployment_is_shown_disabled_changed_and_taken_away(jobs: DataJobs) -> None:
    name = jobs.create()
    assert jobs.ask("GET", f"/jobs/{name}/deployments").json() == []
    first = jobs.deploy(name, "1\n")
    second = jobs.deploy(name, "2\n")
    assert jobs.deploy(name, "2\n") == second != first
    path = f"/jobs/{name}/deployments/production"
    assert jobs.ask("PATCH", path, json={"enabled": False}).status_code == 202
    (shown,) = jobs.ask("GET", f"/jobs/{name}/deployments").json()
    assert (shown["job_version"], shown["enabled"], shown["last_deployed_by"]) == (second, False, "lea")
    assert jobs.ask("PATCH", path, json={"job_version": first}).status_code == 202
    assert jobs.ask("GET", path).json()["job_version"] == first
    assert jobs.ask("PATCH", path, json={"job_version": "0" * 64}).json()["reason"] == "DataJobVersionUnknown"
    assert jobs.ask("DELETE", path).status_code == 200
    assert jobs.ask("DELETE", path).json()["reason"] == "DataJobNotDeployed"
    assert jobs.try_start(name).json()["reason"] == "DataJobNotDeployed"


def test_priority_is_for_leads_and_said_so_when_it_is_deployed(yard: Yard) -> None:
    member, lead = DataJobs(yard, "max"), DataJobs(yard, "lea")
    name = member.create()
    refused = member.upload(name, priority=True)
    assert (refused.status_code, refused.json()["reason"]) == (403, "NotAllowed")
    assert "priority = true needs a lead of team vision" in refused.json()["why"]
    version = lead.upload(name, priority=True).json()["version_sha"]
    by_member = member.ask("POST", f"/jobs/{name}/deployments", json={"job_version": version})
    assert by_member.status_code == 403
    assert lead.ask("POST", f"/jobs/{name}/deployments", json={"job_version": version}).status_code == 202
    assert member.try_start(name).status_code == 403


# ----------------------------------------------------------------------------------------------------------- properties


def test_properties_are_written_whole_and_read_back(jobs: DataJobs) -> None:
    name = jobs.create()
    path = f"/jobs/{name}/deployments/TODO/properties"
    assert jobs.ask("GET", path).json() == {}
    values = {"text": "ü", "n": 5, "list": [1, {"a": None}], "flag": True}
    assert jobs.ask("PUT", path, json=values).status_code == 204
    assert jobs.ask("GET", path).json() == values
    assert jobs.ask("PUT", path, json=[1]).status_code == 400
    assert jobs.ask("PUT", path, json={"big": "x" * 300_000}).status_code == 413
    assert jobs.ask("GET", path).json() == values


# ---------------------------------------------------------------------------------------------------------------- audit


def test_every_change_is_in_the_audit_and_no_value_of_a_property(yard: Yard, jobs: DataJobs) -> None:
    name = jobs.create()
    version = jobs.deploy(name)
    jobs.ask("PUT", f"/jobs/{name}/deployments/x/properties", json={"password": "hunter2"})
    jobs.ask("DELETE", f"/jobs/{name}/deployments/production")
    jobs.ask("DELETE", f"/jobs/{name}")
    found = yard.ask("lea", "GET", "/v1/audit", params={"object": f"data-job/vision/{name}"}).json()["items"]
    texts = [one["text"].partition(": ")[2] for one in reversed(found)]
    assert texts == [
        "made",
        f"version {version} is uploaded: test",
        f"version {version} is deployed, enabled",
        "its properties are written: password",
        "not deployed any more",
        "taken away, with its sources and properties",
    ]
    assert {(one["actor"], one["team"]) for one in found} == {("lea", "vision")}
    assert "hunter2" not in str(yard.ask("root", "GET", "/v1/audit", params={"limit": 1000}).json())
    theirs = yard.ask("sue", "GET", "/v1/audit", params={"object": f"data-job/vision/{name}"}).json()["items"]
    assert theirs == []


def test_a_token_that_only_reads_sees_jobs_and_changes_nothing(yard: Yard, jobs: DataJobs) -> None:
    name = jobs.ready()
    with yard.client(token=yard.token("lea", Scope.READ)) as reader:
        base = f"/data-jobs/for-team/vision/jobs/{name}"
        assert reader.get(base).status_code == 200
        assert reader.get(f"{base}/executions").json() == []
        for method, path in (("DELETE", base), ("GET", f"{base}/sources"), ("GET", f"{base}/deployments/x/properties")):
            assert reader.request(method, path).status_code == 403
    with yard.client(token=yard.token("root", Scope.POOL)) as platform:
        assert platform.get(base).status_code == 403


def test_what_was_kept_is_there_after_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("yard")
    with Yard(folder, gpus=0) as yard:
        name = DataJobs(yard).ready(gpus=1)
        before = DataJobs(yard).ask("GET", f"/jobs/{name}/deployments").json()
        token = yard.tokens["lea"]
    with Yard(folder, gpus=0) as yard, yard.client(token=token) as client:
        after = client.get(f"/data-jobs/for-team/vision/jobs/{name}/deployments")
        assert after.json() == before
        assert STEP.encode() in zipfile.ZipFile(
            io.BytesIO(client.get(f"/data-jobs/for-team/vision/jobs/{name}/sources").content)
        ).read(f"{name}/10_step.py")
