"""A job whose queue is owed GPUs hears how many of them others would have to give back, where that is not enough."""

from __future__ import annotations

from msgspec.structs import replace

from gpuyard.model.reasons import Reason, Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.model.text import reason_text
from gpuyard.policies.policy import DEFAULT, Policy, Step
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.explain import explain
from tests.builders import ClusterBuilder, JobBuilder, a_cluster, a_job, a_node

NODES = 3
GPUS = 4


def lent(owed: int, asks: JobBuilder) -> ClusterBuilder:
    """Every GPU is held by single-GPU jobs of a queue that is owed so many; a job of another one, owed all, asks."""
    singles = [
        a_job(f"s-{node}-{gpu}").gpus(1).team("ads").on(f"node-{node}", gpu)
        for node in range(1, NODES + 1)
        for gpu in range(GPUS)
    ]
    cluster = a_cluster().nodes(NODES, gpus=GPUS)
    return cluster.queue("ads", quota=owed).queue("speech", quota=NODES * GPUS).jobs(*singles, asks)


def lack(snapshot: Snapshot, policy: Policy = DEFAULT) -> Reason:
    return next(r for r in schedule(snapshot, policy).reasons_for("gang") if r.token is Token.NOT_ENOUGH)


def gang() -> JobBuilder:
    """Two whole nodes."""
    return a_job("gang").gpus(GPUS).tasks(2).team("speech")


def test_one_gpu_too_few_can_be_taken_back_and_the_plan_says_how_many_can() -> None:
    snapshot = lent(NODES * GPUS - 7, gang()).snapshot()
    assert (lack(snapshot).have, lack(snapshot).reclaimable, lack(snapshot).need) == (0, 7_000, 8_000)
    assert "7 can be had (0 free, 7 lent to others)" in reason_text(lack(snapshot))


def test_the_explanation_says_what_the_plan_says_and_nothing_beside_it() -> None:
    snapshot = lent(NODES * GPUS - 7, gang()).snapshot()
    assert explain(snapshot, "gang").blockers == (lack(snapshot),)


def test_with_one_gpu_more_it_is_taken_back() -> None:
    plan = schedule(lent(NODES * GPUS - 8, gang()).snapshot(), DEFAULT)
    assert plan.reasons_for("gang") == ()


def test_a_queue_that_lends_nothing_gives_nothing_back() -> None:
    assert lack(lent(NODES * GPUS, gang()).snapshot()).reclaimable == 0


def test_nothing_is_taken_back_where_the_policy_has_no_such_step() -> None:
    steps = tuple(step for step in DEFAULT.steps if step is not Step.RECLAIM)
    assert lack(lent(NODES * GPUS - 7, gang()).snapshot(), replace(DEFAULT, steps=steps)).reclaimable == 0


def test_jobs_that_may_not_be_preempted_give_nothing_back() -> None:
    snapshot = lent(NODES * GPUS - 7, gang()).snapshot()
    firm = tuple(job if job.id == "gang" else replace(job, preemptible=False) for job in snapshot.jobs)
    assert lack(replace(snapshot, jobs=firm)).reclaimable == 0


def test_a_job_that_waits_out_its_delay_takes_nothing_back_yet() -> None:
    snapshot = lent(NODES * GPUS - 7, gang()).snapshot()
    patient = tuple(replace(job, preemption_delay_ms=60_000) if job.id == "gang" else job for job in snapshot.jobs)
    assert lack(replace(snapshot, jobs=patient)).reclaimable == 0


def test_only_what_lies_where_the_job_may_run_is_counted() -> None:
    """The first to give way are on node-9, where the gang may not go: others go in their stead."""
    far = a_node("node-9").gpus(2)
    others = [a_job(f"far-{gpu}").gpus(1).team("ads").priority(1).on("node-9", gpu) for gpu in range(2)]
    picky = gang().where("zone", "near")
    cluster = lent(NODES * GPUS - 5, picky).having(far).jobs(*others)
    snapshot = cluster.snapshot()
    near = tuple(replace(node, labels={"zone": "near"}) if node.name != "node-9" else node for node in snapshot.nodes)
    assert lack(replace(snapshot, nodes=near)).reclaimable == 7_000


def test_where_enough_is_lent_but_no_set_of_it_makes_room_the_sentence_says_so() -> None:
    reason = Reason(Token.NOT_ENOUGH, "gpu", have=1_000, need=8_000, reclaimable=9_000)
    said = "needs 8 GPUs, 1 can be had; 9 that others have borrowed would not make room for all of it"
    assert reason_text(reason).startswith(said)
