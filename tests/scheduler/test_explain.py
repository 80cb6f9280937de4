"""Explanations agree with the plan: what blocks, what would help, and that nothing is changed by asking."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.errors import InputError
from gpuyard.model.explanation import Cost, Edit, Effect, Explanation, Field, Standing, WayKind, WayOut
from gpuyard.model.jobs import Job, TaskState
from gpuyard.model.nodes import OWN_LABEL
from gpuyard.model.plan import Bind, Promise
from gpuyard.model.quantities import GPU
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.snapshot import QueuesSet, Snapshot
from gpuyard.policies.policy import DEFAULT, Policy, Step
from gpuyard.scheduler.cycle import plan as plan_on
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.edits import changes_of
from gpuyard.scheduler.explain import JobStand, explain, explain_on, rank_of, stands_on
from gpuyard.scheduler.ledger import Ledger
from tests.builders import ClusterBuilder, a_cluster, a_job, a_node
from tests.replay import follow
from tests.scheduler.test_properties import thorough
from tests.strategies import clusters, histories, queue_shares

FREE_PLACES: Final = replace(DEFAULT, steps=(Step.ALLOCATE, Step.STALE_GANGS))
POLICIES: Final = (FREE_PLACES, DEFAULT)


def applied(snapshot: Snapshot, way: WayOut) -> Snapshot:
    """The snapshot after the edits of a way out."""
    jobs = {job.id: job for job in snapshot.jobs}
    for change in changes_of(way.edits, jobs, snapshot.queues):
        snapshot = follow(snapshot, change)
    return snapshot


def gets_a_place(snapshot: Snapshot, job: str, policy: Policy) -> bool:
    return any(isinstance(a, Bind | Promise) and a.job == job for a in schedule(snapshot, policy).actions)


# ---------------------------------------------------------------------------------------------------- properties


def a_case(data: st.DataObject) -> tuple[Snapshot, str]:
    """A cluster and one of its jobs."""
    cluster = data.draw(clusters())
    return cluster, data.draw(st.sampled_from(cluster.jobs)).id


@pytest.mark.parametrize("policy", POLICIES, ids=["free-places", "all-steps"])
@thorough
@given(data=st.data())
def test_every_way_out_does_start_the_job(policy: Policy, data: st.DataObject) -> None:
    cluster, job = a_case(data)
    for way in explain(cluster, job, policy).ways_out:
        event(way.kind.value)
        assert gets_a_place(applied(cluster, way), job, policy), f"{way.kind} does not help {job}"


@pytest.mark.parametrize("policy", POLICIES, ids=["free-places", "all-steps"])
@thorough
@given(data=st.data())
def test_the_blockers_include_what_the_plan_says(policy: Policy, data: st.DataObject) -> None:
    cluster, job = a_case(data)
    explanation = explain(cluster, job, policy)
    assert set(schedule(cluster, policy).reasons_for(job)) <= set(explanation.blockers)
    assert len(set(explanation.blockers)) == len(explanation.blockers)


@pytest.mark.parametrize("policy", POLICIES, ids=["free-places", "all-steps"])
@given(data=st.data())
def test_explaining_leaves_the_ledger_as_it_was(policy: Policy, data: st.DataObject) -> None:
    cluster, job = a_case(data)
    ledger = Ledger.of(cluster)
    facts, plan = ledger.facts(), plan_on(ledger, policy)
    explain_on(ledger, job, policy)
    assert ledger.facts() == facts
    assert plan_on(ledger, policy) == plan


@pytest.mark.parametrize("policy", POLICIES, ids=["free-places", "all-steps"])
@given(data=st.data())
def test_only_jobs_that_wait_are_given_ways_out_and_they_alone_have_no_place(
    policy: Policy, data: st.DataObject
) -> None:
    cluster, job = a_case(data)
    explanation = explain(cluster, job, policy)
    waits = explanation.standing in (Standing.WAITING, Standing.NEVER)
    assert waits or not explanation.ways_out
    if waits:
        assert explanation.blockers
        assert not explanation.gets


@pytest.mark.parametrize("policy", POLICIES, ids=["free-places", "all-steps"])
@given(cluster=clusters())
def test_the_short_answers_about_many_are_those_of_the_long_ones(policy: Policy, cluster: Snapshot) -> None:
    ledger = Ledger.of(cluster)
    facts = ledger.facts()
    found = stands_on(ledger, list(ledger.jobs), policy)
    for job in ledger.jobs:
        long = explain(cluster, job, policy)
        assert found[job] == JobStand(long.standing, long.blockers)
    assert ledger.facts() == facts


@given(clusters())
def test_a_rank_counts_those_ahead(cluster: Snapshot) -> None:
    ledger = Ledger.of(cluster)
    ranks = [rank for job in cluster.jobs if (rank := rank_of(ledger, job.id))]
    for queue in {rank.queue for rank in ranks}:
        mine = [rank for rank in ranks if rank.queue == queue]
        assert sorted(rank.position for rank in mine) == list(range(1, len(mine) + 1))
        assert all(rank.waiting == len(mine) for rank in mine)
        assert all(len(rank.ahead) == min(rank.position - 1, 5) for rank in mine)


@given(st.data())
def test_a_forked_ledger_changes_apart_and_follows_as_the_first_one_would(data: st.DataObject) -> None:
    before = data.draw(clusters())
    changes, after = data.draw(histories(before))
    ledger = Ledger.of(before)
    facts, fork = ledger.facts(), ledger.fork()
    assert fork.facts() == facts
    fork.apply(changes)
    assert ledger.facts() == facts
    assert fork.facts() == Ledger.of(after).facts()
    assert plan_on(fork, FREE_PLACES) == schedule(after, FREE_PLACES)
    assert plan_on(ledger, FREE_PLACES) == schedule(before, FREE_PLACES)


@given(st.data())
def test_new_bounds_on_the_same_queues_give_the_books_of_a_fresh_ledger(data: st.DataObject) -> None:
    before = data.draw(clusters())
    queues = tuple(replace(queue, shares=data.draw(queue_shares())) for queue in before.queues)
    ledger, after = Ledger.of(before), replace(before, queues=queues)
    ledger.apply((QueuesSet(queues),))
    assert ledger.facts() == Ledger.of(after).facts()
    assert plan_on(ledger, FREE_PLACES) == schedule(after, FREE_PLACES)


# -------------------------------------------------------------------------------------------------- what blocks


def tokens(explanation: Explanation) -> list[Token]:
    return [reason.token for reason in explanation.blockers]


def test_all_blockers_are_listed_with_their_numbers() -> None:
    """The plan stops at the limit of the queue; that there is no room either is told here."""
    cluster = (
        a_cluster()
        .nodes(2, gpus=4)
        .queue("vision", limit=4)
        .jobs(a_job("old").team("vision").gpus(3).on("node-1", 0, 1, 2))
        .jobs(a_job("other").team("speech").gpus(3).on("node-2", 0, 1, 2))
        .jobs(a_job("big").team("vision").gpus(4))
        .snapshot()
    )
    assert [reason.token for reason in schedule(cluster).reasons_for("big")] == [Token.OVER_LIMIT]
    over, short, split = explain(cluster, "big").blockers
    assert (over.token, over.have, over.need, over.subject) == (Token.OVER_LIMIT, 1000, 4000, "vision")
    assert (short.token, short.have, short.need) == (Token.NOT_ENOUGH, 2000, 4000)
    assert (split.token, split.have, split.need) == (Token.FRAGMENTED, 1000, 4000)


def test_what_is_too_large_is_not_also_called_too_little() -> None:
    cluster = a_cluster().nodes(1, gpus=4).jobs(a_job("big").gpus(8)).snapshot()
    explanation = explain(cluster, "big")
    assert explanation.standing is Standing.NEVER
    assert tokens(explanation) == [Token.TOO_LARGE]


def test_labels_of_a_worlds_own_are_named_as_people_know_them_and_many_values_are_counted() -> None:
    names = [f"n{number}" for number in range(8)]
    cluster = a_cluster().nodes(1, gpus=4).jobs(a_job("pinned").gpus(1).where(f"{OWN_LABEL}name", *names)).snapshot()
    (blocker,) = explain(cluster, "pinned").blockers
    assert (blocker.token, blocker.subject) == (Token.NO_MATCHING_NODE, "name in n0|n1|n2|n3|n4|3 more")


def test_each_role_may_have_its_own_blocker() -> None:
    job = a_job("pair").gpus(8).role("large", 1).gpus(1).on_models("B200").role("new", 1)
    explanation = explain(a_cluster().nodes(1, gpus=4).jobs(job).snapshot(), "pair")
    assert set(tokens(explanation)) == {Token.TOO_LARGE, Token.NO_MATCHING_NODE}


# ------------------------------------------------------------------------------------------------------ standing


def full(*jobs: object) -> ClusterBuilder:
    return a_cluster().nodes(1, gpus=2).jobs(a_job("old").gpus(2).on("node-1", 0, 1))


@pytest.mark.parametrize(
    ("cluster", "standing"),
    [
        (a_cluster().nodes(1).jobs(a_job("j")), Standing.STARTING),
        (a_cluster().nodes(1).jobs(a_job("j").on("node-1", 0)), Standing.RUNNING),
        (a_cluster().nodes(1).jobs(a_job("j").freeing("node-1", 0)), Standing.ENDING),
        (a_cluster().nodes(1, gpus=1).jobs(a_job("o").freeing("node-1", 0), a_job("j")), Standing.PROMISED),
        (full().jobs(a_job("j")), Standing.WAITING),
        (full().jobs(a_job("j").gpus(3)), Standing.NEVER),
    ],
    ids=lambda value: value.value if isinstance(value, Standing) else "",
)
def test_a_job_stands_where_the_next_plan_leaves_it(cluster: ClusterBuilder, standing: Standing) -> None:
    assert explain(cluster.snapshot(), "j").standing is standing


def in_state(state: TaskState) -> Snapshot:
    snapshot = a_cluster().nodes(1).jobs(a_job("j")).snapshot()
    (job,) = snapshot.jobs
    return replace(snapshot, jobs=(replace(job, tasks=tuple(replace(task, state=state) for task in job.tasks)),))


@pytest.mark.parametrize(
    ("state", "standing"),
    [
        (TaskState.SUCCEEDED, Standing.FINISHED),
        (TaskState.FAILED, Standing.FINISHED),
        (TaskState.GATED, Standing.GATED),
    ],
)
def test_a_job_that_wants_nothing_says_so(state: TaskState, standing: Standing) -> None:
    explanation = explain(in_state(state), "j")
    assert (explanation.standing, explanation.ways_out, explanation.rank) == (standing, (), None)


def test_a_running_job_says_where_since_when_and_by_which_rule() -> None:
    cluster = a_cluster().nodes(2).jobs(a_job("j").gpus(2).on("node-2", 3, 4)).snapshot()
    job = cluster.jobs[0]
    started = replace(job, tasks=tuple(replace(task, started_at_ms=77) for task in job.tasks))
    explanation = explain(replace(cluster, jobs=(started,)), "j")
    (stay,) = explanation.stays
    assert (stay.node, stay.devices, stay.since_ms) == ("node-2", (3, 4), 77)
    assert explanation.why == (Reason(Token.PLACED, subject="node-2"),)
    assert explanation.placement == "bin-pack"


def test_a_stale_gang_is_told_that_it_stops_and_why() -> None:
    gang = a_job("g").tasks(2).on("node-1", 0)
    job = gang.job({node.name: node for node in a_cluster().nodes(1).given_nodes})
    lost = replace(job.tasks[1], state=TaskState.FAILED)
    stale = replace(job, tasks=(job.tasks[0], lost), stale_since_ms=0)
    cluster = replace(a_cluster().nodes(1).jobs(gang).at(10**6).snapshot(), jobs=(stale,))
    explanation = explain(cluster, "g")
    assert explanation.standing is Standing.EVICTED
    assert [reason.token for reason in explanation.why] == [Token.STALE]


def test_an_earlier_eviction_is_told() -> None:
    cluster = a_cluster().nodes(1).jobs(a_job("j")).snapshot()
    reason = Reason(Token.RECLAIMED, subject="team", beneficiary="late")
    evicted = replace(cluster.jobs[0], last_evicted_at_ms=5, last_eviction=reason)
    explanation = explain(replace(cluster, jobs=(evicted,)), "j")
    assert (explanation.last_evicted_at_ms, explanation.last_eviction) == (5, reason)


def test_a_growing_job_says_what_keeps_it_from_its_next_task() -> None:
    cluster = a_cluster().nodes(1, gpus=2).jobs(a_job("j").tasks(3, gang=1)).snapshot()
    explanation = explain(cluster, "j")
    assert explanation.standing is Standing.STARTING
    assert tokens(explanation) == [Token.NOT_ENOUGH]
    assert sum(stay.tasks for stay in explanation.gets) == 2


def test_an_unknown_job_is_refused_by_name() -> None:
    with pytest.raises(InputError, match='there is no job "ghost"'):
        explain(a_cluster().nodes(1).snapshot(), "ghost")


# ------------------------------------------------------------------------------------------------------ ways out


def ways(cluster: ClusterBuilder, job: str) -> dict[WayKind, WayOut]:
    return {way.kind: way for way in explain(cluster.snapshot(), job).ways_out}


def test_a_smaller_shape_is_as_large_as_it_can_be() -> None:
    cluster = a_cluster().nodes(1, gpus=8).jobs(a_job("old").gpus(3).on("node-1", 0, 1, 2), a_job("j").gpus(8))
    way = ways(cluster, "j")[WayKind.SMALLER]
    assert way.edits == (Edit(Field.ASKS, "j", resource=GPU, before=8000, after=5000),)


def test_everything_that_is_short_is_lowered_together() -> None:
    node = a_node("n").gpus(4).cpu(8)
    way = ways(a_cluster().having(node).jobs(a_job("j").gpus(6).cpu(20)), "j")[WayKind.SMALLER]
    assert {edit.resource: edit.after for edit in way.edits} == {"gpu": 4000, "cpu": 8000}


def test_a_gang_may_start_with_fewer_tasks() -> None:
    rigid = ways(a_cluster().nodes(1, gpus=4).jobs(a_job("j").tasks(6)), "j")[WayKind.FEWER_TASKS]
    assert rigid.edits == (Edit(Field.TASKS, "j", resource="tasks", before=6, after=4),)
    elastic = ways(a_cluster().nodes(1, gpus=4).jobs(a_job("j").tasks(9, gang=6)), "j")[WayKind.FEWER_TASKS]
    assert elastic.edits == (Edit(Field.GANG, "j", resource="tasks", before=6, after=4),)


def test_a_gang_that_lacks_tasks_may_start_with_those_there() -> None:
    way = ways(a_cluster().nodes(1).jobs(a_job("j").tasks(2, gang=4)), "j")[WayKind.FEWER_TASKS]
    assert way.edits == (Edit(Field.GANG, "j", resource="tasks", before=4, after=2),)


def test_another_model_will_do() -> None:
    cluster = a_cluster().having(a_node("a").gpus(2, "A100"), a_node("h").gpus(1, "H100"))
    way = ways(cluster.jobs(a_job("j").gpus(2).on_models("H100")), "j")[WayKind.OTHER_MODEL]
    assert way.edits == (Edit(Field.MODEL, "j", models=("A100",)),)


def over_quota() -> ClusterBuilder:
    job = a_job("j").team("leaf").gpus(3).non_preemptible()
    return a_cluster().nodes(1).queue("top", quota=2).queue("leaf", "top", quota=2, limit=2).jobs(job)


def test_a_job_that_may_not_borrow_may_be_preemptible_or_owed_more() -> None:
    found = ways(a_cluster().nodes(1).queue("q", quota=2).jobs(a_job("j").team("q").gpus(3).non_preemptible()), "j")
    assert found[WayKind.PREEMPTIBLE].edits == (Edit(Field.PREEMPTIBLE, "j", before=0, after=1),)
    assert found[WayKind.RAISE_QUOTA].edits == (Edit(Field.QUOTA, "q", resource=GPU, before=2000, after=3000),)


def test_a_raised_quota_lifts_all_that_stands_in_its_way() -> None:
    edits = ways(over_quota(), "j")[WayKind.RAISE_QUOTA].edits
    assert {(edit.field, edit.subject, edit.after) for edit in edits} == {
        (Field.QUOTA, "leaf", 3000),
        (Field.QUOTA, "top", 3000),
        (Field.LIMIT, "leaf", 3000),
    }


def test_a_raised_limit_is_enough_for_those_who_go_before() -> None:
    jobs = [a_job(f"j{at}").team("q").submitted(at) for at in range(4)]
    cluster = a_cluster().nodes(1).queue("q", limit=1).jobs(*jobs)
    assert [ways(cluster, f"j{at}")[WayKind.RAISE_LIMIT].edits[0].after for at in (1, 2, 3)] == [2000, 3000, 4000]


def test_a_way_out_says_whom_it_costs() -> None:
    """Its turn comes first, but it fits only if it is smaller; then nothing is left for the other."""
    cluster = (
        a_cluster().nodes(1, gpus=4).jobs(a_job("first").gpus(5).submitted(1), a_job("second").gpus(4).submitted(2))
    )
    assert ways(cluster, "first")[WayKind.SMALLER].costs == (Cost("second", Effect.WAITS, 1),)


def test_waiting_names_who_has_to_end() -> None:
    cluster = full().jobs(a_job("j").gpus(2))
    way = ways(cluster, "j")[WayKind.WAIT]
    assert way.edits == (Edit(Field.ENDS, "old"),)


def test_ways_that_cost_nobody_come_first() -> None:
    explanation = explain(over_quota().snapshot(), "j")
    prices = [len(way.costs) for way in explanation.ways_out]
    assert prices == sorted(prices)


def test_the_queues_are_told_from_the_leaf_up() -> None:
    explanation = explain(over_quota().snapshot(), "j")
    assert [(queue.name, queue.owed_milli, queue.limit_milli) for queue in explanation.queues] == [
        ("leaf", 2000, 2000),
        ("top", 2000, None),
    ]


def test_a_job_of_a_missing_queue_has_no_rank_and_no_way_out() -> None:
    cluster = a_cluster().nodes(1).queue("q").snapshot()
    lost: Job = a_job("j").team("nowhere").job()
    explanation = explain(replace(cluster, jobs=(lost,)), "j")
    assert (explanation.standing, explanation.rank, explanation.ways_out) == (Standing.NEVER, None, ())
    assert tokens(explanation) == [Token.QUEUE_MISSING]


# ---------------------------------------------------------------------------------------------------- giving way


def borrowed() -> ClusterBuilder:
    """Vision holds all four GPUs and is owed two; speech is owed the others and asks for them."""
    old = [a_job(f"old-{at}").team("vision").gpus(2).on("node-1", 2 * at, 2 * at + 1).submitted(at) for at in (0, 1)]
    queues = a_cluster().nodes(1, gpus=4).queue("vision", quota=2).queue("speech", quota=2)
    return queues.jobs(*old, a_job("late").team("speech").gpus(2).submitted(9)).at(10**6)


def test_a_job_that_must_give_way_says_for_whom_and_by_which_rule() -> None:
    cluster = borrowed().snapshot()
    evicted = [one for one in cluster.jobs if explain(cluster, one.id).standing is Standing.EVICTED]
    (explanation,) = [explain(cluster, one.id) for one in evicted]
    assert [(reason.token, reason.beneficiary) for reason in explanation.why] == [(Token.RECLAIMED, "late")]
    assert explanation.stays
    assert explanation.ways_out == ()


def test_a_job_that_makes_others_give_way_says_whom_it_costs() -> None:
    explanation = explain(borrowed().snapshot(), "late")
    assert explanation.standing is Standing.PROMISED
    assert [(cost.effect, cost.tasks) for cost in explanation.costs] == [(Effect.EVICTED, 1)]
    assert tokens(explanation) == [Token.PLACE_FREEING]


def test_a_higher_quota_lets_a_job_take_back_and_says_from_whom() -> None:
    old = a_job("old").team("vision").gpus(4).on("node-1", 0, 1, 2, 3)
    queues = a_cluster().nodes(1, gpus=4).queue("vision", quota=0).queue("speech", quota=0)
    cluster = queues.jobs(old, a_job("late").team("speech").gpus(4).submitted(9)).at(10**6)
    explanation = explain(cluster.snapshot(), "late")
    assert explanation.standing is Standing.WAITING
    way = next(way for way in explanation.ways_out if way.kind is WayKind.RAISE_QUOTA)
    assert way.edits == (Edit(Field.QUOTA, "speech", resource=GPU, before=0, after=4000),)
    assert way.costs == (Cost("old", Effect.EVICTED, 1),)
    assert way.promised


def test_an_elastic_job_that_gives_its_surplus_does_not_stop() -> None:
    big = a_job("big").team("rich").tasks(4, gang=2).on("node-1", 0).on("node-1", 1).on("node-1", 2).on("node-1", 3)
    cluster = a_cluster().nodes(1, gpus=4).queue("rich", quota=2).queue("poor", quota=2)
    found = explain(cluster.jobs(big, a_job("late").team("poor")).snapshot(), "late")
    assert found.costs == (Cost("big", Effect.EVICTED, 1, partly=True),)
