"""When waiting jobs will start: at the likely pace, and at the slow one."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from gpuyard.model.explanation import Forecast, Unknown
from gpuyard.model.jobs import Job
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import DEFAULT, Backfill, Reservation
from gpuyard.scheduler import forecast as forecast_module
from gpuyard.scheduler.forecast import STRIDE_PART, forecast, forecast_job
from gpuyard.scheduler.ledger import Ledger
from tests.builders import a_cluster, a_job
from tests.scheduler.test_reservation import streams, timed_clusters
from tests.simulate import Simulation

FEW: Final = settings(max_examples=25)


def of(cluster: Snapshot) -> dict[str, Forecast]:
    return forecast(Ledger.of(cluster))


def test_a_limit_tells_the_start_for_certain() -> None:
    runs = a_job("runs").gpus(8).on("node-1", *range(8)).lasts(1000)
    jobs = [a_job(f"j{n}").gpus(8).lasts(300).submitted(n) for n in range(2)]
    found = of(a_cluster().nodes(1).jobs(runs, *jobs).snapshot())
    assert found == {"j0": Forecast(1000, 1000), "j1": Forecast(1300, 1300)}


def test_an_estimate_is_the_likely_time_and_the_limit_the_slow_one() -> None:
    runs = a_job("runs").gpus(8).on("node-1", *range(8)).lasts(1000, estimate_ms=400)
    assert of(a_cluster().nodes(1).jobs(runs, a_job("j").gpus(8)).snapshot()) == {"j": Forecast(400, 1000)}


def test_where_only_an_estimate_is_known_the_slow_time_is_twice_as_long() -> None:
    runs = a_job("runs").gpus(8).on("node-1", *range(8)).lasts(estimate_ms=400)
    assert of(a_cluster().nodes(1).jobs(runs, a_job("j").gpus(8)).snapshot()) == {"j": Forecast(400, 800)}


def test_what_can_start_now_does() -> None:
    timed = a_cluster().nodes(1).jobs(a_job("j").gpus(8).lasts(10)).at(5)
    assert of(timed.snapshot()) == {"j": Forecast(5, 5)}
    assert of(a_cluster().nodes(1).jobs(a_job("j").gpus(8)).at(5).snapshot()) == {"j": Forecast(5, 5)}


@pytest.mark.parametrize("limit_ms", [None, 50])
def test_what_waits_for_something_without_an_end_cannot_be_told(limit_ms: int | None) -> None:
    runs = a_job("runs").gpus(1).on("node-1", 0)
    other = a_job("other").gpus(1).on("node-1", 1).lasts(limit_ms)
    cluster = a_cluster().nodes(1).jobs(runs, other, a_job("j").gpus(8)).snapshot()
    assert of(cluster) == {"j": Forecast(unknown=Unknown.NO_END)}


def test_a_likely_start_is_told_even_where_the_slow_one_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is run ahead only so far."""
    monkeypatch.setattr(forecast_module, "MAX_CYCLES", 2)
    runs = a_job("runs").gpus(8).on("node-1", *range(8)).lasts(100)
    jobs = [a_job(f"j{n}").gpus(8).lasts(300).submitted(n) for n in range(3)]
    found = of(a_cluster().nodes(1).jobs(runs, *jobs).snapshot())
    assert found["j0"] == Forecast(100, 100)
    assert found["j2"] == Forecast(unknown=Unknown.TOO_FAR)


def test_a_kept_start_holds_in_the_forecast() -> None:
    runs = a_job("runs").gpus(6).on("node-1", *range(6)).lasts(100)
    head, long = a_job("head").gpus(8).lasts(50).submitted(1), a_job("long").gpus(2).lasts(120).submitted(2)
    cluster = a_cluster().nodes(1).jobs(runs, head, long).snapshot()
    assert of(cluster) == {"head": Forecast(100, 100), "long": Forecast(150, 150)}
    off = replace(DEFAULT, reservation=Reservation(Backfill.OFF))
    assert forecast(Ledger.of(cluster), off) == {"long": Forecast(0, 0), "head": Forecast(120, 120)}


def test_what_is_ending_and_what_was_promised_are_taken_as_done() -> None:
    ending = a_job("ending").gpus(8).freeing("node-1", *range(8))
    found = of(a_cluster().nodes(1).jobs(ending, a_job("j").gpus(8).lasts(10)).at(7).snapshot())
    assert found == {"j": Forecast(7, 7)}


def test_one_job_is_asked_about_alone() -> None:
    runs = a_job("runs").gpus(8).on("node-1", *range(8)).lasts(1000)
    ledger = Ledger.of(a_cluster().nodes(1).jobs(runs, a_job("j").gpus(8)).snapshot())
    assert forecast_job(ledger, "j") == Forecast(1000, 1000)
    assert forecast_job(ledger, "runs") is None
    assert forecast_job(ledger, "nobody") is None


@FEW
@given(timed_clusters())
def test_a_forecast_changes_nothing_and_is_never_before_now_nor_slow_before_likely(cluster: Snapshot) -> None:
    ledger = Ledger.of(cluster)
    facts = ledger.facts()
    found = forecast(ledger)
    assert ledger.facts() == facts
    for one in found.values():
        assert (one.unknown is None) == (one.p50_ms is not None and one.p90_ms is not None)
        assert one.p50_ms is None or one.p50_ms >= cluster.now_ms
        assert one.p90_ms is None or one.p50_ms is None or one.p90_ms >= one.p50_ms


@FEW
@given(streams())
def test_where_limits_are_kept_exactly_the_forecast_comes_true(drawn: tuple[Snapshot, list[Job]]) -> None:
    """All jobs are there from the start, nobody comes later; the first ones exactly, the rest but for the stride."""
    cluster, jobs = drawn
    cluster = replace(cluster, jobs=tuple(replace(job, submitted_at_ms=-n) for n, job in enumerate(reversed(jobs))))
    told = of(cluster)
    simulation = Simulation(cluster, policy=replace(DEFAULT, steps=DEFAULT.steps[:1]))
    list(simulation.run(until_ms=10_000))
    for id, one in told.items():
        came = simulation.started.get(id)
        assert one.p50_ms == one.p90_ms
        assert (one.p50_ms is None) == (came is None)
        if came is not None and came < STRIDE_PART:
            assert one.p50_ms == came
