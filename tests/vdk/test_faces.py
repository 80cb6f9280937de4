"""What the pool promises, over REST and over gRPC, in SQLite and in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.service.yard import Yard
from tests.vdk.faces import GrpcPool, Pool, RefusedError, RestPool

_types = count()


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def yard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    store = ""
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        store = server.url(server.make_database())
    with Yard(tmp_path_factory.mktemp("yard"), store=store) as running:
        yield running


@pytest.fixture(params=["rest", "grpc"])
def pool(request: pytest.FixtureRequest, yard: Yard) -> Iterator[Pool]:
    token = yard.tokens["root"]
    client = RestPool(yard.url, token) if request.param == "rest" else GrpcPool(yard.manager.stats.pool, token)
    yield client
    client.close()


@pytest.fixture
def kind() -> str:
    """A device type of the test's own, so that tests do not get in each other's way."""
    return f"type-{next(_types)}"


def refusal(work: Any, *arguments: Any, **more: Any) -> str:
    with pytest.raises(RefusedError) as caught:
        work(*arguments, **more)
    return caught.value.reason


# ----------------------------------------------------------------------------------------------------- the three calls


def test_free_space_and_budget(pool: Pool, kind: str) -> None:
    pool.set_machine(f"machine_4-{kind}", 1, kind)
    pool.set_budget("Team A", "1", kind)
    plan = pool.provision("Team A", f"job1-{kind}", "1", kind)
    assert pool.actions_of(plan) == [("CreateJob", f"job1-{kind}", f"machine_4-{kind}")]


def test_over_budget_and_nothing_free_then_another_job_ends(pool: Pool, kind: str) -> None:
    pool.set_machine(f"m-{kind}", 1, kind)
    pool.set_budget("Team A", "1", kind)
    pool.confirm(pool.id_of(pool.provision("Team A", f"job1-{kind}", "1", kind)), 1)
    before = pool.everything()
    with pytest.raises(RefusedError) as refused:
        pool.provision("Team A", f"job2-{kind}", "1", kind)
    assert refused.value.reason == "NoAvailableBudget"
    assert str(refused.value.code) in ("400", "StatusCode.RESOURCE_EXHAUSTED")
    for words in ("Team A", "no budget", "nowhere free", f"asks for 1 {kind}", "uses 1 of its budget of 1"):
        assert words in refused.value.what
    assert pool.everything() == before
    pool.ended("Team A", f"job1-{kind}")
    assert pool.provision("Team A", f"job2-{kind}", "1", kind)


def test_a_team_within_its_budget_gets_its_place_and_priority_protects(pool: Pool, kind: str) -> None:
    pool.set_machine(f"m-{kind}", 2, kind)
    for team, amount in (("greedy", "0"), ("modest", "1")):
        pool.set_budget(team, amount, kind)
    for name in (f"a-{kind}", f"b-{kind}"):
        pool.confirm(pool.id_of(pool.provision("greedy", name, "1", kind)), 1)
        pool.priority("greedy", name, True)
    with pytest.raises(RefusedError) as refused:
        pool.provision("modest", f"c-{kind}", "1", kind)
    assert refused.value.reason == "NoArrangement"
    assert str(refused.value.code) in ("409", "StatusCode.FAILED_PRECONDITION")
    pool.priority("greedy", f"a-{kind}", False)
    plan = pool.provision("modest", f"c-{kind}", "1", kind)
    assert pool.actions_of(plan) == [
        ("DeleteJob", f"a-{kind}", f"m-{kind}"),
        ("CreateJob", f"c-{kind}", f"m-{kind}"),
    ]
    id = pool.id_of(plan)
    assert refusal(pool.confirm, id, 2) == "StepNotReady"
    pool.confirm(id, 1)
    assert pool.state_of(pool.confirm(id, 2)) == "done"
    assert refusal(pool.confirm, id, 2) == "StepOver"
    assert refusal(pool.confirm, id, 3) == "StepUnknown"


def test_a_step_that_fails_rolls_its_plan_back(pool: Pool, kind: str) -> None:
    pool.set_machine(f"m-{kind}", 1, kind)
    pool.set_budget("team", "1", kind)
    id = pool.id_of(pool.provision("team", f"x-{kind}", "1", kind))
    assert pool.state_of(pool.fail(id, 1, "the machine is off")) == "rolled-back"
    assert "the machine is off" in str(pool.plan(id))
    assert refusal(pool.ended, "team", f"x-{kind}") == "JobUnknown"


def test_ten_times_a_tenth_fit_on_one_device_and_three_times_six_tenths_not_on_two(pool: Pool, kind: str) -> None:
    pool.set_budget("team", "2", kind)
    pool.set_machine(f"m-{kind}", 1, kind)
    for number in range(10):
        pool.provision("team", f"tenth-{number}-{kind}", "0.1", kind)
    assert refusal(pool.provision, "team", f"more-{kind}", "0.001", kind) == "NoArrangement"
    for number in range(10):
        pool.ended("team", f"tenth-{number}-{kind}")
    pool.set_machine(f"m-{kind}", 2, kind)
    for number in range(2):
        pool.provision("team", f"large-{number}-{kind}", "0.6", kind)
    assert refusal(pool.provision, "team", f"large-{kind}", "0.6", kind) == "NoArrangement"


def test_a_quote_books_nothing(pool: Pool, kind: str) -> None:
    pool.set_machine(f"m-{kind}", 1, kind)
    pool.set_budget("team", "2", kind)
    before = pool.everything()
    for amount, verdict in (("1", "now"), ("2", "never"), ("3", "no-budget")):
        quote = pool.quote("team", f"x-{kind}", amount, kind)
        assert quote["verdict"].lower().replace("_", "-").endswith(verdict)
    assert pool.everything() == before


def test_a_quote_says_what_would_make_it_run_and_whom_it_would_cost(pool: Pool, kind: str) -> None:
    pool.set_machine(f"m-{kind}", 2, kind)
    pool.set_budget("greedy", "0", kind)
    pool.set_budget("modest", "0", kind)
    for name in (f"a-{kind}", f"b-{kind}"):
        pool.confirm(pool.id_of(pool.provision("greedy", name, "0.9", kind)), 1)
    quote = pool.quote("modest", f"c-{kind}", "1", kind)
    ends, budget, less = quote["ways_out"]
    assert [one.get("name", one.get("job")) for one in ends["ends"]] == [f"a-{kind}"]
    assert quote["when"] == ends["what"] == f'once job "a-{kind}" of team "greedy" has ended'
    assert (budget["budget"], len(budget["cost"]["deleted"]), less["amount"]) == ("1", 1, "0.1")


# ------------------------------------------------------------------------------------------------------ what cannot be


AMOUNTS = {
    "NaN": "AmountNotANumber",
    "-nan": "AmountNotANumber",
    "ten": "AmountNotANumber",
    "": "AmountNotANumber",
    "Infinity": "AmountNotFinite",
    "-inf": "AmountNotFinite",
    "0": "AmountZero",
    "0.000": "AmountZero",
    "-1": "AmountNegative",
    "-0.001": "AmountNegative",
    "0.0001": "AmountTooFine",
    "1e-400": "AmountTooFine",
    "1e30": "AmountAbsurd",
    "1e400": "AmountAbsurd",
    "1025": "AmountAbsurd",
    "1000": "NoAvailableBudget",
    "2": "NeverFits",
}


@pytest.mark.parametrize("amount", AMOUNTS)
def test_an_amount_that_makes_no_sense_has_an_error_of_its_own_and_changes_nothing(pool: Pool, amount: str) -> None:
    pool.set_machine("m-amounts", 1, "amounts")
    pool.set_budget("team", "2", "amounts")
    before = pool.everything()
    assert refusal(pool.provision, "team", "x", amount, "amounts") == AMOUNTS[amount]
    assert pool.everything() == before


def test_what_is_unknown_known_or_over_has_an_error_of_its_own_and_changes_nothing(pool: Pool, kind: str) -> None:
    machine, job = f"m-{kind}", f"x-{kind}"
    pool.set_machine(machine, 1, kind)
    team = f"team-{kind}"
    pool.set_budget(team, "1", kind)
    id = pool.id_of(pool.provision(team, job, "0.5", kind))
    before = pool.everything()
    assert refusal(pool.provision, "nobody", job, "0.5", kind) == "TeamUnknown"
    assert refusal(pool.provision, team, job, "0.5", kind) == "JobKnown"
    assert refusal(pool.ended, team, "never") == "JobUnknown"
    assert refusal(pool.priority, team, "never", True) == "JobUnknown"
    assert refusal(pool.provision, team, "", "0.5", kind) == "BadName"
    assert refusal(pool.provision, team, "a____b", "0.5", kind) == "BadName"
    assert refusal(pool.remove_machine, machine) == "MachineBusy"
    assert refusal(pool.remove_machine, "never") == "MachineUnknown"
    assert refusal(pool.set_machine, "m", 0, kind) == "BadAmount"
    assert refusal(pool.remove_team, team) == "TeamBusy"
    assert refusal(pool.remove_team, "nobody") == "TeamUnknown"
    assert refusal(pool.set_budget, team, "-1", kind) == "AmountNegative"
    assert refusal(pool.plan, "never") == "PlanUnknown"
    assert refusal(pool.confirm, "never", 1) == "PlanUnknown"
    assert refusal(pool.fail, id, 1, "x" * 2000) == "BadField"
    assert pool.everything() == before
    pool.ended(team, job)
    before = pool.everything()
    assert refusal(pool.ended, team, job) == "JobEnded"
    assert refusal(pool.priority, team, job, True) == "JobEnded"
    assert pool.everything() == before


def test_a_request_that_is_sent_twice_with_its_key_is_done_once(pool: Pool, kind: str) -> None:
    pool.set_machine(f"m-{kind}", 2, kind)
    pool.set_budget("team", "1", kind)
    key = f"key-{kind}"
    first = pool.provision("team", f"x-{kind}", "0.5", kind, key=key)
    assert pool.provision("team", f"x-{kind}", "0.5", kind, key=key) == first
    assert refusal(pool.provision, "team", f"x-{kind}", "0.6", kind, key=key) == "KeyReused"
    assert refusal(pool.provision, "team", f"x-{kind}", "0.5", kind, key=f"other-{kind}") == "JobKnown"
