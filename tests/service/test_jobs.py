"""Jobs over REST: submitted, listed, looked at, steered, explained, read."""

from typing import Any

import pytest

from tests.service.yard import Yard

STORES = ("sqlite", "postgres")


def test_a_submitted_job_runs_and_can_be_looked_at(yard: Yard) -> None:
    id = yard.submit("max", name="train", command=["python", "train.py"], env={"A": "1"}, gpus=2)
    found = yard.wait_for(id, "running")
    assert (found["name"], found["team"], found["user"], found["gpus"]) == ("train", "vision", "max", "2")
    assert found["nodes"] == ["m1"]
    assert found["task_list"][0]["phase"] == "running"
    mine = yard.ask("max", "GET", f"/v1/jobs/{id}").json()
    assert (mine["command"], mine["env"]) == (["python", "train.py"], {"A": "1"})


def test_the_same_as_yaml(yard: Yard) -> None:
    body = "command: sleep 1\nteam: vision\ngpus: 0.25\n"
    response = yard.ask("max", "POST", "/v1/jobs", content=body, headers={"Content-Type": "application/yaml"})
    assert response.status_code == 201
    assert response.json()["jobs"][0]["gpus"] == "0.25"


def test_an_array_is_many_jobs(yard: Yard) -> None:
    response = yard.ask("max", "POST", "/v1/jobs", json={"command": ["x"], "array": "0-4%2", "gpus": 0})
    jobs = response.json()["jobs"]
    assert [job["array_index"] for job in jobs] == [0, 1, 2, 3, 4]
    assert [job["state"] for job in jobs].count("blocked") == 3
    listed = yard.ask("max", "GET", "/v1/jobs", params={"array": jobs[0]["array"]}).json()["items"]
    assert len(listed) == 5


@pytest.mark.parametrize(
    ("verbs", "state"),
    [
        (["hold", "release"], {"waiting", "starting", "running"}),
        (["suspend", "resume"], {"waiting", "starting", "running"}),
        (["cancel"], {"cancelled", "stopping"}),
        (["requeue"], {"stopping", "waiting", "starting", "running"}),
    ],
)
def test_a_job_is_steered(yard: Yard, verbs: list[str], state: set[str]) -> None:
    id = yard.submit("max", gpus=0)
    yard.wait_for(id, "running")
    for verb in verbs:
        response = yard.ask("max", "POST", f"/v1/jobs/{id}/{verb}")
        assert response.status_code == 200, response.text
        if verb in ("hold", "suspend"):
            yard.wait_for(id, "held", "suspended")
    assert yard.ask("max", "GET", f"/v1/jobs/{id}").json()["state"] in state


def test_an_elastic_job_is_scaled(yard: Yard) -> None:
    id = yard.submit("max", gpus=0, tasks=3, gang=1)
    response = yard.ask("max", "POST", f"/v1/jobs/{id}/scale", json={"tasks": 5, "min_tasks": 2})
    assert (response.json()["tasks"], response.json()["min_tasks"]) == (5, 2)


def test_a_job_that_waits_says_why_and_what_would_help(yard: Yard) -> None:
    id = yard.submit("max", gpus=8, name="large")
    yard.submit("max", gpus=8)
    explained = yard.ask("max", "GET", f"/v1/jobs/{id}/explanation").json()
    assert explained["explanation"]["job"] == id
    assert explained["text"][0].startswith(f"job {id} ")
    assert explained["exit_code"] in (0, 10)


def test_an_element_that_waits_for_its_turn_is_not_said_to_be_held(yard: Yard) -> None:
    asked = {"command": ["sleep", "60"], "array": "0-2%1", "gpus": 0}
    jobs = yard.ask("max", "POST", "/v1/jobs", json=asked).json()["jobs"]
    explained = yard.ask("max", "GET", f"/v1/jobs/{jobs[1]['id']}/explanation").json()
    assert (explained["explanation"]["standing"], explained["exit_code"]) == ("blocked", 10)
    assert explained["text"][0].endswith("waits for its turn in its array: 1 of it run at once")


def test_a_job_on_nodes_says_so(yard: Yard) -> None:
    id = yard.submit("max", gpus=0, nodes=1, tasks=3)
    job = yard.ask("max", "GET", f"/v1/jobs/{id}").json()
    assert (job["tasks"], job["min_tasks"], job["tasks_per_node"]) == (3, 3, 3)


def test_a_job_that_is_over_is_explained_too(yard: Yard) -> None:
    id = yard.submit("max", gpus=0, hold=True)
    yard.ask("max", "POST", f"/v1/jobs/{id}/cancel")
    explained = yard.ask("max", "GET", f"/v1/jobs/{id}/explanation").json()
    assert (explained["explanation"]["standing"], explained["exit_code"]) == ("finished", 0)


def test_what_would_happen_is_said_and_not_done(yard: Yard) -> None:
    before = yard.manager.state.next_job
    planned = yard.ask("max", "POST", "/v1/plan", json={"command": ["x"], "gpus": 0})
    assert planned.status_code == 200
    (line,) = planned.json()["text"]
    assert line.startswith("x/0 starts on m1: ")
    assert yard.manager.state.next_job == before


def test_a_dry_run_of_a_submission_says_what_it_would_be_and_does_nothing(fresh_yard: Yard) -> None:
    yard = fresh_yard
    number = yard.manager.state.next_job
    dry = yard.ask("max", "POST", "/v1/jobs?dry_run=true", json={"command": ["x"], "name": "dry", "gpus": 1})
    assert dry.status_code == 200
    (job,) = dry.json()["jobs"]
    assert (job["id"], job["name"], job["team"], job["gpus"], job["state"]) == (
        str(number),
        "dry",
        "vision",
        "1",
        "waiting",
    )
    # It is the caller's own job, which is not hidden from them.
    assert dry.json()["text"][0].startswith(f"job {number} of vision starts ")
    array = {"command": ["x"], "gpus": 0, "array": "3-5%1"}
    many = yard.ask("max", "POST", "/v1/jobs?dry_run=true", json=array).json()["jobs"]
    assert [(one["id"], one["state"]) for one in many] == [
        (f"{number}_3", "waiting"),
        (f"{number}_4", "blocked"),
        (f"{number}_5", "blocked"),
    ]
    assert yard.manager.state.next_job == number


def test_an_array_that_is_taken_for_a_job_is_told_apart(yard: Yard) -> None:
    asked = {"command": ["x"], "array": "0-2", "gpus": 0, "hold": True}
    array = yard.ask("max", "POST", "/v1/jobs", json=asked).json()["jobs"][0]["array"]
    refused = yard.ask("max", "GET", f"/v1/jobs/{array}").json()
    assert (refused["reason"], refused["status"]) == ("JobUnknown", 404)
    assert f"{array} is an array of 3 jobs, {array}_0 to {array}_2" in refused["fix"]
    others = yard.ask("sue", "GET", f"/v1/jobs/{array}").json()
    assert others["fix"] == yard.ask("sue", "GET", "/v1/jobs/999999").json()["fix"]


def test_a_plan_says_whom_the_job_costs_and_what_teams_hold_before_and_after(fresh_yard: Yard) -> None:
    yard = fresh_yard
    victim = yard.submit("max", gpus=4, tasks=2)
    yard.wait_for(victim, "running")
    asked = {"command": ["x"], "name": "late", "team": "speech", "gpus": 2}
    text = yard.ask("root", "POST", "/v1/plan", json=asked).json()["text"]
    assert text[0].startswith(f'{victim}/0 leaves m1: gives way to job "late" of another queue')
    assert any(line.startswith("late/0 gets m1 (GPUs ") for line in text)
    assert set(text[-2:]) == {
        "team vision holds 8 of 4 owed (4 borrowed) now, and then holds 0 of 4 owed",
        "team speech holds 0 of 2 owed now, and then holds 2 of 2 owed",
    }
    waits = yard.ask("root", "POST", "/v1/plan", json={**asked, "gpus": 8}).json()["text"]
    assert len(waits) == 1
    assert waits[0].startswith("late waits: needs 8 GPUs")


def test_a_job_that_can_never_run_is_refused_with_its_blockers(yard: Yard) -> None:
    body = {"command": ["x"], "gpus": 64}
    refused = yard.ask("max", "POST", "/v1/jobs", json=body)
    assert (refused.status_code, refused.json()["reason"]) == (422, "Never")
    assert refused.json()["blockers"][0]["never"]
    assert refused.headers["content-type"] == "application/problem+json"
    taken = yard.ask("max", "POST", "/v1/jobs?allow_never=true", json=body)
    assert taken.status_code == 201


def test_a_change_is_tried_without_being_made(yard: Yard) -> None:
    body = "queues: {vision: {quota: 2}}\nnodes: {drain: [m1]}\n"
    found = yard.ask("olga", "POST", "/v1/what-if", content=body, headers={"Content-Type": "application/yaml"})
    assert found.status_code == 200
    assert found.json()["text"]


# ------------------------------------------------------------------------------------------------------------- listing


def listed(yard: Yard, **query: Any) -> list[str]:
    found = yard.ask("max", "GET", "/v1/jobs", params=query)
    assert found.status_code == 200, found.text
    return [job["id"] for job in found.json()["items"]]


def test_lists_are_filtered(yard: Yard) -> None:
    a = yard.submit("max", name="findme", gpus=0, labels={"kind": "a", "x": "y"}, hold=True)
    b = yard.submit("mia", name="findme", gpus=0, hold=True)
    assert listed(yard, name="findme") == [b, a]
    assert listed(yard, name="findme", user="mia") == [b]
    assert listed(yard, label="kind=a,x=y") == [a]
    assert listed(yard, name="findme", state="held") == [b, a]
    assert listed(yard, name="findme", state="running,failed") == []
    yard.ask("max", "POST", f"/v1/jobs/{a}/cancel")
    assert listed(yard, name="findme", state="active") == [b]


def test_pages_hold_everything_once_though_the_list_changes_in_between(yard: Yard) -> None:
    ids = [yard.submit("max", name="paged", gpus=0, hold=True) for _ in range(7)]
    seen: list[str] = []
    query: dict[str, Any] = {"name": "paged", "limit": 3}
    while True:
        page = yard.ask("max", "GET", "/v1/jobs", params=query).json()
        seen += [job["id"] for job in page["items"]]
        yard.submit("max", name="paged", gpus=0, hold=True)
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert seen == ids[::-1]


def test_a_cursor_of_another_list_or_filter_is_refused(yard: Yard) -> None:
    for _ in range(3):
        yard.submit("max", name="curs", gpus=0, hold=True)
    cursor = yard.ask("max", "GET", "/v1/jobs", params={"name": "curs", "limit": 1}).json()["next"]
    wrong = [("/v1/jobs", {"name": "other", "cursor": cursor}), ("/v1/nodes", {"cursor": cursor})]
    wrong += [("/v1/jobs", {"cursor": text}) for text in ("x", "AAAA", cursor[:-3], "é", "A" * 2000, "=")]
    for path, query in wrong:
        refused = yard.ask("max", "GET", path, params=query)
        assert (refused.status_code, refused.json()["reason"]) == (400, "BadCursor")


# ------------------------------------------------------------------------------------------------ sent once, done once


def test_a_request_that_is_sent_twice_is_done_once(yard: Yard) -> None:
    body, key = {"command": ["x"], "gpus": 0}, {"Idempotency-Key": "once-1"}
    first = yard.ask("max", "POST", "/v1/jobs", json=body, headers=key)
    again = yard.ask("max", "POST", "/v1/jobs", json=body, headers=key)
    assert [job["id"] for job in first.json()["jobs"]] == [job["id"] for job in again.json()["jobs"]]
    other = yard.ask("max", "POST", "/v1/jobs", json={**body, "name": "y"}, headers=key)
    assert (other.status_code, other.json()["reason"]) == (409, "KeyReused")
    somebody = yard.ask("mia", "POST", "/v1/jobs", json=body, headers=key)
    assert somebody.json()["jobs"][0]["id"] != first.json()["jobs"][0]["id"]


@pytest.mark.parametrize("verb", ["cancel", "hold", "suspend"])
def test_a_verb_that_is_sent_twice_with_a_key_is_answered_twice(yard: Yard, verb: str) -> None:
    id = yard.submit("max", gpus=0)
    yard.wait_for(id, "running")
    key = {"Idempotency-Key": f"{verb}-1"}
    answers = [yard.ask("max", "POST", f"/v1/jobs/{id}/{verb}", headers=key) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]


def test_without_a_key_a_verb_out_of_turn_is_refused(yard: Yard) -> None:
    id = yard.submit("max", gpus=0, hold=True)
    yard.ask("max", "POST", f"/v1/jobs/{id}/cancel")
    refused = yard.ask("max", "POST", f"/v1/jobs/{id}/cancel")
    assert (refused.status_code, refused.json()["reason"]) == (409, "WrongState")


def test_a_change_may_be_bound_to_a_revision(yard: Yard) -> None:
    id = yard.submit("max", gpus=0, hold=True)
    etag = yard.ask("max", "GET", f"/v1/jobs/{id}").headers["etag"]
    assert etag.startswith('"')
    stale = yard.ask("max", "POST", f"/v1/jobs/{id}/cancel", headers={"If-Match": '"1"'})
    assert (stale.status_code, stale.json()["reason"]) == (412, "Changed")
    assert yard.ask("max", "POST", f"/v1/jobs/{id}/cancel", headers={"If-Match": etag}).status_code == 200


# ---------------------------------------------------------------------------------------------------------------- logs


def test_logs_are_read_from_the_machine(yard: Yard) -> None:
    id = yard.submit("max", gpus=0, command=["hello", "world"])
    yard.wait_for(id, "running")
    whole = yard.ask("max", "GET", f"/v1/jobs/{id}/logs")
    assert (whole.text, whole.headers["gpuyard-log-offset"]) == ("hello world\n", "0")
    part = yard.ask("max", "GET", f"/v1/jobs/{id}/logs", params={"offset": -6, "limit": 3})
    assert (part.text, part.headers["gpuyard-log-offset"]) == ("wor", "6")


def test_a_followed_log_goes_on_until_the_attempt_ends(yard: Yard) -> None:
    from gpuyard.wire.agents import AttemptId

    id = yard.submit("max", gpus=0, command=["one"])
    yard.wait_for(id, "running")
    attempt = AttemptId(id, 0, 1)
    with yard.client("max") as client, client.stream("GET", f"/v1/jobs/{id}/logs?follow=true") as response:
        pieces = response.iter_text()
        assert next(pieces) == "one\n"

        async def go_on() -> None:
            yard.machine.logs[attempt] += b"two\n"
            yard.machine.finish(attempt)

        yard.call(go_on)
        assert "".join(pieces) == "two\n"


def test_a_log_that_is_not_there_is_a_problem(yard: Yard) -> None:
    held = yard.submit("max", gpus=0, hold=True)
    for query in ({}, {"task": 7}, {"attempt": 3}):
        refused = yard.ask("max", "GET", f"/v1/jobs/{held}/logs", params=query)
        assert (refused.status_code, refused.json()["reason"]) == (404, "LogMissing")
