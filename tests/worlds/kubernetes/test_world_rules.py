"""Required anti-affinity keeps its meaning, but holds no place against pods of other queues that are within quota."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.model.reasons import Reason, Token
from gpuyard.model.text import reason_text
from gpuyard.scheduler.explain import explain_on
from gpuyard.worlds.kubernetes.writes import EvictPod
from tests.worlds.kubernetes.small_cluster import SmallCluster

MATCHING_ALL: tuple[dict[str, Any], ...] = (
    {},
    {"matchExpressions": [{"key": "zzz", "operator": "NotIn", "values": ["q"]}]},
    {"matchExpressions": [{"key": "zzz", "operator": "DoesNotExist"}]},
)


def two_teams(quota: int = 4, nodes: int = 1) -> SmallCluster:
    cluster = SmallCluster(nodes=nodes, gpus=8)
    bounds = {kind: {"quota": -1, "limit": -1, "overQuotaWeight": 1} for kind in ("cpu", "memory")}
    gpu = {"limit": -1, "overQuotaWeight": 1}
    cluster.add_queue("red", resources={**bounds, "gpu": {"quota": 4, **gpu}})
    cluster.add_queue("blue", resources={**bounds, "gpu": {"quota": quota, **gpu}})
    return cluster


@pytest.mark.parametrize("selector", MATCHING_ALL)
def test_a_pod_that_carries_the_rule_gives_way_to_one_within_its_quota(selector: dict[str, Any]) -> None:
    cluster = two_teams()
    cluster.add_pod("squatter", 1, queue="red", apart=selector)
    cluster.settle()
    cluster.add_pod("urgent", 4, queue="blue")
    assert "evict squatter Reclaimed" in cluster.settle()
    assert cluster.node_of("urgent") == "n1"
    assert 'gives way to job "a/pod/urgent" of another queue, which is within its quota' in cluster.texts["squatter"]


def test_the_rule_keeps_its_meaning_where_there_is_another_node() -> None:
    cluster = two_teams(nodes=2)
    cluster.add_pod("squatter", 1, queue="red", apart={})
    cluster.settle()
    cluster.add_pod("urgent", 4, queue="blue")
    assert "bind urgent n2" in cluster.settle()
    assert cluster.node_of("squatter") == "n1"


def test_a_pod_beyond_the_quota_of_its_queue_waits_and_is_told_which_pod_keeps_it_away() -> None:
    cluster = two_teams(quota=2)
    cluster.add_pod("squatter", 1, queue="red", apart={})
    cluster.settle()
    cluster.add_pod("greedy", 4, queue="blue")
    assert cluster.settle() == []
    assert cluster.loop is not None
    found = explain_on(cluster.loop.ledger, "a/pod/greedy").blockers
    carriers = ("a/pod/squatter",)
    subject = "other tasks that want to be apart from it"
    why = Reason(Token.NO_MATCHING_NODE, "nodes", 0, 1, subject, carriers=carriers)
    assert found == (why,)
    assert 'a rule of job "a/pod/squatter" keeps it away' in reason_text(why)


def test_a_pod_that_may_not_be_preempted_stays_and_others_come_beside_it() -> None:
    cluster = two_teams()
    cluster.add_pod("squatter", 1, queue="red", apart={}, priority="inference")
    cluster.settle()
    cluster.add_pod("urgent", 4, queue="blue")
    assert cluster.settle() == ["bind urgent n1"]
    assert cluster.node_of("squatter") == "n1"


def test_a_disruption_budget_does_not_hold_the_place_either() -> None:
    """The eviction is refused, and while the pod may not be disturbed its rule keeps nobody of another queue away."""
    cluster = two_teams()
    cluster.add_pod("squatter", 1, queue="red", apart={})
    cluster.settle()
    cluster.fate = lambda write: "forbidden" if isinstance(write, EvictPod) else "done"
    cluster.add_pod("urgent", 4, queue="blue")
    cluster.settle()
    assert cluster.node_of("squatter") == "n1"
    assert cluster.node_of("urgent") == "n1"


def test_nobody_gives_way_for_a_port_that_both_want() -> None:
    cluster = two_teams()
    cluster.add_pod("first", 1, queue="red", port=9100)
    cluster.settle()
    cluster.add_pod("second", 1, queue="blue", port=9100)
    assert cluster.settle() == []
    assert cluster.node_of("second") == ""


def test_a_port_of_a_pod_that_may_not_be_preempted_is_still_taken() -> None:
    cluster = two_teams()
    cluster.add_pod("first", 1, queue="red", port=9100, priority="inference")
    cluster.settle()
    cluster.add_pod("second", 1, queue="blue", port=9100)
    assert cluster.settle() == []
