"""Everything at once on a real API server, at random: what a witness of its own must never see, and rest at the end.

What failed can be had again, as far as timing allows: the number in the name of the test is its seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from time import monotonic, sleep

import pytest
from msgspec.structs import replace

from gpuyard.errors import KubeTestbedError
from gpuyard.policies.policy import DEFAULT
from gpuyard.testbed.kwok import node as kwok_node
from tests.conftest import LONG
from tests.kube import eventually
from tests.on_kube.faults.cluster import GPUS, Cluster, kwok_names
from tests.on_kube.faults.faulty import Proxy, drop, lose, part, refuse, slow, writing
from tests.on_kube.faults.schedulers import Inside
from tests.on_kube.faults.witness import gpus_of

SEEDS = range(20) if LONG else range(1)
SECONDS = 60.0 if LONG else 4.0
GRACE_MS = 2_000
SLACK_S = 20.0
"""Beyond the grace: deletions that are still to be told, a scheduler that was just killed, a busy machine."""
MOST_PODS = 40


class Storm:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.count = 0
        self.proxy: Proxy
        self.scheduler: Inside
        self.restart()

    def restart(self) -> None:
        """The one before is cut off in the middle of what it does."""
        if self.count:
            self.cluster.cut_off(self.proxy)
        self.proxy = self.cluster.proxy()
        self.scheduler = self.cluster.inside(self.proxy, policy=replace(DEFAULT, staleness_grace_ms=GRACE_MS))

    def blow(self) -> None:
        until = monotonic() + SECONDS
        while monotonic() < until:
            try:
                self.random.choice(self.happenings())()
            except KubeTestbedError:
                continue  # It was gone already, or there already.
            sleep(self.random.choice((0, 0, 0.05, 0.2)))

    def happenings(self) -> list[Callable[[], object]]:
        return [
            *[self.add_pod] * 4,
            *[self.add_gang] * 2,
            self.add_set,
            *[self.delete_pod] * 3,
            self.flap_node,
            *[self.trouble] * 2,
            self.proxy.calm,
            lambda: self.proxy.cut("/pods"),
            *([self.restart] if self.random.random() < 0.2 else []),
        ]

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def pods(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.cluster.api.get(self.cluster.pods)["items"]]

    def add_pod(self) -> None:
        if len(self.pods()) < MOST_PODS:
            priority = self.random.choice(("train", "train", "inference"))
            self.cluster.add(self.name("p"), gpus=self.random.choice((1, 2, 4, 8)), priority=priority)

    def add_gang(self) -> None:
        if len(self.pods()) < MOST_PODS:
            self.cluster.gang(self.name("g"), self.random.randint(2, 4), gpus=self.random.choice((2, 4, 8)))

    def add_set(self) -> None:
        if len(self.pods()) < MOST_PODS:
            kind = self.random.choice(("StatefulSet", "ReplicaSet"))
            self.cluster.owner(kind, self.name("s"), self.random.randint(1, 3), gpus=self.random.choice((1, 2, 4)))

    def delete_pod(self) -> None:
        there = self.pods()
        if there:
            self.cluster.api.delete(f"{self.cluster.pods}/{self.random.choice(sorted(there))}")

    def flap_node(self) -> None:
        """Its pods go with it."""
        node = self.random.choice(kwok_names())
        if not self.cluster.api.answers(f"/api/v1/nodes/{node}"):
            self.cluster.api.create("/api/v1/nodes", kwok_node(node, gpus=GPUS))
            return
        self.cluster.api.delete(f"/api/v1/nodes/{node}")
        self.cluster.finish(*[name for name, where in self.cluster.places().items() if where == node])

    def trouble(self) -> None:
        some = self.random.randint(1, 5)
        self.proxy.on(
            self.random.choice(
                (
                    refuse(part("binding"), self.random.choice((409, 429, 500, 503)), some),
                    refuse(part("eviction"), self.random.choice((409, 429, 500)), some),
                    refuse(writing, self.random.choice((429, 500)), some),
                    lose(part("binding"), some),
                    lose(part("eviction"), some),
                    drop(writing, some),
                    slow(part("binding"), 0.5, some),
                )
            )
        )

    def calm(self) -> None:
        self.proxy.calm()
        for node in kwok_names():
            if not self.cluster.api.answers(f"/api/v1/nodes/{node}"):
                self.cluster.api.create("/api/v1/nodes", kwok_node(node, gpus=GPUS))
        self.cluster.finish(*self.on_lost_nodes())

    def on_lost_nodes(self) -> list[str]:
        """Bound after their node had gone; the garbage collector takes them a minute later."""
        made = {node["metadata"]["name"]: node for node in self.cluster.api.get("/api/v1/nodes")["items"]}
        return [name for name, node in self.cluster.places().items() if node not in made]

    def unrest(self) -> str:
        """What is not as it should be when all is calm; empty: nothing."""
        pods = self.cluster.api.get(self.cluster.pods)["items"]
        free = dict.fromkeys(kwok_names(), GPUS)
        waiting: list[int] = []
        for pod in pods:
            node = pod["spec"].get("nodeName", "")
            if "deletionTimestamp" in pod["metadata"]:
                return f"{pod['metadata']['name']} is still going"
            if node:
                free[node] -= gpus_of(pod)
            elif "gang" not in pod["metadata"]["labels"]:
                waiting.append(gpus_of(pod))
        if any(left >= wanted for left in free.values() for wanted in waiting):
            return f"somebody waits for {waiting}, and {free} are free"
        return f"{sorted(self.cluster.witness.half_since)} run by half" if self.cluster.witness.half_since else ""


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_witness_must_never_see_and_rest_at_the_end(cluster: Cluster, seed: int) -> None:
    storm = Storm(cluster, seed)
    try:
        storm.blow()
    finally:
        storm.calm()
    eventually(lambda: not storm.unrest(), lambda: f"rest ({storm.unrest()})", 60)
    longest = max(cluster.witness.longest_half_s.values(), default=0.0)
    assert longest < GRACE_MS / 1000 + SLACK_S + (SECONDS if LONG else 0), "a gang was half for too long"
    assert cluster.witness.wrong == []
