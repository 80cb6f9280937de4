"""Evictions and moves on a real API server: budgets, conditions and events, and pods made anew in the place kept."""

from __future__ import annotations

from time import monotonic, sleep
from typing import Any

import pytest

from gpuyard.worlds.kubernetes import writer
from tests.kube import eventually
from tests.on_kube.faults.cluster import GPUS, KWOK_NODES, Cluster
from tests.on_kube.faults.faulty import part, refuse

HALF = GPUS // 2
SOON_S = 30.0


def add_budget(cluster: Cluster, name: str, least: int, **labels: str) -> None:
    spec = {"minAvailable": least, "selector": {"matchLabels": labels}}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}
    path = f"/apis/policy/v1/namespaces/{cluster.namespace}/poddisruptionbudgets"
    cluster.api.create(path, body)
    eventually(lambda: "disruptionsAllowed" in cluster.api.get(f"{path}/{name}").get("status", {}), "its first count")


def running(cluster: Cluster, *names: str) -> bool:
    return all(cluster.condition(name, "Ready").get("status") == "True" for name in names)


# ------------------------------------------------------------------------------------------------------------ evictions


def test_a_budget_that_allows_nothing_is_honoured_and_others_give_way(cluster: Cluster) -> None:
    proxy = cluster.proxy()
    cluster.inside(proxy)
    kept = [f"kept{number}" for number in range(KWOK_NODES - 1)]
    cluster.add(*kept, gpus=GPUS, labels={"app": "kept"})
    cluster.add("free", gpus=GPUS)
    cluster.all_bound(KWOK_NODES)
    eventually(lambda: running(cluster, *kept, "free"), "readiness of all")
    add_budget(cluster, "b", len(kept), app="kept")
    cluster.add("high", gpus=GPUS, priority="inference")
    cluster.all_bound(["high"])
    assert not cluster.pod("free")
    cluster.add("higher", gpus=GPUS, priority="inference")
    eventually(lambda: cluster.condition("higher", "PodScheduled"), "why it waits")
    sleep(0.5)
    assert running(cluster, *kept)
    assert proxy.count(part("eviction", "kept")) == 0


def test_where_an_eviction_is_refused_for_a_while_others_are_found_and_the_pod_says_that_it_stays(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget that was used up in the meantime, or a webhook."""
    monkeypatch.setattr(writer, "EVICT_MS", 500)
    proxy = cluster.proxy()
    cluster.inside(proxy)
    cluster.add("low1", "low2", gpus=GPUS, quiet=True)
    cluster.all_bound(["low1", "low2"])
    first = proxy.on(refuse(part("eviction"), 429))
    cluster.add("high", gpus=GPUS, quiet=True, priority="inference")
    proxy.saw(part("eviction"))
    refused = proxy.asked[[part("eviction")(asked) for asked in proxy.asked].index(True)].path.split("/")[-2]
    eventually(lambda: cluster.events("EvictionRefused", refused), "an event that says so")
    first.match = part("eviction", refused)
    (other,) = {"low1", "low2"} - {refused}
    eventually(lambda: "deletionTimestamp" in cluster.pod(other)["metadata"], "the eviction of the other", SOON_S)
    said = cluster.condition(refused, writer.GIVES_WAY)
    assert (said["status"], said["reason"]) == ("False", "Stays")
    assert cluster.nominated("high") == cluster.node_of(other)
    cluster.finish(other)
    cluster.all_bound(["high"])


def test_an_evicted_pod_is_told_the_rule_the_beneficiary_and_the_loss_and_goes_with_its_grace(cluster: Cluster) -> None:
    scheduler = cluster.inside()
    cluster.add("low", gpus=GPUS, quiet=True, grace_s=77)
    cluster.add("other", gpus=GPUS, quiet=True, priority="inference")
    cluster.all_bound(["low", "other"])
    cluster.add("high", gpus=GPUS, quiet=True, priority="inference")
    eventually(lambda: "deletionTimestamp" in cluster.pod("low")["metadata"], "its eviction", SOON_S)
    assert cluster.pod("low")["metadata"]["deletionGracePeriodSeconds"] == 77
    beneficiary = f"{cluster.namespace}/pod/high"
    eventually(lambda: cluster.events("Preempted", "low"), "the event")
    (event,) = cluster.events("Preempted", "low")
    for text in (event["note"], cluster.condition("low", writer.GIVES_WAY)["message"]):
        assert beneficiary in text
        assert text.endswith("nobody makes it anew, so that its work is lost")
    eventually(
        lambda: beneficiary in cluster.condition("low", "DisruptionTarget").get("message", ""), "the usual condition"
    )
    assert event["metadata"]["annotations"]["gpuyard.io/beneficiary"] == beneficiary
    (line,) = scheduler.lines("evict")
    assert (line["task"], line["loss"], line["beneficiary"]) == ("low", True, beneficiary)
    cluster.finish("low")
    cluster.all_bound(["high"])


# ---------------------------------------------------------------------------------------------------------------- moves


def fragmented(cluster: Cluster, kind: str, **about: Any) -> None:
    """Half of each quiet node is taken by a pod that its controller would make anew."""
    cluster.add("left", gpus=HALF, quiet=True)
    cluster.all_bound(1)
    for count, name in enumerate(("one", "two"), start=2):
        cluster.owner(kind, name, 1, gpus=HALF, quiet=True, **about)
        cluster.all_bound(count)
    cluster.finish("left")
    eventually(lambda: sorted(cluster.places().values()) == ["quiet-1", "quiet-2"], "half of each")


# A Job makes a pod anew only after ten seconds; the demo, which is tested, too, moves one.
@pytest.mark.parametrize("kind", ["StatefulSet", "ReplicaSet", pytest.param("Job", marks=pytest.mark.long)])
def test_a_moved_pod_is_made_anew_by_its_controller_and_gets_the_place_kept_for_it(cluster: Cluster, kind: str) -> None:
    scheduler = cluster.inside()
    fragmented(cluster, kind)
    cluster.add("big", gpus=GPUS, quiet=True)
    eventually(lambda: leaving(cluster), "a move", SOON_S)
    (moved,) = leaving(cluster)
    (line,) = scheduler.lines("move")
    cluster.add("thief", gpus=HALF, quiet=True)
    eventually(lambda: cluster.events("Moved", moved), "its event")
    cluster.finish(moved)
    cluster.all_bound(["big"])
    eventually(lambda: list(cluster.places().values()).count(str(line["to"])) == 2, "the place that was kept", SOON_S)
    assert cluster.node_of("big") == line["from"]
    assert cluster.node_of("thief") == ""


def leaving(cluster: Cluster) -> list[str]:
    pods = cluster.api.get(cluster.pods)["items"]
    return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" in pod["metadata"]]


def test_jobs_that_an_eviction_would_end_and_pods_nobody_makes_anew_are_not_moved(cluster: Cluster) -> None:
    cluster.inside()
    fragmented(cluster, "Job", spec={"backoffLimit": 0})
    cluster.add("big", gpus=GPUS, quiet=True)
    eventually(lambda: cluster.condition("big", "PodScheduled"), "why it waits")
    sleep(0.5)
    assert leaving(cluster) == []


# --------------------------------------------------------------------------------------------------------------- doomed


POLICY = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


def forbid_binding(cluster: Cluster, name: str) -> str:
    """A policy of the cluster that lets nobody bind this pod."""
    policy = f"no-binding-of-{cluster.namespace}"
    about = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": policy}}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": f"!object.metadata.name.startsWith('{name}')", "message": "doomed by policy"}],
    }
    cluster.api.create(POLICY, {**about, "kind": "ValidatingAdmissionPolicy", "spec": spec})
    bound = {"policyName": policy, "validationActions": ["Deny"]}
    binding = {**about, "kind": "ValidatingAdmissionPolicyBinding", "spec": bound}
    cluster.api.create(f"{POLICY[:-8]}policybindings", binding)
    return policy


def allow_binding(cluster: Cluster, policy: str) -> None:
    for path in (f"{POLICY[:-8]}policybindings", POLICY):
        cluster.api.delete(f"{path}/{policy}")


def test_a_doomed_bind_starves_nobody_and_is_tried_ever_more_seldom(cluster: Cluster) -> None:
    policy = forbid_binding(cluster, "doomed")
    try:
        wait_for_policy(cluster)
        proxy = cluster.proxy()
        cluster.inside(proxy)
        doomed = part("binding", "doomed")
        cluster.add("doomed0", "doomed1", gpus=GPUS)
        proxy.saw(doomed, 2)
        began = monotonic()
        cluster.add(*[f"p{number}" for number in range(10)])
        cluster.all_bound(10)
        assert monotonic() - began < 3
        sleep(max(0.0, 2.0 - (monotonic() - began)))
        assert 4 <= proxy.count(doomed) <= 6, "each after one second, and after two more"
        eventually(lambda: "doomed by policy" in cluster.why("doomed0"), "why it waits")
        assert cluster.events("FailedBinding", "doomed0")
    finally:
        allow_binding(cluster, policy)
    cluster.all_bound(12)


def wait_for_policy(cluster: Cluster) -> None:
    """Until the API server acts by it: nobody is bound by this."""

    def refused() -> bool:
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "doomed"}, "target": {"name": "nowhere"}}
        try:
            cluster.api.create(f"{cluster.pods}/doomed/binding", body)
        except Exception as error:
            return "doomed by policy" in str(error)
        return False

    eventually(refused, "the policy")
