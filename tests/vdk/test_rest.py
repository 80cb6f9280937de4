"""/v1/pool as REST: bodies, numbers, pages, keys, the platform's own token, and what stays hidden."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx2
import pytest

from gpuyard.sdk.async_client import AsyncClient
from gpuyard.service.problems import ProblemReason
from gpuyard.vdk import errors
from gpuyard.wire.access import Scope
from gpuyard.wire.operations import OPERATIONS
from gpuyard.wire.pool import PoolAlternative, PoolRequest
from tests.service.yard import Yard

JSON = {"Content-Type": "application/json"}
OF_POOL = [operation for operation in OPERATIONS if operation.path.startswith("/v1/pool/")]

_types = count()


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("yard")) as running:
        running.ask("root", "PUT", "/v1/pool/machines/m", json={"devices": 100})
        for team in ("vision", "speech"):
            running.ask("root", "PUT", f"/v1/pool/budgets/{team}", json={"amount": "50"})
        yield running


@pytest.fixture
def kind(yard: Yard) -> str:
    """A device type of the test's own: one machine with one device; vision is owed it, speech nothing of it."""
    kind = f"type-{next(_types)}"
    yard.ask("root", "PUT", f"/v1/pool/machines/m-{kind}", json={"devices": 1, "device_type": kind})
    for team, amount in (("vision", 1), ("speech", 0)):
        yard.ask("root", "PUT", f"/v1/pool/budgets/{team}", json={"amount": amount, "device_type": kind})
    return kind


def provision(yard: Yard, user: str, name: str, amount: Any = "1", **more: Any) -> httpx2.Response:
    body = {"name": name, "team": "vision", "amount": amount, **more}
    return yard.ask(user, "POST", "/v1/pool/provision", json=body)


def of(kind: str, amount: str = "1") -> dict[str, Any]:
    return {"amount": None, "alternatives": [{"amount": amount, "device_type": kind}]}


# -------------------------------------------------------------------------------------------------------------- bodies


def test_an_answer_has_the_shape_of_the_original(yard: Yard, kind: str) -> None:
    answer = provision(yard, "max", "job1", **of(kind, "0.5"))
    assert answer.status_code == 201
    plan = answer.json()
    (action,) = plan["actions"]
    assert (action["action"], action["name"], action["machine"]) == ("CreateJob", "job1", f"m-{kind}")
    assert (action["team"], action["device"], action["amount"], action["number"]) == ("vision", 0, "0.5", 1)
    assert action["place"] == {"machine": f"m-{kind}", "shares": [{"device": 0, "amount": "0.5"}]}
    assert (plan["state"], action["state"]) == ("open", "ready")
    assert yard.ask("max", "GET", f"/v1/pool/plans/{plan['plan']}").json() == plan


@pytest.mark.parametrize(("number", "text"), [(0.1, "0.1"), (0.3, "0.3"), (2, "2"), (2.5, "2.5"), (1e0, "1")])
def test_a_number_is_read_by_its_shortest_decimal_form(yard: Yard, number: float, text: str) -> None:
    assert provision(yard, "max", f"number-{text}-{type(number)}", number).json()["actions"][0]["amount"] == text


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (0, "AmountZero"),
        (-1, "AmountNegative"),
        (1e-4, "AmountTooFine"),
        (10**400, "AmountAbsurd"),
        ("1e400", "BadField"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(yard: Yard, number: float | str, reason: str) -> None:
    text = f'{{"name": "x", "team": "vision", "amount": {number}}}'
    answer = yard.ask("root", "POST", "/v1/pool/provision", content=text, headers=JSON)
    assert (answer.status_code, answer.json()["reason"]) == (400, reason)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "nan", "0x1", "1,5", "01"])
def test_what_is_no_number_of_json_is_no_json(yard: Yard, word: str) -> None:
    text = f'{{"name": "x", "team": "vision", "amount": {word}}}'
    answer = yard.ask("root", "POST", "/v1/pool/provision", content=text, headers=JSON)
    assert (answer.status_code, answer.json()["reason"]) == (400, "Malformed")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, ""),
        ({"amount": None}, "amount"),
        ({"amount": "1", "alternatives": [{"amount": "1"}]}, "amount"),
        ({"alternatives": []}, "amount"),
        ({"alternatives": [{"amount": "1"}] * 17}, "alternatives"),
        ({"alternatives": [{"device_type": "a100"}]}, "alternatives[0]"),
        ({"amount": True}, "amount"),
        ({"amount": ["1"]}, "amount"),
        ({"amount": "1", "priorty": True}, ""),
        ({"amount": "1", "priority": "yes"}, "priority"),
    ],
)
def test_a_body_that_is_not_understood_names_its_field(yard: Yard, body: dict[str, Any], field: str) -> None:
    sent = {"name": "x", "team": "vision", **body} if body else {}
    answer = yard.ask("root", "POST", "/v1/pool/provision", json=sent)
    assert (answer.status_code, answer.json()["reason"], answer.json().get("field", "")) == (400, "BadField", field)


@pytest.mark.parametrize("number", ["0", "-1", "x", "9" * 30, "1.0"])
def test_a_step_that_cannot_be_is_not_found(yard: Yard, kind: str, number: str) -> None:
    plan = provision(yard, "max", f"step-{kind}", **of(kind)).json()["plan"]
    answer = yard.ask("max", "POST", f"/v1/pool/plans/{plan}/steps/{number}/confirm")
    assert (answer.status_code, answer.json()["reason"]) == (404, "StepUnknown")


def test_lists_come_in_pages(yard: Yard) -> None:
    for number in range(5):
        yard.ask("root", "PUT", f"/v1/pool/machines/page-{number}", json={"devices": 1, "device_type": "page"})
    page = yard.ask("root", "GET", "/v1/pool/machines?limit=2").json()
    names = [item["name"] for item in page["items"]]
    while page["next"] is not None:
        page = yard.ask("root", "GET", f"/v1/pool/machines?limit=2&cursor={page['next']}").json()
        names += [item["name"] for item in page["items"]]
    assert names == sorted(set(names))
    assert len([name for name in names if name.startswith("page-")]) == 5
    wrong = yard.ask("root", "GET", "/v1/pool/jobs?cursor=nonsense")
    assert (wrong.status_code, wrong.json()["reason"]) == (400, "BadCursor")


def test_every_word_of_the_resource_manager_has_a_status() -> None:
    words = {str(getattr(kind, "word", "")) for kind in vars(errors).values()} - {""}
    assert len(words) == 22
    assert words <= set(ProblemReason)


# ---------------------------------------------------------------------------------------------------------------- keys


def test_a_call_that_is_sent_twice_with_its_key_is_done_once(yard: Yard, kind: str) -> None:
    plan = provision(yard, "max", f"twice-{kind}", **of(kind)).json()["plan"]
    confirm = f"/v1/pool/plans/{plan}/steps/1/confirm"
    job = {"name": f"twice-{kind}", "team": "vision"}

    def ask(path: str, key: str, body: Any = None) -> int:
        sent = {} if body is None else {"json": body}
        return yard.ask("max", "POST", path, headers={"Idempotency-Key": f"{key}-{kind}"}, **sent).status_code

    assert [ask(confirm, "confirm"), ask(confirm, "confirm"), ask(confirm, "again")] == [200, 200, 409]
    assert [ask("/v1/pool/ended", "end", job), ask("/v1/pool/ended", "end", job)] == [204, 204]
    assert ask("/v1/pool/ended", "other", job) == 409
    assert ask("/v1/pool/ended", "end", {**job, "name": "another"}) == 409


def test_keys_of_different_people_are_different(yard: Yard, kind: str) -> None:
    headers = {"Idempotency-Key": f"shared-{kind}"}
    body = {"name": f"mine-{kind}", "team": "vision", "alternatives": [{"amount": "0.1", "device_type": kind}]}
    assert yard.ask("max", "POST", "/v1/pool/provision", json=body, headers=headers).status_code == 201
    refused = yard.ask("mia", "POST", "/v1/pool/provision", json=body, headers=headers)
    assert (refused.status_code, refused.json()["reason"]) == (409, "JobKnown")


# -------------------------------------------------------------------------------------------------------------- access


def test_a_platform_can_hold_a_token_that_is_good_for_the_pool_and_for_nothing_else(yard: Yard, kind: str) -> None:
    token = yard.token("olga", Scope.POOL)
    with yard.client(token=token) as platform:
        body = {"name": f"vdk-{kind}", "team": "vision", "amount": "0.1", "priority": True}
        assert platform.post("/v1/pool/provision", json=body).status_code == 201
        assert platform.put(f"/v1/pool/machines/vdk-{kind}", json={"devices": 1}).status_code == 200
        for operation in OPERATIONS:
            if operation not in OF_POOL and operation.permission is not None:
                assert platform.request(operation.method, operation.path).status_code == 403


def test_of_other_teams_jobs_a_member_learns_no_name(yard: Yard, kind: str) -> None:
    secret = f"secret-{kind}"
    theirs = {"name": secret, "team": "speech", "alternatives": [{"amount": "1", "device_type": kind}]}
    plan = yard.ask("sam", "POST", "/v1/pool/provision", json=theirs).json()["plan"]
    yard.ask("sam", "POST", f"/v1/pool/plans/{plan}/steps/1/confirm")
    mine = {"name": f"mine-{kind}", "team": "vision", "alternatives": [{"amount": "1", "device_type": kind}]}
    quoted = yard.ask("max", "POST", "/v1/pool/quote", json=mine)
    assert (quoted.json()["verdict"], quoted.json()["cost"]["deleted"]) == (
        "reshuffle",
        [{"name": "", "team": "speech"}],
    )
    answers = [quoted]
    made = yard.ask("max", "POST", "/v1/pool/provision", json=mine)
    answers.append(made)
    (deleted, created) = made.json()["actions"]
    assert (deleted["action"], deleted["name"], deleted["team"]) == ("DeleteJob", "", "speech")
    assert created["name"] == f"mine-{kind}"
    path = f"/v1/pool/plans/{made.json()['plan']}"
    answers.append(yard.ask("max", "POST", f"{path}/steps/2/confirm"))
    assert answers[-1].json()["reason"] == "StepNotReady"
    answers.append(yard.ask("max", "POST", f"{path}/steps/1/fail", json={}))
    answers.append(yard.ask("max", "POST", f"{path}/steps/1/confirm"))
    assert answers[-1].json()["reason"] == "StepOver"
    yard.ask("sue", "POST", "/v1/pool/priority", json={"name": secret, "team": "speech", "priority": True})
    answers.append(yard.ask("max", "POST", "/v1/pool/provision", json=mine))
    assert answers[-1].json()["reason"] == "NoArrangement"
    answers.append(yard.ask("max", "POST", "/v1/pool/quote", json=mine))
    answers += [yard.ask("max", "GET", f"/v1/pool/{what}?limit=1000") for what in ("jobs", "plans?all=1", "machines")]
    for answer in answers:
        assert secret not in answer.text
    assert secret in yard.ask("root", "GET", "/v1/pool/plans?all=1&limit=1000").text


def test_what_one_may_not_see_is_answered_as_what_is_not_there(yard: Yard, kind: str) -> None:
    theirs = {"name": f"theirs-{kind}", "team": "speech", "amount": "0.1"}
    plan = yard.ask("sam", "POST", "/v1/pool/provision", json=theirs).json()["plan"]
    hidden, absent = (yard.ask("max", "GET", f"/v1/pool/plans/{id}") for id in (plan, "999999"))
    assert hidden.status_code == absent.status_code == 404
    assert hidden.text.replace(plan, "ID") == absent.text.replace("999999", "ID")
    hidden, absent = (
        yard.ask("max", "POST", "/v1/pool/ended", json={"name": name, "team": "speech"})
        for name in (f"theirs-{kind}", "never")
    )
    assert hidden.text.replace(f"theirs-{kind}", "ID") == absent.text.replace("never", "ID")
    assert hidden.status_code == 404


# ---------------------------------------------------------------------------------------------------------- the client


def test_the_client_that_awaits_does_the_same(yard: Yard, kind: str) -> None:
    async def live() -> tuple[str, list[str], list[str]]:
        async with AsyncClient(yard.url, yard.tokens["root"]) as client:
            wish = PoolAlternative("0.5", kind)
            request = PoolRequest(name=f"awaited-{kind}", team="vision", alternatives=(wish,))
            assert (await client.quote_pool_job(request)).verdict == "now"
            plan = await client.provision_pool_job(request)
            assert (await client.confirm_pool_step(plan.plan, 1)).state == "done"
            assert (await client.mark_pool_job("vision", f"awaited-{kind}", True)).priority
            jobs = [job.name async for job in client.pool_jobs(team="vision")]
            await client.end_pool_job("vision", f"awaited-{kind}")
            plans = [one.plan async for one in client.pool_plans(all=True)]
            return plan.plan, jobs, plans

    plan, jobs, plans = asyncio.run(live())
    assert f"awaited-{kind}" in jobs
    assert plan in plans


# ------------------------------------------------------------------------------------------------------------ the loop


@pytest.mark.slow
def test_the_manager_answers_while_the_pool_is_busy(yard: Yard) -> None:
    busy_s = 3.0
    began = time.monotonic()
    desk = yard.call(yard.pool.desk)
    asyncio.run_coroutine_threadsafe(desk.do(lambda pool: time.sleep(busy_s)), yard.loop)
    while time.monotonic() - began < busy_s / 2:
        asked = time.monotonic()
        assert yard.ask("root", "GET", "/v1/whoami").status_code == 200
        assert time.monotonic() - asked < busy_s / 2
    assert yard.ask("root", "GET", "/v1/pool/machines").status_code == 200
    assert time.monotonic() - began >= busy_s


def test_the_status_says_where_platforms_reach_the_pool(yard: Yard) -> None:
    assert yard.ask("vic", "GET", "/v1/status").json()["pool"] == yard.manager.stats.pool != ""
