"""Everything at once, at random: pods, gangs and owners come and go, nodes are lost, writes fail, news is late, the
scheduler is killed. No GPU is ever given twice, and when the storm is over everything comes to rest.

What failed can be had again: the number in the name of the test is its seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gpuyard.policies.policy import DEFAULT
from gpuyard.scheduler.ledger import Ledger
from gpuyard.worlds.kubernetes.writes import BindPod, EvictPod
from tests.conftest import LONG
from tests.worlds.kubernetes.small_cluster import SmallCluster

SEEDS = 2_000 if LONG else 30
STEPS = 60
NODES, GPUS = 4, 4
MOST_PODS = 24
PRIORITIES = ("train", "build-preemptible", "build", "inference")
REST_MS = 400_000
"""Longer than any grace, back-off or place is kept."""


class Storm:
    """A cluster and what happens to it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = SmallCluster(NODES, GPUS)
        self.count = 0
        self.trouble = self.random.choice((0.0, 0.1, 0.3))
        self.cluster.fate = self.fate
        self.bound: dict[str, str] = {}

    def fate(self, write: object) -> str:
        if self.random.random() >= self.trouble:
            return "done"
        if isinstance(write, BindPod):
            return self.random.choice(("refused", "held"))
        if isinstance(write, EvictPod):
            return self.random.choice(("refused", "forbidden", "held"))
        return "refused"

    def step(self) -> None:
        self.random.choice(self.happenings())()
        if self.random.random() < 0.8:
            self.cluster.hear(None if self.random.random() < 0.5 else self.random.randrange(6))
            self.cluster.cycle()
        self.check()
        self.cluster.pass_time(self.random.choice((0, 10, 1_000, 5_000, 20_000)))

    def happenings(self) -> list[Callable[[], object]]:
        cluster = self.cluster
        return [
            self.add_pod,
            self.add_pod,
            self.add_gang,
            self.add_owner,
            self.delete_pod,
            self.delete_owner,
            self.end_pod,
            self.flap_node,
            self.late_write,
            self.restart,
            self.budget,
            cluster.controllers,
            cluster.kubelets,
            cluster.kubelets,
        ]

    # ---------------------------------------------------------------------------------------------------- what happens

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def gpus(self) -> int:
        return self.random.choice((1, 1, 2, 4))

    def full(self) -> bool:
        return len(self.cluster.pods) >= MOST_PODS

    def add_pod(self) -> None:
        if not self.full():
            priority = self.random.choice(PRIORITIES)
            self.cluster.add_pod(self.name("p"), self.gpus(), priority=priority, labels={"app": "x"})

    def add_gang(self) -> None:
        if self.full():
            return
        name, size = self.name("g"), self.random.randint(2, 4)
        self.cluster.add_group(name, size)
        gpus, late = self.gpus(), self.random.random() < 0.2
        for at in range(size - late):
            self.cluster.add_pod(f"{name}-{at}", gpus, group=name)

    def add_owner(self) -> None:
        if not self.full():
            kind = self.random.choice(("Job", "StatefulSet", "ReplicaSet"))
            self.cluster.add_owner(kind, self.name("o"), self.random.randint(1, 3), self.gpus())

    def delete_pod(self) -> None:
        if self.cluster.pods:
            self.cluster.grace_ms = self.random.choice((0, 5_000, 30_000))
            self.cluster.delete(self.random.choice(sorted(self.cluster.pods)))

    def delete_owner(self) -> None:
        if not self.cluster.owners:
            return
        name = self.random.choice(sorted(self.cluster.owners))
        owner = self.cluster.owners.pop(name)
        self.cluster._tell(owner["kind"], owner, gone=True)
        for pod in [pod for pod in self.cluster.pods if pod.startswith(f"{name}-")]:
            self.cluster.delete(pod)

    def end_pod(self) -> None:
        running = sorted(self.cluster.places())
        if running:
            phase, reason = self.random.choice((("Succeeded", ""), ("Failed", "OutOfcpu"), ("Failed", "Error")))
            self.cluster.end(self.random.choice(running), phase, reason)

    def flap_node(self) -> None:
        gone = sorted({f"n{number}" for number in range(1, NODES + 1)} - set(self.cluster.nodes))
        if gone:
            self.cluster.add_node(gone[0], GPUS)
        else:
            lost = self.random.choice(sorted(self.cluster.nodes))
            self.cluster.remove_node(lost)
            for name in [name for name, node in self.cluster.places().items() if node == lost]:
                self.cluster._tell("pods", self.cluster.pods.pop(name), gone=True)

    def late_write(self) -> None:
        """One that was under way for long is done at last, or fails."""
        if self.cluster.held:
            write = self.cluster.held.popleft()
            if self.random.random() < 0.7:
                self.cluster.write(write)
            elif isinstance(write, BindPod):
                self.cluster.world.bind_failed(write, "too late")
            elif isinstance(write, EvictPod):
                self.cluster.world.eviction_failed(write, "too late", forbidden=True)

    def restart(self) -> None:
        """Killed; what was under way has happened or not."""
        for write in list(self.cluster.held):
            if self.random.random() < 0.5:
                self.cluster.write(write)
        self.cluster.start()

    def budget(self) -> None:
        self.cluster.add_budget("b", self.random.choice((0, 1, 5)), app="x")

    # ----------------------------------------------------------------------------------------------- what must hold

    def check(self) -> None:
        assert self.cluster.overbooked() == []
        for name, pod in self.cluster.pods.items():
            uid, node = pod["metadata"]["uid"], self.cluster.node_of(name)
            if node:
                assert self.bound.setdefault(uid, node) == node, f"{name} was bound twice"

    def calm(self) -> None:
        """No more trouble, and all the time it needs."""
        cluster = self.cluster
        cluster.fate = lambda write: "done"
        while cluster.held:
            cluster.write(cluster.held.popleft())
        for number in range(1, NODES + 1):
            if f"n{number}" not in cluster.nodes:
                cluster.add_node(f"n{number}", GPUS)
        for _ in range(20):
            cluster.settle(20)
            self.check()
            cluster.pass_time(REST_MS // 20)
        for _ in range(5):
            cluster.pass_time(REST_MS)
            cluster.settle(20)
            self.check()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_gpu_is_given_twice_and_after_the_storm_everything_comes_to_rest(seed: int) -> None:
    storm = Storm(seed)
    for _ in range(STEPS):
        storm.step()
    storm.calm()
    cluster = storm.cluster
    assert half_gangs(cluster) == []
    assert cluster.settle() == [], "what is at rest stays so"
    intents = cluster.world.intents
    assert (intents.binding, intents.evicting, intents.places) == ({}, {}, [])
    assert cluster.loop is not None
    assert cluster.loop.ledger.facts() == Ledger.of(cluster.world.snapshot()).facts()
    cluster.start()
    assert cluster.settle() == [], "also for another scheduler"
    assert cluster.overbooked() == []


def half_gangs(cluster: SmallCluster) -> list[str]:
    """Groups of which something runs, but less than they cannot do without; where a part is done, the rest may end."""
    found = []
    for name, group in cluster.groups.items():
        phases = {pod: cluster.pods[pod]["status"]["phase"] for pod in cluster.pods if pod.startswith(f"{name}-")}
        running = sum(bool(cluster.node_of(pod)) and phase != "Failed" for pod, phase in phases.items())
        if "Succeeded" not in phases.values() and 0 < running < group["spec"]["minMember"]:
            found.append(name)
    return found


def test_the_grace_of_gangs_is_shorter_than_the_rest() -> None:
    assert DEFAULT.staleness_grace_ms < REST_MS
