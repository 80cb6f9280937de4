"""Starts that are kept: who gets one, who may fill in around it, and that nobody who does is ever in its way.

Most of it is simulated: many cycles in virtual time, where jobs end exactly at their run limit.
"""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.model.jobs import Job
from gpuyard.model.plan import Bind, Plan
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.snapshot import Snapshot, TimePassed
from gpuyard.policies.policy import DEFAULT, Backfill, Policy, Reservation, Step
from gpuyard.scheduler.cycle import plan as plan_on
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.endings import NEVER, end_ms
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.verify import verify
from tests.builders import ClusterBuilder, a_cluster, a_job, a_node
from tests.replay import replay
from tests.scheduler.test_properties import thorough
from tests.simulate import Simulation, in_the_way, kept_in_turn, kept_starts, stream
from tests.strategies import clusters, some

SECOND: Final = 1000
OFF: Final = replace(DEFAULT, reservation=Reservation(Backfill.OFF))
EASY: Final = DEFAULT
CONSERVATIVE: Final = replace(DEFAULT, reservation=Reservation(Backfill.CONSERVATIVE))
ALLOCATE: Final = replace(DEFAULT, steps=(Step.ALLOCATE,))


def started(plan: Plan) -> set[str]:
    return {action.job for action in plan.actions if isinstance(action, Bind)}


def busy(gpus: int = 6, limit_ms: int | None = 100) -> ClusterBuilder:
    """One node of eight GPUs, some of them held by a job, and a gang that wants all eight."""
    runs = a_job("runs").gpus(gpus).on("node-1", *range(gpus)).lasts(limit_ms)
    return a_cluster().nodes(1).jobs(runs, a_job("head").gpus(8).lasts(50).submitted(1))


# ------------------------------------------------------------------------------------------------------- one cycle


def test_a_job_that_cannot_start_is_kept_the_moment_its_blockers_end() -> None:
    assert kept_starts(busy().snapshot()) == {"head": 100}


def test_a_job_that_ends_by_then_fills_in() -> None:
    cluster = busy().jobs(a_job("short").gpus(2).lasts(100).submitted(2)).snapshot()
    assert started(schedule(cluster)) == {"short"}


@pytest.mark.parametrize("limit_ms", [101, None])
def test_a_job_that_ends_later_or_nobody_knows_when_is_held_back(limit_ms: int | None) -> None:
    cluster = busy().jobs(a_job("long").gpus(2).lasts(limit_ms).submitted(2)).snapshot()
    plan = schedule(cluster)
    assert started(plan) == set()
    assert plan.reasons_for("long") == (Reason(Token.RESERVED, beneficiary="head"),)


def test_a_job_that_ends_later_starts_beside_what_is_kept() -> None:
    """At its start the head takes six of eight GPUs; two are nobody's."""
    runs = a_job("runs").gpus(6).on("node-1", *range(6)).lasts(100)
    head, long = a_job("head").gpus(6).lasts(50).submitted(1), a_job("long").gpus(1).submitted(2)
    longer, third = a_job("longer").gpus(1).submitted(2), a_job("third").gpus(1).submitted(2)
    cluster = a_cluster().nodes(1).jobs(runs, head, long, longer, third)
    assert started(schedule(cluster.snapshot())) == {"long", "longer"}


def test_shorter_jobs_behind_a_long_one_in_the_same_line_fill_in() -> None:
    ask = [a_job(f"j{n}").gpus(1).lasts(limit).submitted(2 + n) for n, limit in enumerate((200, 90, 200, 100, 100))]
    plan = schedule(busy().jobs(*ask).snapshot())
    assert started(plan) == {"j1", "j3"}
    assert plan.reasons_for("j0")[0].token is Token.NOT_ENOUGH


def test_growing_elastic_jobs_end_when_the_whole_job_does() -> None:
    """The job started long ago, so its new task is gone in time although a new job of that length would not be."""
    runs = a_job("runs").gpus(6).on("node-1", *range(6)).lasts(100)
    grows = a_job("grows").gpus(1).tasks(2, gang=1).on("node-1", 7).lasts(120)
    head = a_job("head").gpus(7).lasts(50).submitted(1)
    cluster = a_cluster().nodes(1).jobs(runs, grows, head).at(90).snapshot()
    late = replace(cluster, jobs=tuple(_started_at(job, {"grows": -25}) for job in cluster.jobs))
    assert kept_starts(late) == {"head": 100}
    assert started(schedule(late)) == {"grows"}
    young = replace(cluster, jobs=tuple(_started_at(job, {"grows": 80}) for job in cluster.jobs))
    assert kept_starts(young) == {"head": 100}
    assert started(schedule(young)) == set()


def _started_at(job: Job, moments: dict[str, int]) -> Job:
    tasks = tuple(replace(task, started_at_ms=moments.get(job.id, 0) if task.node else 0) for task in job.tasks)
    return replace(job, tasks=tasks)


def test_a_start_nobody_can_time_is_not_kept() -> None:
    cluster = busy(limit_ms=None).jobs(a_job("long").gpus(1).lasts(10).submitted(2)).snapshot()
    assert kept_starts(cluster) == {}
    assert started(schedule(cluster)) == {"long"}


def test_a_job_that_can_never_start_is_passed_over() -> None:
    doomed = a_job("doomed").gpus(9).submitted(0)
    assert kept_starts(busy().jobs(doomed).snapshot()) == {"head": 100}


def test_a_job_its_own_queue_holds_back_is_passed_over() -> None:
    limited = (
        busy()
        .queue("small", limit=1)
        .jobs(
            a_job("holds").team("small").gpus(1).on("node-1", 7).lasts(30),
            a_job("limited").team("small").gpus(1).submitted(0),
        )
    )
    assert kept_starts(limited.snapshot()) == {"head": 100}


def test_an_estimate_does_where_there_is_no_limit() -> None:
    runs = a_job("runs").gpus(6).on("node-1", *range(6)).lasts(estimate_ms=70)
    assert kept_starts(a_cluster().nodes(1).jobs(runs, a_job("head").gpus(8)).snapshot()) == {"head": 70}


def test_an_overrun_estimate_moves_away_ever_faster() -> None:
    job = a_job("runs").gpus(1).on("node-1", 0).lasts(estimate_ms=100 * SECOND).job()
    assert end_ms(job, 99 * SECOND) == 100 * SECOND
    assert end_ms(job, 100 * SECOND) == 110 * SECOND
    assert end_ms(job, 130 * SECOND) == 160 * SECOND
    assert end_ms(replace(job, estimate_ms=None), 0) == NEVER


def test_conservative_keeps_a_start_for_everyone_in_turn() -> None:
    """The second starts when the first is done; a third that is short enough goes before both."""
    second = a_job("second").gpus(5).lasts(40).submitted(2)
    third = a_job("third").gpus(2).lasts(100).submitted(3)
    cluster = busy().jobs(second, third).snapshot()
    assert kept_starts(cluster, CONSERVATIVE) == {"head": 100, "second": 150}
    assert started(schedule(cluster, CONSERVATIVE)) == {"third"}


def test_conservative_keeps_no_more_starts_than_it_may() -> None:
    few = replace(DEFAULT, reservation=Reservation(Backfill.CONSERVATIVE, max_reservations=2))
    jobs = [a_job(f"j{n}").gpus(8 - n).lasts(10).submitted(2 + n) for n in range(4)]
    assert len(kept_starts(busy().jobs(*jobs).snapshot(), few)) == 2


def test_conservative_fills_a_gap_between_two_starts_only_with_what_fits_it() -> None:
    """GPUs 6 and 7 are free until the head starts at 100, and again from 150 on."""
    second = a_job("second").gpus(8).lasts(40).submitted(2)
    long = a_job("long").gpus(2).lasts(120).submitted(3)
    cluster = busy().jobs(second, long).snapshot()
    assert kept_starts(cluster, CONSERVATIVE) == {"head": 100, "second": 150, "long": 190}
    assert started(schedule(cluster, CONSERVATIVE)) == set()


def test_off_keeps_nothing() -> None:
    cluster = busy().jobs(a_job("long").gpus(2).submitted(2)).snapshot()
    assert kept_starts(cluster, OFF) == {}
    assert started(schedule(cluster, OFF)) == {"long"}


def test_room_under_a_limit_is_kept_too() -> None:
    """Seven GPUs are free beside what is kept, but with all of them the team could not also hold the head's eight."""
    runs = a_job("runs").team("vision").gpus(6).on("node-1", *range(6)).lasts(100)
    head = a_job("head").team("vision").gpus(8).submitted(1)
    small = [a_job(f"small{n}").team("vision").gpus(1).submitted(2 + n) for n in range(7)]
    base = a_cluster().nodes(1).having(a_node("other").gpus(7)).queue("vision", limit=14)
    cluster = base.jobs(runs, head, *small).snapshot()
    assert kept_starts(cluster) == {"head": 100}
    plan = schedule(cluster)
    assert started(plan) == {f"small{n}" for n in range(6)}
    assert plan.reasons_for("small6") == (Reason(Token.RESERVED, beneficiary="head"),)


# ---------------------------------------------------------------------------------------------------- the same plan


@thorough
@given(clusters())
def test_without_any_known_run_time_the_plan_is_as_without_reservation(cluster: Snapshot) -> None:
    assert schedule(cluster, OFF) == schedule(cluster, EASY) == schedule(cluster, CONSERVATIVE)


@st.composite
def timed_clusters(draw: st.DrawFn) -> Snapshot:
    """Any legal cluster, most of its jobs with limits or estimates."""
    cluster = draw(clusters())
    lengths = some(None, None, 1, 30, 60, 90)
    jobs = tuple(replace(job, run_limit_ms=_ms(draw(lengths)), estimate_ms=_ms(draw(lengths))) for job in cluster.jobs)
    return replace(cluster, jobs=jobs, now_ms=60 * SECOND)


def _ms(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * SECOND


POLICIES: Final = st.sampled_from([EASY, CONSERVATIVE, ALLOCATE])


@thorough
@given(timed_clusters(), POLICIES)
def test_plans_beside_kept_starts_hold_and_overbook_nothing(cluster: Snapshot, policy: Policy) -> None:
    plan = schedule(cluster, policy)
    replay(plan, cluster)
    assert [verdict.why for verdict in verify(plan, cluster) if not verdict.holds] == []
    event(f"kept: {min(len(kept_starts(cluster, policy)), 3)}")


@thorough
@given(timed_clusters(), POLICIES)
def test_planning_beside_kept_starts_changes_nothing_and_says_the_same_again(cluster: Snapshot, policy: Policy) -> None:
    ledger = Ledger.of(cluster)
    facts = ledger.facts()
    first = plan_on(ledger, policy)
    assert ledger.facts() == facts
    assert plan_on(ledger, policy) == first
    shuffled = replace(cluster, jobs=cluster.jobs[::-1], nodes=cluster.nodes[::-1])
    assert schedule(shuffled, policy) == first


@given(timed_clusters(), POLICIES)
def test_everyone_who_waits_beside_kept_starts_is_listed_once_with_a_reason(cluster: Snapshot, policy: Policy) -> None:
    plan = schedule(cluster, policy)
    # A job that was promised a part of its places may be listed for those, and again for what it still lacks.
    lacking = [waiting for waiting in plan.waiting if waiting.reasons[0].token is not Token.PLACE_FREEING]
    listed = [job for waiting in lacking for job in waiting.jobs]
    assert len(listed) == len(set(listed))
    assert all(waiting.reasons for waiting in plan.waiting)


def test_a_followed_ledger_keeps_the_same_starts() -> None:
    cluster = busy().snapshot()
    ledger = Ledger.of(cluster)
    ledger.apply((TimePassed(10),))
    assert plan_on(ledger) == schedule(replace(cluster, now_ms=10))
    assert ledger.timed.keys() == {"runs", "head"}


# ------------------------------------------------------------------------------------------------------ virtual time


@st.composite
def streams(draw: st.DrawFn) -> tuple[Snapshot, list[Job]]:
    """An empty cluster, and jobs of one queue that come one after the other; nearly all of them with a limit."""
    # Cores add up over tasks that GPUs keep apart, so they are short as often as GPUs are.
    sizes = [(draw(st.integers(1, 4)), draw(st.integers(2, 6))) for _ in range(draw(st.integers(1, 3)))]
    nodes = [a_node(f"n{n}").gpus(gpus).cpu(cores) for n, (gpus, cores) in enumerate(sizes)]
    jobs = []
    at_ms = 0
    for number in range(draw(st.integers(2, 14))):
        at_ms += draw(some(0, 0, 1, 3))
        limit = draw(st.integers(1, 9)) if draw(some(*[True] * 9, False)) else None
        builder = a_job(f"j{number:02}").gpus(draw(some(0, 1, 1, 2, 3))).cpu(draw(some(1, 1, 2, 3)))
        jobs.append(builder.tasks(draw(some(1, 1, 2, 3))).lasts(limit).submitted(at_ms).job())
    return a_cluster().having(*nodes).queue("team").snapshot(), jobs


def never_delayed(cluster: Snapshot, arrivals: list[Job], policy: Policy) -> int:
    """Run it all: the first start any cycle kept must come, not later than it was kept for, and nothing a cycle starts
    may be in the way of any start that cycle kept. Says how many starts were kept at once."""
    simulation = Simulation(cluster, arrivals, policy)
    first: dict[str, int] = {}
    most = 0
    for seen, _ in simulation.run(until_ms=10_000):
        kept = kept_in_turn(seen, policy)
        most = max(most, len(kept))
        assert in_the_way(simulation.snapshot, [one for one in kept if one.job not in simulation.started]) == []
        for job, start_ms, *_ in kept[:1]:
            assert start_ms <= first.get(job, start_ms), f"{job} was kept {first[job]}, then {start_ms}"
            first[job] = start_ms
    for job, start_ms in first.items():
        assert simulation.started.get(job, NEVER) <= start_ms
    return most


@thorough
@given(streams())
def test_the_start_of_the_head_is_never_delayed_by_those_who_fill_in(drawn: tuple[Snapshot, list[Job]]) -> None:
    event(f"starts kept at once: {never_delayed(*drawn, EASY)}")


@thorough
@given(streams())
def test_the_first_start_is_never_delayed_where_everyone_has_one(drawn: tuple[Snapshot, list[Job]]) -> None:
    event(f"starts kept at once: {min(never_delayed(*drawn, CONSERVATIVE), 4)}")


def test_the_tasks_of_a_gang_are_kept_beside_a_later_start_together() -> None:
    """Each of two tasks would fit beside the start kept for another job; both would not."""
    nodes = [a_node("n0").gpus(1).cpu(5), a_node("n1").gpus(3).cpu(2)]
    timed = [(3, 2, 0, 1, 5), (6, 1, 3, 1, 5), (6, 1, 0, 1, 3), (6, 1, 1, 1, 5), (7, 3, 2, 2, 4), (8, 1, 0, 3, 5)]
    timed += [(8, 1, 2, 1, 6), (8, 1, 1, 1, 6), (8, 1, 1, 2, 2), (8, 2, 0, 2, 6)]
    never_delayed(a_cluster().having(*nodes).queue("team").snapshot(), arrivals(timed), CONSERVATIVE)


def test_whoever_waits_for_a_place_to_be_freed_is_not_counted_on_to_end_in_time() -> None:
    """Moves make room for a short job, which starts only when they are done: too late to end by the kept start."""
    nodes = [a_node("n0").gpus(2).cpu(5), a_node("n1").gpus(1).cpu(6), a_node("n2").gpus(4).cpu(3)]
    timed = [(0, 2, 0, 1, 3), (0, 1, 2, 2, 2), (0, 2, 2, 2, 1), (0, 2, 1, 1, 4), (1, 1, 3, 1, 9), (1, 1, 2, 1, 2)]
    timed += [(1, 1, 1, 3, 3), (1, 1, 0, 3, 3), (2, 3, 2, 1, 2)]
    never_delayed(a_cluster().having(*nodes).queue("team").snapshot(), arrivals(timed), CONSERVATIVE)


def arrivals(rows: list[tuple[int, int, int, int, int]]) -> list[Job]:
    """Jobs by when they come, how many tasks they have, GPUs and cores of each, and how long they run."""
    return [
        a_job(f"j{number:02}").gpus(gpus).cpu(cores).tasks(tasks).lasts(limit).submitted(at_ms).job()
        for number, (at_ms, tasks, gpus, cores, limit) in enumerate(rows)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("policy", [EASY, CONSERVATIVE], ids=["easy", "conservative"])
def test_a_stream_of_small_jobs_never_starves_a_gang(policy: Policy) -> None:
    """Small jobs keep coming and would for ever take every GPU that gets free. The gang starts all the same."""
    small = [a_job(f"small{n}").gpus(1).lasts(7 + 3 * n).job() for n in range(4)]
    gang = a_job("gang").gpus(4).tasks(2).lasts(20).submitted(5).job()
    cluster = a_cluster().nodes(2, gpus=4).queue("team").snapshot()
    arrivals = [gang, *stream(small, every_ms=2, count=100)]
    simulation = Simulation(cluster, arrivals, policy)
    list(simulation.run(until_ms=200))
    # Twelve small jobs are older than the gang and go before it, on eight GPUs: two rounds of the longest.
    assert simulation.started["gang"] <= 2 * 16
    without = Simulation(cluster, arrivals, OFF)
    list(without.run(until_ms=200))
    assert "gang" not in without.started


def test_a_stream_of_another_team_never_starves_a_gang_within_its_share() -> None:
    small = [a_job(f"small{n}").team("many").gpus(1).lasts(9 + n).job() for n in range(5)]
    gang = a_job("gang").team("few").gpus(8).non_preemptible().lasts(20).submitted(5).job()
    cluster = a_cluster().nodes(1).queue("many", quota=0).queue("few", quota=8).snapshot()
    simulation = Simulation(cluster, [gang, *stream(small, every_ms=2, count=60)], ALLOCATE)
    list(simulation.run(until_ms=150))
    assert simulation.started["gang"] <= 5 + 13


@pytest.mark.parametrize("policy", [EASY, CONSERVATIVE], ids=["easy", "conservative"])
def test_a_doomed_job_never_stops_others(policy: Policy) -> None:
    """One that no cluster could hold, and one that waits for what never ends, at the head of the queue."""
    runs = a_job("runs").gpus(1).on("node-1", 0).non_preemptible()
    too_large = a_job("too-large").gpus(9).lasts(5).priority(90)
    never = a_job("never").gpus(8).lasts(5).priority(90)
    cluster = a_cluster().nodes(1).jobs(runs, too_large, never).snapshot()
    small = [a_job(f"small{n}").gpus(1 + n % 2).lasts(4 + n).job() for n in range(4)]
    simulation = Simulation(cluster, stream(small, every_ms=4, count=20), policy)
    list(simulation.run(until_ms=500))
    assert len(simulation.ended) == 80
    assert not {"too-large", "never"} & simulation.started.keys()
