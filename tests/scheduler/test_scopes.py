"""How far rules reach, and what becomes of those who carry them: the single cases."""

from __future__ import annotations

from msgspec.structs import replace

from gpuyard.model.explanation import WayKind
from gpuyard.model.jobs import NOBODY, Job, Neighbour, Request, SoftNeighbour, Spread, Task, TaskState
from gpuyard.model.plan import Bind, Evict, Promise
from gpuyard.model.queues import AffinityScope, Queue
from gpuyard.model.reasons import RULE, Token
from gpuyard.model.snapshot import JobSeen, Snapshot
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.explain import explain
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.scopes import Scopes, closed_scopes, reach_others
from gpuyard.scheduler.verify import verify
from tests.builders import ClusterBuilder, a_cluster, a_job

TREE = (
    Queue("research", affinity_scope=AffinityScope.SUBTREE),
    Queue("vision", "research"),
    Queue("speech", "research", affinity_scope=AffinityScope.QUEUE),
    Queue("ads", affinity_scope=AffinityScope.CLUSTER),
    Queue("web"),
)
APART = Neighbour((("app", "web"),), "hostname", apart=True)
TASK = Task("t", Request())


def two_teams() -> ClusterBuilder:
    return a_cluster().nodes(1).queue("red", quota=4).queue("blue", quota=4).scope(AffinityScope.CLUSTER)


def test_the_nearest_queue_that_says_a_scope_counts() -> None:
    scopes = Scopes(TREE)
    found = {queue: scopes.sight(Job("j", queue, ()), APART) for queue in ("vision", "speech", "ads", "web")}
    assert found == {"vision": "research", "speech": "speech", "ads": None, "web": "web"}


def test_all_kinds_of_rules_of_a_job_look_equally_far() -> None:
    scopes, job = Scopes(TREE), Job("j", "vision", ())
    rules = (APART, replace(APART, apart=False), Spread("zone", 1), SoftNeighbour(1, "zone", ()))
    assert {scopes.sight(job, rule) for rule in rules} == {"research"}


def test_a_queue_that_is_gone_has_its_own_scope_or_that_of_the_world() -> None:
    gone = Job("j", "gone", ())
    assert Scopes(TREE).sight(gone, APART) == "gone"
    assert Scopes(TREE, AffinityScope.CLUSTER).sight(gone, APART) is None


def test_what_is_nobodys_sees_all_and_is_seen_by_all() -> None:
    scopes = Scopes(TREE)
    assert scopes.sight(Job("j", NOBODY, ()), APART) is None
    assert scopes.is_within(NOBODY, "vision")


def test_a_job_that_cannot_give_way_keeps_away_its_own_queue_only() -> None:
    scopes, job = Scopes(TREE), Job("j", "ads", ())
    assert scopes.repelled(job, TASK, APART) is None
    for firm in (replace(job, preemptible=False), replace(job, protected=True)):
        assert scopes.repelled(firm, TASK, APART) == "ads"
        assert scopes.sight(firm, APART) is None
        assert scopes.repelled(firm, TASK, replace(APART, physical=True)) is None
    assert scopes.repelled(job, replace(TASK, state=TaskState.STUCK), APART) == "ads"


def test_scopes_can_be_closed() -> None:
    assert reach_others(TREE)
    assert not reach_others(closed_scopes(TREE))
    assert not reach_others((Queue("a"), Queue("b", affinity_scope=AffinityScope.QUEUE)))


def test_a_loop_of_queues_has_an_end() -> None:
    scopes = Scopes((Queue("a", "b"), Queue("b", "a")))
    assert scopes.sight(Job("j", "a", ()), APART) == "a"


def test_a_job_that_asks_for_nothing_is_planned_for_like_any_other() -> None:
    """Nothing of what is shared out is missing to it, so nobody has to give any back; it once ended the planner."""
    squatter = a_job("squatter").team("red").fraction("0.001").apart("hostname", app="web").on("node-1", 0)
    cluster = two_teams().jobs(squatter.non_preemptible(), a_job("idle").team("blue").gpus(0).labels(app="web"))
    borrowed = a_cluster().nodes(1).queue("red", quota=0).queue("blue", quota=0).scope(AffinityScope.CLUSTER)
    assert [type(action) for action in schedule(cluster.snapshot()).actions] == [Bind]
    waits = schedule(borrowed.jobs(squatter, a_job("idle").team("blue").gpus(0).labels(app="web")).snapshot())
    assert [type(action) for action in waits.actions] == [Evict, Promise]


def test_a_promise_to_a_carrier_is_taken_back() -> None:
    leaving = a_job("old").team("red").gpus(4).on("node-1", 0, 1, 2, 3, state=TaskState.FREEING)
    coming = a_job("squatter").team("red").gpus(4).apart("hostname", app="web")
    coming = coming.on("node-1", 0, 1, 2, 3, state=TaskState.PROMISED)
    snapshot = two_teams().jobs(leaving, coming, a_job("web").team("blue").gpus(4).labels(app="web")).snapshot()
    plan = schedule(snapshot)
    assert [(type(one), one.job) for one in plan.actions] == [(Evict, "squatter"), (Bind, "web")]
    assert [verdict.why for verdict in verify(plan, snapshot) if not verdict.holds] == []


def test_a_carrier_that_should_long_have_gone_keeps_nobody_away() -> None:
    squatter = a_job("squatter").team("red").gpus(1).apart("hostname", app="web")
    stuck = squatter.on("node-1", 0, state=TaskState.STUCK)
    plan = schedule(two_teams().jobs(stuck, a_job("web").team("blue").gpus(4).labels(app="web")).snapshot())
    assert [type(action) for action in plan.actions] == [Bind]


def blocked() -> Snapshot:
    squatter = a_job("squatter").team("red").gpus(1).apart("hostname", app="web").on("node-1", 0)
    cluster = a_cluster().nodes(1).queue("red", quota=4).queue("blue", quota=2).scope(AffinityScope.CLUSTER)
    return cluster.jobs(squatter, a_job("web").team("blue").gpus(4).labels(app="web")).snapshot()


def test_an_explanation_names_the_carrier_and_what_would_help() -> None:
    found = explain(blocked(), "web")
    assert [(one.token, one.have, one.need, one.carriers) for one in found.blockers] == [
        (Token.NO_MATCHING_NODE, 0, 1, ("squatter",))
    ]
    assert {way.kind for way in found.ways_out} == {WayKind.RAISE_QUOTA, WayKind.WAIT}


def test_a_plan_for_a_carrier_that_may_no_longer_be_stopped_does_not_hold() -> None:
    snapshot = (
        two_teams()
        .jobs(
            a_job("squatter").team("red").gpus(1).apart("hostname", app="web").on("node-1", 0),
            a_job("web").team("blue").gpus(4).labels(app="web"),
        )
        .snapshot()
    )
    plan = schedule(snapshot)
    assert [one.reason.resource for one in plan.actions if isinstance(one, Evict)] == [RULE]
    firm = replace(snapshot, jobs=tuple(replace(job, protected=job.id == "squatter") for job in snapshot.jobs))
    assert [verdict.holds for verdict in verify(plan, firm)] == [False, False]


def test_a_ledger_follows_who_may_no_longer_be_stopped() -> None:
    snapshot = blocked()
    followed = Ledger.of(snapshot)
    firm = replace(snapshot.jobs[0], protected=True)
    followed.apply((JobSeen(firm),))
    fresh = Ledger.of(replace(snapshot, jobs=(firm, *snapshot.jobs[1:])))
    assert followed.facts() == fresh.facts()
