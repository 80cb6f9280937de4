"""The scheduler through faults, on a real API server: nothing bound twice, no GPU given twice, all of it converges.

That no pod is bound twice and no GPU given twice is looked after by a witness of its own, in every test.
"""

from __future__ import annotations

import gc
from time import monotonic, sleep
from typing import Any

import pytest

from gpuyard.errors import KubeSilentError
from gpuyard.kubeapi import follow
from gpuyard.worlds.kubernetes import writer
from tests.kube import eventually
from tests.on_kube.faults.cluster import GPUS, KWOK_NODES, Cluster
from tests.on_kube.faults.faulty import drop, hang, listing, lose, part, refuse, slow, watching

BINDING = part("binding")
EVICTION = part("eviction")
STATUS = part("status")
SOON_S = 30.0


def names(count: int, word: str = "p") -> list[str]:
    return [f"{word}{number}" for number in range(count)]


def bound_by(proxy: Any) -> int:
    proxy.settled(BINDING)
    return int(proxy.count(BINDING, "201"))


# ------------------------------------------------------------------------------------------------ the API server itself


# The test's own client leaves a socket behind where the server dies while they shake hands.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_api_server_is_restarted_while_pods_come(cluster: Cluster) -> None:
    cluster.inside()
    cluster.add(*names(10))
    cluster.bed.restart("kube-apiserver")
    for name in names(10, "q"):
        add_through_outage(cluster, name)
    cluster.all_bound([*names(10), *names(10, "q")])
    gc.collect()


def add_through_outage(cluster: Cluster, name: str) -> None:
    until = monotonic() + 60
    while not cluster.pod(name):
        try:
            cluster.add(name)
        except (KubeSilentError, OSError):
            assert monotonic() < until
            sleep(0.1)


# ------------------------------------------------------------------------------------------------------ gaps in watches


def test_a_watch_that_is_cut_again_and_again_loses_nothing(cluster: Cluster) -> None:
    proxy = cluster.proxy()
    cluster.inside(proxy)
    for number in range(8):
        cluster.add(f"p{number}")
        proxy.cut("/pods")
        proxy.cut("/nodes")
    cluster.all_bound(8)


def test_what_happened_during_a_gap_that_cannot_be_closed_is_seen_by_a_new_list(cluster: Cluster) -> None:
    """410: what the watch would go on from has been compacted away."""
    proxy = cluster.proxy()
    cluster.inside(proxy)
    # KWOK, told late that one of its pods is gone, ends the next one of that name: neither is KWOK's.
    cluster.add("full", gpus=GPUS, quiet=True)
    cluster.all_bound(["full"])
    blind = [proxy.on(hang(watching("pods"))), proxy.on(hang(listing("pods")))]
    proxy.cut("/pods")
    cluster.finish("full")
    # The same name, another pod.
    cluster.add("full", gpus=1, quiet=True)
    cluster.add(*names(KWOK_NODES - 1), gpus=GPUS)
    proxy.on(refuse(watching("pods"), 410, times=2))
    for rule in blind:
        proxy.rules.remove(rule)
    cluster.all_bound(KWOK_NODES)


def test_a_silent_watch_is_noticed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "SILENCE_S", 1.0)
    proxy = cluster.proxy()
    scheduler = cluster.inside(proxy)
    proxy.watched("/pods")
    assert proxy.mute("/pods") == 1
    cluster.add("unseen")
    cluster.all_bound(["unseen"])
    assert any("has said nothing" in line for line in scheduler.said)


# -------------------------------------------------------------------------------------------------------- answers of no


def test_binds_that_are_refused_lost_dropped_and_slow_are_done_once(cluster: Cluster) -> None:
    proxy = cluster.proxy()
    for status in (409, 429, 500, 503):
        proxy.on(refuse(BINDING, status, times=3))
    proxy.on(lose(BINDING, times=4))
    proxy.on(drop(BINDING, times=4))
    proxy.on(slow(BINDING, 2.0, times=3))
    cluster.inside(proxy)
    cluster.add(*names(24))
    cluster.all_bound(24)
    assert bound_by(proxy) == 24


def test_binds_that_hang_keep_nobody_waiting(cluster: Cluster) -> None:
    """More of them than there are workers."""
    proxy = cluster.proxy()
    cluster.inside(proxy)
    hangs = proxy.on(hang(part("binding", "stuck")))
    stuck = names(2 * writer.WORKERS, "stuck")
    cluster.add(*stuck, gpus=0)
    proxy.saw(part("binding", "stuck"), writer.WORKERS)
    began = monotonic()
    cluster.add(*names(10))
    cluster.all_bound(names(10))
    assert monotonic() - began < SOON_S / 3
    proxy.rules.remove(hangs)
    cluster.all_bound([*stuck, *names(10)])


def test_a_bind_whose_answer_and_fate_are_unknown_keeps_its_place(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Done, but nobody hears of it, neither by the answer nor by looking nor by the watch."""
    monkeypatch.setattr(writer, "BIND_MS", 300)
    proxy = cluster.proxy()
    scheduler = cluster.inside(proxy)
    proxy.watched("/pods")
    blind = [proxy.on(hang(watching("pods"))), proxy.on(hang(listing("pods"))), proxy.on(drop(one_pod))]
    proxy.on(lose(BINDING, times=KWOK_NODES))
    first = names(KWOK_NODES, "first")
    cluster.add(*first, gpus=GPUS)
    cluster.all_bound(first)
    proxy.cut("/pods")
    sleep(1.0)
    assert scheduler.lines("failed") == []
    for rule in blind:
        proxy.rules.remove(rule)
    cluster.add("late", gpus=GPUS)
    eventually(lambda: "Unschedulable" in cluster.why("late"), "why it waits")
    assert bound_by(proxy) == KWOK_NODES


def one_pod(asked: Any) -> bool:
    return asked.method == "GET" and "/pods/" in asked.path


def test_victims_go_once_and_their_place_is_taken_by_whom_they_went_for(cluster: Cluster) -> None:
    proxy = cluster.proxy()
    scheduler = cluster.inside(proxy)
    cluster.add(*names(KWOK_NODES * 2, "low"), gpus=GPUS // 2)
    cluster.all_bound(KWOK_NODES * 2)
    for status in (409, 429, 500):
        proxy.on(refuse(EVICTION, status, times=1))
        proxy.on(refuse(STATUS, status, times=1))
    for part_of_it in (EVICTION, STATUS):
        proxy.on(drop(part_of_it, times=1))
        proxy.on(lose(part_of_it, times=1))
        proxy.on(slow(part_of_it, 0.5, times=1))
    cluster.add("high", gpus=GPUS, priority="inference")
    cluster.all_bound(["high"])
    gone = [name for name in names(KWOK_NODES * 2, "low") if not cluster.pod(name)]
    assert len(gone) == 2
    eventually(lambda: len(cluster.events("Preempted")) == 2, "an event for each")
    named = [event["metadata"]["annotations"]["gpuyard.io/beneficiary"] for event in cluster.events("Preempted")]
    assert set(named) == {f"{cluster.namespace}/pod/high"}
    assert {line["task"] for line in scheduler.lines("evict")} == set(gone)
