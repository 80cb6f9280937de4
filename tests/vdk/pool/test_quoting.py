"""A quote: what would come of it, when, whom it would cost, and what would make it run. Nothing is booked."""

from __future__ import annotations

from gpuyard.vdk import Budget, DeviceRequirements, GpuResourceManager, Machine, Quote, Verdict
from tests.vdk.driving import everything
from tests.vdk.pools import a_pool, ask, job, start, told


def quoted(pool: GpuResourceManager, name: str, amount: float) -> Quote:
    before = everything(pool)
    quote = pool.quote(job(name), amount)
    assert everything(pool) == before
    return quote


def ways(quote: Quote) -> list[str]:
    return [way.what for way in quote.ways_out]


def test_where_there_is_room_it_is_now() -> None:
    quote = quoted(a_pool(2, a=0), "a/x", 1.5)
    assert (quote.verdict, quote.why, quote.when, quote.ways_out) == (Verdict.NOW, "there is room", "now", ())
    assert quote.place is not None
    assert (quote.place.machine, [share.device for share in quote.place.shares]) == ("m1", [0, 1])


def test_a_place_that_somebody_is_still_to_leave_is_not_free_now() -> None:
    pool = a_pool(2, a=0, b=2)
    start(pool, "a/wide", 2)
    ask(pool, "b/first", 1)
    assert quoted(pool, "b/second", 1).when == "when the open plans are carried out"


def test_whom_it_would_cost() -> None:
    pool = a_pool(2, a=0, b=2)
    start(pool, "a/x", 1)
    start(pool, "a/y", 1)
    quote = quoted(pool, "b/new", 1)
    assert (quote.verdict, quote.cost.deleted, quote.cost.moved) == (Verdict.RESHUFFLE, (job("a/x"),), ())
    assert quote.why == 'job "x" of team "a" would be deleted'
    assert told(ask(pool, "b/new", 1)) == ["delete a/x", "create b/new m1:0"]


def test_without_budget_it_runs_when_somebody_ends_with_a_larger_budget_or_with_less() -> None:
    pool = a_pool(4, a=0, b=1)
    start(pool, "a/x", 3)
    start(pool, "b/own", 0.9)
    quote = quoted(pool, "b/new", 1)
    assert quote.verdict is Verdict.NO_BUDGET
    assert ways(quote) == [
        'once job "own" of team "b" has ended',
        "with a budget of 1.9 gpu",
        "with at most 0.1 gpu",
    ]
    ends, budget, less = quote.ways_out
    assert (quote.when, ends.ends) == (ends.what, (job("b/own"),))
    assert (budget.budget_milli, budget.cost.deleted, less.amount_milli) == (1900, (job("a/x"),), 100)
    pool.set_budget(Budget("b", budget.budget_milli))
    assert told(ask(pool, "b/new", 1)) == ["delete a/x", "create b/new m1:0"]


def test_a_team_has_budget_again_when_jobs_of_its_own_end() -> None:
    pool = a_pool(2, 2, a=0, b=2)
    start(pool, "b/own", 2)
    start(pool, "a/x", 1)
    start(pool, "a/y", 1)
    quote = quoted(pool, "b/new", 1)
    assert ways(quote)[:2] == ['once job "x" of team "a" has ended', 'once job "own" of team "b" has ended']


def test_without_an_arrangement_it_runs_when_the_fewest_jobs_of_one_machine_end() -> None:
    pool = a_pool(2, 2, a=4, b=4)
    for name, amount in (("a/p", 2), ("a/q", 1), ("a/r", 1)):
        start(pool, name, amount, priority=True)
    quote = quoted(pool, "b/new", 2)
    assert (quote.verdict, ways(quote)) == (Verdict.NO_ARRANGEMENT, ['once job "p" of team "a" has ended'])
    pool.job_ended(job("a/p"))
    assert told(ask(pool, "b/new", 2)) == ["create b/new m1:0,1"]


def test_what_never_fits_has_no_end_to_wait_for() -> None:
    pool = a_pool(2, a=4)
    start(pool, "a/x", 1)
    quote = quoted(pool, "a/new", 3)
    assert (quote.verdict, quote.when, ways(quote)) == (Verdict.NEVER, "", ["with at most 1 gpu"])


def test_of_several_types_the_easiest_is_offered() -> None:
    pool = GpuResourceManager()
    pool.set_machine(Machine("slow", 2, "t4"))
    pool.set_machine(Machine("fast", 1, "a100"))
    pool.set_budget(Budget("a", 0, "t4"))
    for name, wanted in (("x", DeviceRequirements(1000, "a100")), ("y", DeviceRequirements(1500, "t4"))):
        pool.try_provision_resources(job(f"a/{name}"), wanted)
    quote = pool.quote(job("a/z"), [DeviceRequirements(1000, "a100"), DeviceRequirements(1000, "t4")])
    assert quote.verdict is Verdict.NO_BUDGET
    assert ways(quote) == ['once job "x" of team "a" has ended', "with at most 0.5 t4"]
