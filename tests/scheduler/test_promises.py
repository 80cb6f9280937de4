"""Promises of earlier cycles: what is kept, what is taken back, and who may have the place then."""

from __future__ import annotations

from gpuyard.model.jobs import DESPITE_CORDON, TaskState
from gpuyard.model.plan import Bind, Evict, Plan
from gpuyard.model.reasons import Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.verify import verify
from tests.builders import JobBuilder, a_cluster, a_job, a_node
from tests.replay import replay

PROMISED = TaskState.PROMISED


def planned(cluster: Snapshot) -> Plan:
    """A plan that can be carried out and holds."""
    plan = schedule(cluster)
    replay(plan, cluster)
    assert all(verdict.holds for verdict in verify(plan, cluster))
    return plan


def taken_back(plan: Plan) -> dict[str, Token]:
    return {action.task: action.reason.token for action in plan.actions if isinstance(action, Evict)}


def started(plan: Plan) -> set[str]:
    return {action.task for action in plan.actions if isinstance(action, Bind)}


def two_racks(*jobs: JobBuilder) -> Snapshot:
    nodes = [a_node(f"n{n}").gpus(2).label("rack", f"r{n}") for n in (1, 2)]
    return a_cluster().having(*nodes).levels("fabric", "rack").queue("team").jobs(*jobs).snapshot()


def test_a_promise_is_kept_when_its_place_is_free() -> None:
    plan = planned(two_racks(a_job("soon").gpus(1).on("n1", 0, state=PROMISED)))
    assert (started(plan), taken_back(plan)) == ({"soon-0"}, {})


def test_a_promise_out_of_its_domain_is_taken_back() -> None:
    """The nodes have got other labels since it was made."""
    apart = a_job("gang").gpus(1).tasks(2).topology("fabric", required="rack")
    plan = planned(two_racks(apart.on("n1", 0, state=PROMISED).on("n2", 0, state=PROMISED)))
    assert taken_back(plan) == {"gang-0": Token.NO_DOMAIN, "gang-1": Token.NO_DOMAIN}


def test_a_promise_on_a_node_that_was_cordoned_is_kept_only_for_who_may_go_there() -> None:
    shut = a_cluster().having(a_node("shut").gpus(2).cordoned()).queue("team")
    free = a_job("free").gpus(1).tolerates(DESPITE_CORDON.key).on("shut", 0, state=PROMISED)
    bound = a_job("bound").gpus(1).on("shut", 1, state=PROMISED)
    late = a_job("late").gpus(1).tolerates(DESPITE_CORDON.key)
    plan = planned(shut.jobs(free, bound, late).snapshot())
    assert (started(plan), taken_back(plan)) == ({"free-0", "late-0"}, {"bound-0": Token.DRAINED})


def test_a_promise_beside_whom_it_must_not_meet_is_taken_back() -> None:
    loud = a_job("loud").gpus(1).labels(app="loud").on("n1", 0)
    quiet = a_job("quiet").gpus(1).apart("rack", app="loud").on("n1", 1, state=PROMISED)
    assert taken_back(planned(two_racks(loud, quiet))) == {"quiet-0": Token.NO_MATCHING_NODE}


def test_the_place_of_a_promise_taken_back_is_free_in_the_same_cycle() -> None:
    loud = a_job("loud").gpus(1).labels(app="loud").on("n1", 0)
    quiet = a_job("quiet").gpus(1).apart("rack", app="loud").on("n1", 1, state=PROMISED)
    others = [a_job(f"other{n}").gpus(1).submitted(n) for n in range(3)]
    plan = planned(two_racks(loud, quiet, *others))
    assert started(plan) == {"other0-0", "other1-0", "other2-0"}


def test_a_gang_whose_promises_are_taken_back_starts_nothing_else_in_that_cycle() -> None:
    """The rest alone would be less than its minimum."""
    loud = a_job("loud").gpus(1).labels(app="loud").on("n1", 0)
    gang = a_job("gang").gpus(1).tasks(2).apart("rack", app="loud").on("n1", 1, state=PROMISED)
    plan = planned(two_racks(loud, gang))
    assert (started(plan), taken_back(plan)) == (set(), {"gang-0": Token.NO_MATCHING_NODE})
    assert [reason.token for reason in plan.reasons_for("gang")] == [Token.NO_MATCHING_NODE]


def test_a_gang_that_runs_in_two_domains_of_its_level_grows_in_neither() -> None:
    """A world may report what no plan would make: a group outside the one domain it requires."""
    torn = a_job("torn").gpus(1).tasks(3, gang=1).topology("fabric", required="rack")
    plan = planned(two_racks(torn.on("n1", 0).on("n2", 0)))
    assert plan.actions == ()
