"""What becomes of a workload when one of its pods is evicted: made anew, counted as a failure, or lost.

Place in the flow: pod and its owners ─**restarts**─▶ grouping. A move is an eviction after which somebody else makes
the pod again, so a pod that nobody makes again is never moved, nor one whose owner would give up. Invariant: what is
not known to be safe is not called safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from gpuyard.worlds.kubernetes.asking import called
from gpuyard.worlds.kubernetes.gangs import LWS_WORKER, RAY_NODE_TYPE, REPLICA_TYPE, follows_its_first
from gpuyard.worlds.kubernetes.objects import Owner, Pod
from gpuyard.worlds.kubernetes.owners import LWS, LWS_KIND, api_group_of
from gpuyard.worlds.kubernetes.raw import count_at, items_at, mapping_at, text_at, whole_number

DISRUPTION: Final = "DisruptionTarget"
"""The condition every evicted pod carries."""

STOPPED_CODES: Final = (143, 137)
"""How a program ends that is asked to stop, or is killed when it does not."""

DEFAULT_BACKOFF_LIMIT: Final = 6
LEFT_ALONE: Final = frozenset({"None", "Default"})
"""Under these restart policies of a LeaderWorkerSet the others of a group stay when a worker goes."""
INDEX_FAILURES: Final = "batch.kubernetes.io/job-index-failure-count"


class Restart(msgspec.Struct, frozen=True, gc=False):
    """What an eviction of a pod leads to."""

    recreated: bool
    """Somebody makes the pod anew."""
    why_not: str = ""
    """Why it should not be evicted for a move; empty: it may."""
    evictions_left: int | None = None
    """How many pods of the workload may be evicted before its owner gives up; None: any number."""
    goes_whole: bool = False
    """Its owner makes the whole group anew when a part of it goes: to evict all of it is no loss, a move is one."""


ALWAYS: Final = Restart(recreated=True)

Rule = Callable[[Owner, Pod], Restart]


def restart_of(pod: Pod, chain: Sequence[Owner]) -> Restart:
    """Judged by the owner next to the pod, then by those above it, which may give up in its place."""
    if not any(reference.controller for reference in pod.metadata.owner_references or ()):
        return Restart(recreated=False, why_not="nobody makes this pod anew")
    for owner in chain:
        if owner.metadata.deletion_timestamp is not None:
            return Restart(recreated=False, why_not=f"{called(owner)} is being deleted and makes no pod anew")
    judged = [_judge(owner, pod) for owner in chain]
    refused = next((one for one in judged if one.why_not), judged[0])
    left = [one.evictions_left for one in judged if one.evictions_left is not None]
    return Restart(judged[0].recreated, refused.why_not, min(left, default=None), refused.goes_whole)


def _judge(owner: Owner, pod: Pod) -> Restart:
    rule = _RULES.get((api_group_of(owner.api_version), owner.kind))
    if rule is not None and owner.spec is None:
        return Restart(recreated=True, why_not=f"{called(owner)} has not been read, and may give up after an eviction")
    return ALWAYS if rule is None else rule(owner, pod)


# ------------------------------------------------------------------------------------------------------------ batch/v1


def _job(owner: Owner, pod: Pod) -> Restart:
    """A Job counts an evicted pod as failed, unless its policy says otherwise, and gives up at its back-off limit."""
    spec, status = owner.spec, owner.status
    if mapping_at(spec).get("suspend") is True:
        return Restart(recreated=False, why_not=f"{called(owner)} is suspended and makes no pod anew")
    ignored = _ignores_disruptions(owner)
    if ignored is not None:
        return ignored
    left = _failures_left(spec, status, pod)
    if left <= 0:
        limit = "backoffLimitPerIndex" if count_at(spec, "backoffLimitPerIndex") is not None else "backoffLimit"
        why = f"{called(owner)} would fail: an eviction counts as a failure, and its {limit} has none left"
        return Restart(recreated=True, why_not=why, evictions_left=0)
    return Restart(recreated=True, evictions_left=left)


def _failures_left(spec: object, status: object, pod: Pod) -> int:
    per_index = count_at(spec, "backoffLimitPerIndex")
    if per_index is not None:
        failed = whole_number((pod.metadata.annotations or {}).get(INDEX_FAILURES, "0")) or 0
        return per_index - failed
    limit = count_at(spec, "backoffLimit")
    return (DEFAULT_BACKOFF_LIMIT if limit is None else limit) - (count_at(status, "failed") or 0)


def _ignores_disruptions(owner: Owner) -> Restart | None:
    """What the Job's policy makes of an evicted pod, by the first rule that matches; None: an ordinary failure."""
    for rule in items_at(owner.spec, "podFailurePolicy", "rules"):
        disrupted = _on_disruption(rule)
        if not disrupted and not any(_on_exit_code(rule, code) for code in STOPPED_CODES):
            continue
        action = text_at(rule, "action")
        if action in ("FailJob", "FailIndex"):
            why = f"{called(owner)} would fail: its podFailurePolicy has {action} for pods that are stopped"
            return Restart(recreated=True, why_not=why, evictions_left=0)
        if action == "Count":
            return None
        if disrupted:
            return ALWAYS
    return None


def _on_disruption(rule: object) -> bool:
    return any(
        text_at(pattern, "type") == DISRUPTION and (text_at(pattern, "status") or "True") == "True"
        for pattern in items_at(rule, "onPodConditions")
    )


def _on_exit_code(rule: object, code: int) -> bool:
    values = items_at(rule, "onExitCodes", "values")
    match text_at(rule, "onExitCodes", "operator"):
        case "In":
            return code in values
        case "NotIn":
            return code not in values
        case _:
            return False


# ------------------------------------------------------------------------------------------------------------ Kubeflow


def _kubeflow(field: str, default: str, restarts: frozenset[str]) -> Rule:
    """An operator that restarts a stopped replica under some restart policies, and fails the job under the others."""

    def rule(owner: Owner, pod: Pod) -> Restart:
        run_policy = mapping_at(owner.spec, "runPolicy")
        if run_policy.get("suspend") is True:
            return Restart(recreated=False, why_not=f"{called(owner)} is suspended and makes no pod anew")
        policy = _restart_policy(owner, pod, field) or default
        if policy not in restarts:
            return Restart(
                recreated=True,
                why_not=f"{called(owner)} would fail: the restartPolicy of its replicas is {policy}",
                evictions_left=0,
            )
        if count_at(run_policy, "backoffLimit") == 0:
            why = f"{called(owner)} would fail: an eviction counts as a failure, and its backoffLimit is 0"
            return Restart(recreated=True, why_not=why, evictions_left=0)
        return ALWAYS

    return rule


def _restart_policy(owner: Owner, pod: Pod, field: str) -> str:
    mine = (pod.metadata.labels or {}).get(REPLICA_TYPE, "").lower()
    for name, replica in mapping_at(owner.spec, field).items():
        if str(name).lower() == mine:
            return text_at(replica, "restartPolicy")
    return ""


def _mpi(owner: Owner, pod: Pod) -> Restart:
    """In the newer version the launcher is a Job that tries again; the older one is an operator like the others."""
    if not owner.api_version.startswith("kubeflow.org/v2"):
        return _MPI_V1(owner, pod)
    limit = count_at(owner.spec, "runPolicy", "backoffLimit")
    if limit == 0:
        why = f"{called(owner)} would fail: its launcher fails with any worker, and its backoffLimit is 0"
        return Restart(recreated=True, why_not=why, evictions_left=0)
    return ALWAYS


# -------------------------------------------------------------------------------------------------------------- JobSet


def _job_set(owner: Owner, pod: Pod) -> Restart:
    """A Job that has a domain of its own stays there: pods that are not where its first one is are ended."""
    if not follows_its_first(pod.metadata.annotations):
        return ALWAYS
    why = f"{called(owner)} keeps each Job in a domain of its own, where its first pod is"
    return Restart(recreated=True, why_not=why, goes_whole=True)


# ----------------------------------------------------------------------------------------------------- LeaderWorkerSet


def _leader_worker_set(owner: Owner, pod: Pod) -> Restart:
    """Workers belong to their leader and go with it; mostly its operator ends the leader when a worker goes, too."""
    template = mapping_at(owner.spec, "leaderWorkerTemplate")
    leads = (pod.metadata.labels or {}).get(LWS_WORKER) == "0"
    if count_at(template, "size") == 1 or (not leads and text_at(template, "restartPolicy") in LEFT_ALONE):
        return ALWAYS
    which = "its leader" if leads else "one of its workers"
    why = f"{called(owner)} makes the whole group anew when {which} goes"
    return Restart(recreated=True, why_not=why, goes_whole=True)


# ----------------------------------------------------------------------------------------------------------------- Ray


def _ray_job(owner: Owner, pod: Pod) -> Restart:
    """Workers are made anew, but a cluster that has lost its head is given up; the job may try with another one."""
    if (pod.metadata.labels or {}).get(RAY_NODE_TYPE) != "head":
        return ALWAYS
    left = (count_at(owner.spec, "backoffLimit") or 0) - (count_at(owner.status, "failed") or 0)
    if left > 0:
        why = f"{called(owner)} would begin anew with another RayCluster: the head of this one is not made anew"
        return Restart(recreated=True, why_not=why, goes_whole=True)
    why = f"{called(owner)} would fail: the head of its RayCluster is not made anew, and its backoffLimit has none left"
    return Restart(recreated=True, why_not=why, evictions_left=0)


_RESTARTED: Final = frozenset({"OnFailure", "Always", "ExitCode"})
_EXIT_CODE: Final = frozenset({"ExitCode"})
_MPI_V1: Final = _kubeflow("mpiReplicaSpecs", "Never", _EXIT_CODE)

_RULES: Final[dict[tuple[str, str], Rule]] = {
    ("batch", "Job"): _job,
    ("kubeflow.org", "PyTorchJob"): _kubeflow("pytorchReplicaSpecs", "OnFailure", _RESTARTED),
    ("kubeflow.org", "JAXJob"): _kubeflow("jaxReplicaSpecs", "Never", _RESTARTED),
    ("kubeflow.org", "PaddleJob"): _kubeflow("paddleReplicaSpecs", "OnFailure", _RESTARTED),
    ("kubeflow.org", "XGBoostJob"): _kubeflow("xgbReplicaSpecs", "Never", _EXIT_CODE),
    # Its operator takes a replica that is being stopped for a failed one, whatever the restart policy.
    ("kubeflow.org", "TFJob"): _kubeflow("tfReplicaSpecs", "Never", frozenset()),
    ("kubeflow.org", "MPIJob"): _mpi,
    ("jobset.x-k8s.io", "JobSet"): _job_set,
    (LWS, LWS_KIND): _leader_worker_set,
    ("ray.io", "RayJob"): _ray_job,
}
