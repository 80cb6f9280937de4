"""Several schedulers at once: one leads, the others wait, and whoever was deposed without knowing it writes nothing."""

from __future__ import annotations

from time import monotonic, sleep

from tests.kube import eventually
from tests.on_kube.faults.cluster import GPUS, SYSTEM, Cluster
from tests.on_kube.faults.faulty import Request, hang, part

BINDING = part("binding")
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/gpuyard-scheduler"


def holder(cluster: Cluster) -> str:
    return str(cluster.api.get(LEASE)["spec"].get("holderIdentity")) if cluster.api.answers(LEASE) else ""


def writes(asked: Request) -> bool:
    """Everything but the struggle for the lease."""
    return asked.writes and "/leases" not in asked.path


def test_one_leads_and_who_was_stopped_for_too_long_writes_nothing_more(cluster: Cluster) -> None:
    ways = {name: cluster.proxy() for name in ("first", "second")}
    first = cluster.outside(ways["first"], "first")
    second = cluster.outside(ways["second"], "second")
    eventually(lambda: holder(cluster) in ways, "somebody who leads")
    if holder(cluster) == "second":
        first, second = second, first
        ways = {"first": ways["second"], "second": ways["first"]}
    # Of what the leader does now the other hears nothing.
    ways["second"].watched("/pods")
    ways["second"].mute("/pods")
    cluster.add("a", "b", "c", gpus=GPUS)
    cluster.all_bound(["a", "b", "c"])
    assert ways["second"].count(writes) == 0
    # It has decided, and is stopped before anything is written.
    ways["first"].on(hang(BINDING))
    cluster.add("d")
    ways["first"].saw(BINDING, 4)
    first.pause()
    eventually(lambda: holder(cluster) == second.name, "the lead of the second", 30)
    cluster.add("e")
    cluster.all_bound(["d", "e"])
    # Whoever begins to lead has seen what was bound last, however silent its watch was.
    cluster.add("late", gpus=GPUS)
    eventually(lambda: "Unschedulable" in cluster.why("late"), "why it waits")
    # What hangs is dropped, and would be tried again.
    ways["first"].calm()
    before = ways["first"].count(writes)
    first.resume()
    eventually(lambda: f"{first.name} leads no longer" in first.said(), "that the first knows")
    sleep(0.5)
    assert ways["first"].count(writes) == before
    # Who ends lets the next lead at once.
    began = monotonic()
    second.stop()
    eventually(lambda: holder(cluster) == first.name, "the lead of the first again", 30)
    assert monotonic() - began < 3
    cluster.add("f")
    cluster.all_bound(["f"])
