"""Rules between jobs: no team blocks another with one, and none finds out by them which labels another's jobs have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from gpuyard.worlds.standalone.intents import AdmitNode
from tests.service.yard import SYSTEM, Machine, Yard

pytestmark = pytest.mark.slow

MATCHING_ALL: Final[tuple[dict[str, Any], ...]] = (
    {"zzz": {"not": "q"}},
    {"zzz": {"exists": False}},
    {"zzz": {"not": ["a", "b"]}, "yyy": {"exists": False}},
)
SECRET: Final = "nightingale"
GUESSES: Final = (SECRET, "albatross")
PROBES: Final[tuple[dict[str, Any], ...]] = (
    {"near": {"labels": {"project": "GUESS"}}},
    {"apart": {"labels": {"project": "GUESS"}}},
    {"apart": {"labels": {"project": {"not": "GUESS"}}}},
    {"near": {"labels": {"project": "GUESS"}, "weight": 100}},
    {"apart": {"labels": {"project": "GUESS"}, "weight": 100}},
    {"even": {"labels": {"project": "GUESS"}}},
    {"even": {"labels": {"project": "GUESS"}, "weight": 100}},
    {"tasks": 2, "apart": {"labels": {"project": ["GUESS", "x"]}}},
)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    """Two machines of eight GPUs."""
    with Yard(tmp_path) as running:
        running.call(lambda: _second_machine(running))
        yield running


async def _second_machine(yard: Yard) -> None:
    await yard.manager.do(AdmitNode("m2", "fingerprint-2"), SYSTEM)
    Machine(yard.manager, "m2", 8).join()


def widen(yard: Yard, scope: str) -> None:
    body = {"queues": {"research": {"affinity_scope": scope}, "product": {"affinity_scope": scope}}}
    response = yard.ask("root", "PATCH", "/v1/teams", json=body)
    assert response.status_code == 200, response.text


def squat(yard: Yard, labels: dict[str, Any]) -> str:
    """A job of next to nothing on each machine, whose rule keeps everybody away."""
    id = yard.submit("max", gpus="0.001", tasks=2, apart=[{"labels": labels}], spread=True)
    yard.wait_for(id, "running")
    return id


@pytest.mark.parametrize("labels", MATCHING_ALL)
def test_a_rule_keeps_no_other_team_away(yard: Yard, labels: dict[str, Any]) -> None:
    squatter = squat(yard, labels)
    urgent = yard.submit("sue", gpus=2, priority=90)
    yard.wait_for(urgent, "running")
    assert yard.ask("root", "GET", f"/v1/jobs/{squatter}").json()["state"] == "running"


@pytest.mark.parametrize("scope", ["subtree", "cluster"])
def test_where_a_rule_reaches_another_team_its_job_gives_way_to_those_within_their_quota(
    yard: Yard, scope: str
) -> None:
    widen(yard, scope)
    squatter = squat(yard, MATCHING_ALL[0])
    urgent = yard.submit("sue", gpus=2)
    yard.wait_for(urgent, "running")
    yard.wait_for(squatter, "waiting", "running")
    last = yard.ask("root", "GET", f"/v1/jobs/{squatter}/explanation").json()["explanation"]["last_eviction"]
    assert (last["token"], last["resource"], last["beneficiary"]) == ("Reclaimed", "rule", urgent)
    hidden = yard.ask("max", "GET", f"/v1/jobs/{squatter}/explanation").json()["explanation"]["last_eviction"]
    assert hidden["beneficiary"] == "hidden (team speech)"


def test_only_an_admin_says_how_far_rules_reach(yard: Yard) -> None:
    for user in ("max", "lea", "sue", "olga"):
        response = yard.ask(user, "PATCH", "/v1/teams", json={"queues": {"vision": {"affinity_scope": "cluster"}}})
        assert response.status_code == 403
    refused = yard.ask("max", "POST", "/v1/plan", json={"command": ["x"], "affinity_scope": "cluster"})
    assert refused.status_code == 400


def answers(yard: Yard, user: str, probe: dict[str, Any], guess: str) -> tuple[object, ...]:
    """All that can be asked about a job before it is submitted, with the guess itself taken out."""
    asked = json.loads(json.dumps({"command": ["x"], "gpus": 1, **probe}).replace("GUESS", guess))
    plan = yard.ask(user, "POST", "/v1/plan", json=asked)
    dry = yard.ask(user, "POST", "/v1/jobs", json=asked, params={"dry_run": "true"})
    assert (plan.status_code, dry.status_code) == (200, 200), (plan.text, dry.text)
    plain = dry.json()
    for job in plain["jobs"]:
        del job["submitted_at"]
    known = plan.json()
    del known["revision"]
    return str(known).replace(guess, "GUESS"), str(plain).replace(guess, "GUESS")


@pytest.mark.parametrize("scope", ["queue", "subtree", "cluster"])
def test_a_plan_answers_alike_whatever_labels_jobs_of_other_teams_have(yard: Yard, scope: str) -> None:
    widen(yard, scope)
    for _ in range(2):
        yard.wait_for(yard.submit("sue", gpus="0.5", labels={"project": SECRET}), "running")
    for probe in PROBES:
        right, wrong = (answers(yard, "max", probe, guess) for guess in GUESSES)
        assert right == wrong, f"{probe} tells them apart"


@pytest.mark.parametrize("scope", ["queue", "cluster"])
def test_a_plan_does_not_show_what_waiting_jobs_of_other_teams_ask_for(yard: Yard, scope: str) -> None:
    widen(yard, scope)
    near = yard.submit("sue", gpus=1, near={"labels": {"project": SECRET}})
    yard.wait_for(near, "waiting")
    for path, body in (("/v1/plan", {"command": ["x"], "gpus": 1}), ("/v1/jobs?dry_run=true", {"command": ["x"]})):
        assert SECRET not in yard.ask("max", "POST", path, json=body).text


def test_an_explanation_counts_no_jobs_of_other_teams(yard: Yard) -> None:
    """Where an operator lets rules see other teams, a job still says in no number on how many nodes those are."""
    widen(yard, "cluster")
    secret = yard.submit("sue", gpus="0.5", labels={"project": SECRET}, tasks=2, spread=True, movable=False)
    yard.wait_for(secret, "running")
    blocked = yard.submit("max", gpus=1, apart={"labels": {"project": SECRET}})
    yard.wait_for(blocked, "waiting")

    def counted(user: str) -> list[tuple[int, int]]:
        seen = yard.ask(user, "GET", f"/v1/jobs/{blocked}/explanation").json()["explanation"]["blockers"]
        return [(one["have"], one["need"]) for one in seen if one["token"] == "NoMatchingNode"]

    assert counted("root") == [(0, 2)]
    assert counted("max") == [(0, 0)]
