"""Recurring jobs over REST, on a running manager whose clock the tests move from one planned time to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gpuyard.model.jobs import Job, Request, Task
from gpuyard.model.recurrence import Missed, Overlap, Recurrence
from gpuyard.model.work import Work
from gpuyard.wire.access import Caller
from gpuyard.worlds.standalone.intents import RemoveSchedule, RemoveUser, SetSchedule, SetUser, Submission
from tests.service.yard import PEOPLE, StandingClock, Yard

pytestmark = pytest.mark.slow

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
BODY: dict[str, Any] = {"cron": "* * * * *", "job": {"command": ["report"], "gpus": 0, "env": {"KEY": "s3cret"}}}


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("schedules"), clock=StandingClock()) as running:
        yield running


def put(yard: Yard, name: str, user: str = "max", team: str = "vision", **fields: Any) -> dict[str, Any]:
    response = yard.ask(user, "PUT", f"/v1/schedules/{team}/{name}", json={**BODY, **fields})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def get(yard: Yard, name: str, user: str = "max") -> dict[str, Any]:
    found: dict[str, Any] = yard.ask(user, "GET", f"/v1/schedules/vision/{name}").json()
    return found


def pass_minutes(yard: Yard, count: int) -> None:
    """The clock is moved minute by minute; with each the manager's tick comes, as it does every second."""

    async def tick() -> None:
        yard.manager.core.tick()
        yard.manager._changed()
        await yard.manager._durable(yard.manager.state.seq)

    for _ in range(count):
        yard.clock.ahead_ms += MINUTE_MS
        yard.call(tick)


# ---------------------------------------------------------------------------------------------------------------- runs


def test_a_schedule_runs_at_its_time_and_shows_its_runs(yard: Yard) -> None:
    made = put(yard, "minutely")
    assert (made["state"], made["owner"], made["next_at"]) == ("active", "max", made["next_times"][0])
    assert len(made["next_times"]) == 5
    pass_minutes(yard, 1)
    found = get(yard, "minutely")
    (run,) = found["runs"]
    assert found["last_run"] == run
    assert run["planned_at"] == made["next_at"]
    job = yard.wait_for(run["job"], "running")
    assert (job["user"], job["name"], job["schedule"], job["planned_at"]) == (
        "max",
        "minutely",
        "vision/minutely",
        run["planned_at"],
    )
    listed = yard.ask("max", "GET", "/v1/jobs", params={"label": "gpuyard.io/schedule=minutely"}).json()["items"]
    assert [one["id"] for one in listed] == [job["id"]]
    pass_minutes(yard, 2)
    skip = get(yard, "minutely")["last_skip"]
    assert skip["reason"] == "Overlap"
    assert f"its run {job['id']} was not over" in skip["text"]
    yard.ask("max", "DELETE", "/v1/schedules/vision/minutely")


def test_the_tick_of_the_manager_itself_runs_what_is_due(yard: Yard) -> None:
    put(yard, "by-itself")
    yard.clock.ahead_ms += MINUTE_MS

    async def wait() -> None:
        entries = aiter(yard.manager.subscribe(None))
        while not yard.manager.state.schedules["vision/by-itself"].runs:
            await asyncio.wait_for(anext(entries), 20)

    yard.call(wait)
    assert len(get(yard, "by-itself")["runs"]) == 1
    yard.ask("max", "DELETE", "/v1/schedules/vision/by-itself")


def test_what_happened_is_told_and_audited_by_its_schedule(yard: Yard) -> None:
    put(yard, "told")
    pass_minutes(yard, 2)
    for path, user in (("/v1/events", "vic"), ("/v1/audit", "lea")):
        response = yard.ask(user, "GET", path, params={"object": "schedule/vision/told"})
        items = response.json()["items"]
        assert [one["kind"] for one in items] == [
            "schedule-skipped",
            "schedule-ran",
            "job-submitted",
            "schedule-set",
        ]
        assert [one["actor"] for one in items] == ["schedule/vision/told"] * 3 + ["max"]
        assert items[3]["text"] == 'schedule vision/told of max is written: "* * * * *" in UTC'
    assert yard.ask("sam", "GET", "/v1/events", params={"object": "schedule/vision/told"}).json()["items"] == []
    assert "s3cret" not in yard.ask("vic", "GET", "/v1/events", params={"limit": "1000"}).text
    assert "s3cret" in yard.ask("max", "GET", "/v1/events", params={"object": "schedule/vision/told"}).text
    yard.ask("max", "DELETE", "/v1/schedules/vision/told")


def test_a_run_can_be_asked_for_once_per_key(yard: Yard) -> None:
    put(yard, "now", cron="@yearly")
    path, key = "/v1/schedules/vision/now/run", {"Idempotency-Key": "once-and-only"}
    first = yard.ask("max", "POST", path, headers=key)
    again = yard.ask("max", "POST", path, headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["jobs"][0]["id"] == again.json()["jobs"][0]["id"]
    refused = yard.ask("max", "POST", path)
    assert (refused.status_code, refused.json()["reason"]) == (409, "WrongState")
    assert "gpuyard cancel" in refused.json()["fix"]
    put(yard, "now", cron="@yearly", overlap="replace")
    replaced = yard.ask("lea", "POST", path).json()["jobs"]
    assert [job["user"] for job in replaced] == ["max"]
    assert replaced[0]["id"] != first.json()["jobs"][0]["id"]


def test_an_array_is_run_as_a_whole(yard: Yard) -> None:
    put(yard, "many", cron="@yearly", job={"command": ["x"], "gpus": 0, "array": "0-2"})
    jobs = yard.ask("max", "POST", "/v1/schedules/vision/many/run").json()["jobs"]
    assert len(jobs) == 3
    (run,) = get(yard, "many")["runs"]
    assert (run["job"], run["asked"]) == (jobs[0]["array"], True)


def test_a_program_in_the_managers_process_makes_and_removes_one_as_the_document_says(yard: Yard) -> None:
    team, name, caller = "vision", "by-program", Caller("max", PEOPLE["max"])
    form = Job("", team, (Task("", Request(devices=0)),))
    submission = Submission(name, caller.user, form, Work(("report",)))
    recurrence = Recurrence("0 3 * * *", "Europe/Berlin", Overlap.SKIP, Missed.RUN_ONCE)
    yard.call(lambda: yard.manager.do(SetSchedule(team, name, recurrence, submission), caller))
    found = get(yard, name)
    assert (found["state"], found["owner"], found["job"]) == ("active", "max", None)
    yard.call(lambda: yard.manager.do(RemoveSchedule(team, name), caller))
    assert yard.ask("max", "GET", f"/v1/schedules/{team}/{name}").status_code == 404


def test_states_and_skips_are_counted(yard: Yard) -> None:
    put(yard, "counted")
    pass_minutes(yard, 3)
    text = yard.ask("root", "GET", "/metrics").text
    assert 'gpuyard_schedules{state="active"}' in text
    skips = [line for line in text.splitlines() if line.startswith('gpuyard_schedule_skips_total{reason="Overlap"}')]
    assert int(skips[0].split()[1]) >= 2
    yard.ask("max", "DELETE", "/v1/schedules/vision/counted")


# ------------------------------------------------------------------------------------------------------------- writing


def test_what_was_written_can_be_read_and_written_again(yard: Yard) -> None:
    job = {"command": "make report", "gpus": "0.5", "retries": 2, "labels": {"a": "b"}}
    made = put(yard, "round", time_zone="Europe/Berlin", overlap="queue", missed="skip", missed_limit="2h", job=job)
    assert made["job"] == job
    fields = ("cron", "time_zone", "overlap", "missed", "missed_limit_ms")
    assert [made[field] for field in fields] == ["* * * * *", "Europe/Berlin", "queue", "skip", 7_200_000]
    again = put(yard, "round", cron="0 3 * * *", job=made["job"])
    assert (again["job"], again["time_zone"]) == (job, "UTC")


def test_a_schedule_is_written_only_if_it_is_as_it_was(yard: Yard) -> None:
    path = "/v1/schedules/vision/etag"
    made = yard.ask("max", "PUT", path, json=BODY, headers={"If-Match": '"0"'})
    etag = made.headers["etag"]
    taken = yard.ask("max", "PUT", path, json=BODY, headers={"If-Match": '"0"'})
    assert (taken.status_code, taken.json()["reason"]) == (412, "Changed")
    pass_minutes(yard, 1)
    assert yard.ask("max", "GET", path).headers["etag"] == etag
    assert yard.ask("max", "POST", f"{path}/pause", headers={"If-Match": etag}).status_code == 200
    steered = [("POST", f"{path}/{verb}") for verb in ("pause", "resume", "run")]
    for method, where in (("PUT", path), ("DELETE", path), *steered):
        options = {"json": BODY} if method == "PUT" else {}
        stale = yard.ask("max", method, where, headers={"If-Match": etag}, **options)
        assert (stale.status_code, stale.json()["reason"]) == (412, "Changed")


def test_a_dry_run_says_what_it_would_be_and_does_nothing(yard: Yard) -> None:
    response = yard.ask("max", "PUT", "/v1/schedules/vision/dry", params={"dry_run": "true"}, json=BODY)
    assert (response.status_code, response.json()["state"], len(response.json()["next_times"])) == (200, "active", 5)
    assert "etag" not in response.headers
    assert yard.ask("max", "GET", "/v1/schedules/vision/dry").status_code == 404
    assert yard.ask("lea", "GET", "/v1/audit", params={"object": "schedule/vision/dry"}).json()["items"] == []
    wrong = {**BODY, "job": {"command": ["x"], "after": [yard.submit("max", gpus=0)]}}
    refused = yard.ask("max", "PUT", "/v1/schedules/vision/dry", params={"dry_run": "true"}, json=wrong)
    assert (refused.status_code, refused.json()["field"]) == (400, "job.after")


@pytest.mark.parametrize(
    ("fields", "status", "reason", "field", "words"),
    [
        ({"cron": "61 * * * *"}, 400, "BadField", "cron", '"61" is no minute'),
        ({"cron": "0 0 30 2 *"}, 400, "BadField", "cron", "no day of month"),
        ({"cron": 5}, 400, "BadField", "cron", "must be text"),
        ({"time_zone": "Mars/Base"}, 400, "BadField", "time_zone", "no known time zone"),
        ({"overlap": "kill"}, 400, "BadField", "overlap", "cannot be"),
        ({"missed_limit": "9999d"}, 400, "BadField", "missed_limit", "longer than"),
        ({"job": {"gpus": 1}}, 400, "BadField", "job.command", "lacks"),
        ({"job": {"command": ["x"], "gpus": "-1"}}, 400, "BadField", "job.gpus", "-1"),
        ({"job": {"command": ["x"], "team": "speech"}}, 400, "BadValue", "job.team", "team"),
        ({"job": {"command": ["x"], "gpus": 99}}, 422, "Never", "", "99"),
        ({"job": {"command": ["x"], "priority": "urgent"}}, 403, "NotAllowed", "priority", "needs a lead"),
        ({"job": {"command": ["x"], "after": ["999999"]}}, 422, "DependencyUnknown", "job.after", "no job"),
        ({"crom": 1}, 400, "BadField", "crom", "unknown field"),
    ],
)
def test_what_is_wrong_is_told_with_its_field(
    yard: Yard, fields: dict[str, Any], status: int, reason: str, field: str, words: str
) -> None:
    response = yard.ask("max", "PUT", "/v1/schedules/vision/wrong", json={**BODY, **fields})
    found = response.json()
    assert (response.status_code, found["reason"], found.get("field", "")) == (status, reason, field)
    assert words in found["detail"]
    assert found["fix"]
    assert "vision/wrong" not in yard.manager.state.schedules


def test_a_job_of_a_schedule_waits_for_no_certain_job(yard: Yard) -> None:
    first = yard.submit("max", gpus=0)
    body = {**BODY, "job": {"command": ["x"], "after": [first]}}
    refused = yard.ask("max", "PUT", "/v1/schedules/vision/wrong", json=body).json()
    assert (refused["reason"], refused["field"]) == ("BadValue", "job.after")
    assert "overlap: queue" in refused["fix"]


@pytest.mark.parametrize("name", ["a%20b", "%C3%A4", "-x", "a,b", "x" * 201])
def test_a_name_that_would_have_to_be_quoted_is_refused(yard: Yard, name: str) -> None:
    refused = yard.ask("max", "PUT", f"/v1/schedules/vision/{name}", json=BODY)
    assert (refused.status_code, refused.json()["field"]) == (400, "name")


def test_an_unknown_team_and_one_that_holds_no_jobs_are_refused(yard: Yard) -> None:
    for team, reason in (("nobody", "TeamUnknown"), ("research", "TeamHasTeams")):
        refused = yard.ask("root", "PUT", f"/v1/schedules/{team}/x", json=BODY)
        assert refused.json()["reason"] == reason, refused.text


def test_a_job_that_can_never_run_is_taken_where_that_is_asked_for(yard: Yard) -> None:
    body = {"cron": "@yearly", "job": {"command": ["x"], "gpus": 99}}
    path = "/v1/schedules/vision/huge"
    assert yard.ask("max", "PUT", path, json=body, params={"allow_never": "true"}).status_code == 200


def test_schedules_are_listed_in_pages(yard: Yard) -> None:
    for number in range(5):
        put(yard, f"page-{number}", user="sue", team="speech", cron="@yearly")
    first = yard.ask("sue", "GET", "/v1/schedules", params={"limit": "3", "team": "speech"}).json()
    rest = yard.ask(
        "sue", "GET", "/v1/schedules", params={"limit": "3", "team": "speech", "cursor": first["next"]}
    ).json()
    names = [item["name"] for page in (first, rest) for item in page["items"]]
    assert names == [f"page-{number}" for number in range(5)]
    assert rest["next"] is None
    assert yard.ask("sue", "GET", "/v1/schedules", params={"owner": "max"}).json()["items"] == []


# --------------------------------------------------------------------------------------------------------------- owner


def test_whoever_writes_a_schedule_owns_it_and_a_member_cannot_take_one_over(yard: Yard) -> None:
    put(yard, "mine", cron="@yearly")
    refused = yard.ask("mia", "PUT", "/v1/schedules/vision/mine", json=BODY)
    assert (refused.status_code, refused.json()["reason"]) == (403, "NotAllowed")
    assert put(yard, "mine", user="lea", cron="@yearly")["owner"] == "lea"


def test_the_schedule_of_somebody_who_has_left_is_suspended_with_the_reason(yard: Yard) -> None:
    yard.do(SetUser("ben", PEOPLE["max"]))
    yard.tokens["ben"] = yard.token("ben")
    put(yard, "left", user="ben")
    yard.do(RemoveUser("ben"))
    pass_minutes(yard, 2)
    found = get(yard, "left", "lea")
    assert (found["state"], found["runs"], found["next_at"]) == ("suspended", [], None)
    assert found["why"] == [{"token": "OwnerGone", "text": 'its owner "ben" is no user any more'}]
    refused = yard.ask("lea", "POST", "/v1/schedules/vision/left/resume")
    assert refused.json()["reason"] == "UserUnknown"
    assert put(yard, "left", user="lea")["state"] == "active"
    yard.ask("lea", "DELETE", "/v1/schedules/vision/left")


def test_a_team_with_schedules_stays(yard: Yard) -> None:
    put(yard, "keeps", user="root", team="product", cron="@yearly")
    refused = yard.ask("root", "DELETE", "/v1/teams/product")
    assert (refused.status_code, refused.json()["reason"]) == (409, "TeamHasSchedules")
    assert yard.ask("root", "DELETE", "/v1/schedules/product/keeps").status_code == 204


# ------------------------------------------------------------------------------------------------------------ restarts


def test_a_manager_that_was_away_makes_up_for_the_missed_times_once(tmp_path: Path) -> None:
    with Yard(tmp_path, clock=StandingClock()) as first:
        put(first, "missed", cron="0 * * * *")
        clock = first.clock
    clock.ahead_ms += 5 * 60 * MINUTE_MS
    with Yard(tmp_path, clock=clock) as second:
        pass_minutes(second, 1)
        (run,) = get(second, "missed")["runs"]
        skip = get(second, "missed")["last_skip"]
        assert (skip["reason"], skip["count"] >= 3) == ("Missed", True)
        late = datetime.fromisoformat(run["submitted_at"]) - datetime.fromisoformat(run["planned_at"])
        assert 0 <= late.total_seconds() < 3_700
    with Yard(tmp_path, clock=clock) as third:
        assert [one["job"] for one in get(third, "missed")["runs"]] == [run["job"]]
