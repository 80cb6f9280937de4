"""Single situations in which rules between tasks are easily got wrong."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from gpuyard.model.jobs import Job, LabelRule, Neighbour, Operator, Request, Task, TaskState, Where
from gpuyard.model.plan import Bind, Evict, Move, Plan, Promise
from gpuyard.model.queues import AffinityScope
from gpuyard.model.reasons import Token
from gpuyard.model.snapshot import JobGone, JobSeen, Snapshot
from gpuyard.policies.policy import DEFAULT, Step
from gpuyard.scheduler.company import _tasks_text
from gpuyard.scheduler.cycle import plan as plan_on
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.neighbours import Condition
from gpuyard.scheduler.verify import verify
from tests.builders import a_cluster, a_job, a_node

ALLOCATE: Final = replace(DEFAULT, steps=(Step.ALLOCATE,))
PORT: Final = LabelRule("port/TCP/80", Operator.EXISTS)


def places(plan: Plan) -> dict[str, str]:
    return {action.task: action.node for action in plan.actions if isinstance(action, Bind | Promise | Move)}


def with_a_port(job: Job) -> Job:
    """As a pod with a host port: it carries a mark, and keeps apart from everyone who does."""
    where = Where(neighbours=(Neighbour((), "hostname", apart=True, rules=(PORT,)),))
    labels = (("port/TCP/80", "0.0.0.0"),)
    request = Request(cpu_milli=100, where=where)
    return replace(job, tasks=tuple(replace(task, request=request, labels=labels) for task in job.tasks))


def with_jobs(snapshot: Snapshot, *jobs: Job) -> Snapshot:
    return replace(snapshot, jobs=(*snapshot.jobs, *jobs))


def test_a_port_in_use_by_one_that_is_ending_is_not_given_away_before_it_has_ended() -> None:
    """A promise of before waits, too: a kubelet would refuse the second one."""
    cluster = a_cluster().nodes(1).queue("team").snapshot()
    leaving = with_a_port(Job("old", "team", (Task("old-0", Request(), state=TaskState.FREEING, node="node-1"),)))
    coming = with_a_port(Job("new", "team", (Task("new-0", Request(), state=TaskState.PROMISED, node="node-1"),)))
    waits = schedule(with_jobs(cluster, leaving, coming))
    assert waits.actions == ()
    assert [reason.token for reason in waits.reasons_for("new")] == [Token.PLACE_FREEING]
    starts = schedule(with_jobs(cluster, coming))
    assert places(starts) == {"new-0": "node-1"}
    assert [verdict.holds for verdict in verify(starts, with_jobs(cluster, leaving, coming))] == [False]


def test_a_task_evicted_for_another_keeps_its_port_until_it_has_gone() -> None:
    cluster = a_cluster().nodes(1, gpus=2).queue("owed", quota=2).queue("lent", quota=0).scope(AffinityScope.CLUSTER)
    victim = a_job("r").team("lent").gpus(1).on("node-1", 0).labels(port="80")
    taker = a_job("w").team("owed").gpus(1).apart("hostname", port="80").labels(port="80")
    plan = schedule(cluster.jobs(victim, taker).snapshot())
    assert [type(action) for action in plan.actions] == [Evict, Promise]


def test_a_job_given_way_does_not_come_back_beside_one_that_came_meanwhile() -> None:
    """Two that must not meet both give way; one moves to where the other was, which then must not return there."""
    cluster = a_cluster().having(a_node("a").gpus(2), a_node("b").gpus(2), a_node("c").gpus(1))
    cluster = cluster.queue("owed", quota=5).queue("lent", quota=0)
    shy = a_job("shy").team("lent").apart("hostname", app="loud").on("a", 0)
    loud = a_job("loud").team("lent").labels(app="loud").on("b", 0)
    snapshot = cluster.jobs(shy, loud, a_job("w").team("owed").gpus(2).tasks(1)).snapshot()
    plan = schedule(snapshot)
    after = {task: node for task, node in places(plan).items() if task in ("shy-0", "loud-0")}
    stayed = {"shy-0": "a", "loud-0": "b"} | after
    assert stayed["shy-0"] != stayed["loud-0"]


def test_who_moves_for_a_job_does_not_come_where_its_rules_would_not_have_it() -> None:
    """Seen by a property: a spread that held while another was on its way did not hold when that had arrived."""
    nodes = (a_node("n1").gpus(1).label("zone", "z2"), a_node("n2").gpus(2).label("zone", "z1"))
    cluster = a_cluster().having(*nodes, a_node("n3").gpus(2).label("zone", "z2"))
    others = a_job("a").gpus(2).on("n2", 0, 1), a_job("b").labels(app="web").on("n3", 0)
    idle = a_job("c").gpus(0).cpu(1).labels(app="web").on("n1")
    snapshot = cluster.jobs(*others, idle, a_job("w").gpus(2).even("zone", app="web")).snapshot()
    plan = schedule(snapshot)
    assert all(verdict.holds for verdict in verify(plan, snapshot))


def test_jobs_are_alike_only_while_no_rule_tells_them_apart() -> None:
    """Two jobs of one line part ways when somebody comes who keeps apart from one of them, and join again."""
    full = a_cluster().nodes(1, gpus=1)
    web, db = a_job("web").labels(app="web"), a_job("db").labels(app="db")
    cluster = full.jobs(web.submitted(1), db.submitted(2)).snapshot()
    shy = a_job("shy").apart("hostname", app="web").on("node-1", 0).job({node.name: node for node in cluster.nodes})
    ledger = Ledger.of(cluster)
    assert len(ledger.lines.lines) == 1
    ledger.apply([JobSeen(shy)])
    assert len(ledger.lines.lines) == 2
    assert plan_on(ledger) == schedule(replace(cluster, jobs=(*cluster.jobs, shy)))
    ledger.apply([JobGone("shy")])
    assert len(ledger.lines.lines) == 1
    assert plan_on(ledger) == schedule(cluster)


def test_one_that_is_shunned_does_not_hold_back_others_of_its_size() -> None:
    """They ask for the same, and one finds no place; that says nothing about the other."""
    shy = a_job("shy").gpus(1).apart("hostname", app="web").on("node-1", 0)
    jobs = shy, a_job("web").labels(app="web").submitted(1), a_job("db").labels(app="db").submitted(2)
    assert places(schedule(a_cluster().nodes(1, gpus=2).jobs(*jobs).snapshot())) == {"db-0": "node-1"}


def test_the_first_of_its_kind_begins_a_domain_and_the_others_follow() -> None:
    cluster = a_cluster().having(a_node("bare").gpus(8), a_node("z").gpus(2).label("zone", "z1"))
    gang = a_job("g").gpus(1).tasks(2).labels(app="web").near("zone", app="web")
    assert places(schedule(cluster.jobs(gang).snapshot())) == {"g-0": "z", "g-1": "z"}


def test_a_task_whose_label_differs_from_its_jobs_has_its_own() -> None:
    cluster = a_cluster().nodes(2, gpus=1)
    job = a_job("j").labels(app="web").on("node-1", 0).job({"node-1": cluster.given_nodes[0]})
    other = replace(job, tasks=tuple(replace(task, labels=(("app", "db"),)) for task in job.tasks))
    near = a_job("n").gpus(0).near("hostname", app="db").job()
    snapshot = with_jobs(cluster.queue("team").snapshot(), other, near)
    assert places(schedule(snapshot)) == {"n-0": "node-1"}


def test_what_was_placed_a_moment_ago_is_counted() -> None:
    nodes = [a_node(f"n{n}").gpus(4).label("zone", f"z{n % 2}") for n in range(4)]
    jobs = [a_job(f"j{n}").gpus(1).labels(app="web").even("zone", app="web").submitted(n) for n in range(7)]
    plan = schedule(a_cluster().having(*nodes).jobs(*jobs).snapshot(), ALLOCATE)
    zones = [int(node[1]) % 2 for node in places(plan).values()]
    assert sorted((zones.count(0), zones.count(1))) == [3, 4]


def test_those_no_rule_is_about_are_still_rearranged_where_others_have_rules() -> None:
    """Host ports are everywhere in Kubernetes; they must not cost everyone else their place."""
    ported = a_job("ported").gpus(0).cpu(1).labels(port="80").apart("hostname", port="80").on("node-1")
    parts = [a_job(f"p{part}").fraction(f"0.{part}").submitted(n) for n, part in enumerate((6, 3, 7, 4))]
    plan = schedule(a_cluster().nodes(2, gpus=1).jobs(ported, *parts).snapshot(), ALLOCATE)
    assert len(places(plan)) == len(parts)


def test_what_is_missing_is_told_of_the_nodes_that_rules_leave() -> None:
    nodes = a_node("a").gpus(8).label("zone", "a"), a_node("b").gpus(2).label("zone", "b")
    there = a_job("web-1").labels(app="web").on("a", 0), a_job("other").gpus(2).non_preemptible().on("b", 0, 1)
    waits = a_job("web-2").labels(app="web").even("zone", app="web")
    missing, rule = schedule(a_cluster().having(*nodes).jobs(*there, waits).snapshot()).reasons_for("web-2")
    assert (missing.token, missing.resource, missing.have, missing.need) == (Token.NOT_ENOUGH, "gpu", 0, 1000)
    assert (rule.token, rule.have, rule.need) == (Token.NO_MATCHING_NODE, 1, 2)
    assert rule.subject == "evenly with app=web by zone"


def test_of_a_gang_that_must_be_apart_it_is_told_how_many_find_a_place() -> None:
    gang = a_job("ha").tasks(3).labels(app="ha").apart("hostname", app="ha")
    together, rule = schedule(a_cluster().nodes(2).jobs(gang).snapshot()).reasons_for("ha")
    assert (together.token, together.resource, together.have, together.need) == (Token.FRAGMENTED, "tasks", 2, 3)
    assert (rule.token, rule.have, rule.need) == (Token.NO_MATCHING_NODE, 0, 2)
    assert rule.subject == "apart from app=ha by hostname; other tasks that want to be apart from it"


def test_labels_of_a_worlds_own_are_told_without_their_prefix() -> None:
    rule = Neighbour((), "hostname", apart=True, rules=(LabelRule("gpuyard:hostport/TCP/8080", Operator.EXISTS),))
    assert _tasks_text(Condition.of(rule)) == "hostport/TCP/8080 exists"
