"""The decision log: a line for everything that was decided, and none for what was not."""

from __future__ import annotations

from typing import Any

from gpuyard.kube.decisions import DecisionLog, lines_of
from tests.worlds.kubernetes.small_cluster import SmallCluster


class Logged:
    """A cluster whose decisions are written down, as the scheduler does."""

    def __init__(self, nodes: int = 1, gpus: int = 4) -> None:
        self.cluster = SmallCluster(nodes, gpus)
        self.lines: list[str] = []
        self.log = DecisionLog(self.lines.append, lambda: self.cluster.now_ms)

    def cycle(self) -> list[dict[str, Any]]:
        """The lines of one cycle."""
        before = len(self.lines)
        cluster = self.cluster
        acted: list[Any] = []
        cluster.world.on_act = lambda actions: acted.extend(actions)
        cluster.hear()
        cluster.cycle()
        assert cluster.loop is not None
        new, cluster.world.new_jobs = cluster.world.new_jobs, []
        gone, cluster.world.gone_jobs = cluster.world.gone_jobs, []
        for id in gone:
            self.log.gone(id)
        jobs = [cluster.loop.ledger.jobs[id] for id in new]
        self.log.submitted(jobs, cluster.picture.tree)
        self.log.decided(cluster.loop.last, acted, cluster.loop.ledger)
        cluster.controllers()
        cluster.kubelets()
        return list(lines_of("\n".join(self.lines[before:])))

    def events(self, cycles: int = 1) -> list[str]:
        return [line["event"] for _ in range(cycles) for line in self.cycle()]


def test_a_job_is_submitted_bound_and_gone() -> None:
    logged = Logged()
    logged.cluster.add_pod("a", 1)
    submitted, phase, bind = logged.cycle()
    assert (submitted["event"], submitted["job"], submitted["gpus"]) == ("submitted", "a/pod/a", 1)
    assert phase["phase"] == "allocate"
    assert (bind["event"], bind["node"], bind["free_before"]) == ("bind", "n1", 4)
    logged.cluster.delete("a")
    logged.events()
    assert logged.events() == ["gone"]


def test_every_bind_of_a_cycle_sees_what_the_one_before_has_left() -> None:
    logged = Logged()
    for name in "abc":
        logged.cluster.add_pod(name, 1)
    assert [line["free_before"] for line in logged.cycle() if line["event"] == "bind"] == [4, 3, 2]


def test_who_waits_is_told_once_for_each_reason() -> None:
    logged = Logged()
    logged.cluster.add_pod("big", 8)
    assert logged.events() == ["submitted", "waits"]
    assert logged.events(3) == []


def test_an_eviction_names_loss_and_beneficiary_and_a_promise_the_place() -> None:
    logged = Logged()
    logged.cluster.add_pod("low", 4)
    logged.events(2)
    logged.cluster.add_pod("high", 4, priority="inference")
    cycle = logged.cycle()
    assert "preempt" in [line["phase"] for line in cycle if line["event"] == "phase"]
    lines = {line["event"]: line for line in cycle}
    assert (lines["evict"]["task"], lines["evict"]["loss"]) == ("low", True)
    assert lines["evict"]["beneficiary"] == "a/pod/high"
    assert (lines["promise"]["job"], lines["promise"]["node"]) == ("a/pod/high", "n1")


def test_a_move_says_from_where_to_where() -> None:
    logged = Logged(nodes=2)
    logged.cluster.add_pod("left", 2)
    for name in ("one", "two"):
        logged.events()
        logged.cluster.pass_time(1_000)
        logged.cluster.add_owner("StatefulSet", name, 1, 2)
    logged.events(2)
    logged.cluster.delete("left")
    logged.events(2)
    logged.cluster.add_pod("big", 4)
    (move,) = [line for line in logged.cycle() if line["event"] == "move"]
    assert {move["from"], move["to"]} == {"n1", "n2"}
    assert move["beneficiary"] == "a/pod/big"


def test_nothing_is_kept_of_jobs_that_are_gone() -> None:
    logged = Logged()
    for number in range(3):
        logged.cluster.add_pod(f"p{number}", 8)
        logged.events(2)
        logged.cluster.delete(f"p{number}")
        logged.events(2)
    assert (logged.log._known, logged.log._waiting) == (set(), {})
