"""What an eviction leads to: made anew, counted, or the end of the job."""

from __future__ import annotations

import msgspec
import pytest

from gpuyard.worlds.kubernetes.grouping import Grouping
from tests.worlds.kubernetes.manifests import a_pod, an_owner, grouped, owned_by

JOB = "{apiVersion: batch/v1, kind: Job, metadata: {name: j%s}, spec: {%s}}"

IGNORES = "podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}]}"
FAILS_ON_STOP = (
    "podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: NotIn, values: [1]}}, "
    "{action: Ignore, onPodConditions: [{type: DisruptionTarget}]}]}"
)
FAILS_ON_CODE_42 = FAILS_ON_STOP.replace("NotIn, values: [1]", "In, values: [42]")
COUNTS_CODE_143 = FAILS_ON_STOP.replace("FailJob", "Count").replace("NotIn, values: [1]", "In, values: [143]")
COUNTS = "podFailurePolicy: {rules: [{action: Count, onPodConditions: [{type: DisruptionTarget, status: 'True'}]}]}"


def of_a_job(spec: str, metadata: str = "", pod_annotations: dict[str, str] | None = None, **status: int) -> Grouping:
    owner = an_owner(JOB % (metadata, spec), **status)
    return grouped(a_pod("j-x", owner, annotations=pod_annotations), owner)


@pytest.mark.parametrize(
    ("spec", "failed", "left"),
    [
        ("", 0, 6),
        ("", 5, 1),
        ("backoffLimit: 1", 0, 1),
        ("backoffLimit: 3", 1, 2),
        (f"backoffLimit: 0, {IGNORES}", 9, None),
    ],
)
def test_a_job_with_failures_left_may_be_moved(spec: str, failed: int, left: int | None) -> None:
    grouping = of_a_job(spec, failed=failed)
    assert (grouping.recreated, grouping.moves_safely, grouping.evictions_left) == (True, True, left)


@pytest.mark.parametrize(
    ("spec", "failed", "said"),
    [
        ("", 6, "its backoffLimit has none left"),
        ("backoffLimit: 0", 0, "its backoffLimit has none left"),
        (f"backoffLimit: 0, {COUNTS}", 0, "its backoffLimit has none left"),
        (f"backoffLimit: 6, {FAILS_ON_STOP}", 0, "podFailurePolicy has FailJob for pods that are stopped"),
        (f"backoffLimit: 0, {COUNTS_CODE_143}", 0, "its backoffLimit has none left"),
        ("backoffLimitPerIndex: 0", 0, "its backoffLimitPerIndex has none left"),
    ],
)
def test_a_job_that_would_fail_is_not_moved(spec: str, failed: int, said: str) -> None:
    grouping = of_a_job(spec, failed=failed)
    assert not grouping.moves_safely
    assert said in grouping.why_not


def test_a_rule_about_other_exit_codes_changes_nothing() -> None:
    assert of_a_job(f"backoffLimit: 0, {FAILS_ON_CODE_42}").moves_safely


def test_an_index_has_failures_of_its_own() -> None:
    count = "batch.kubernetes.io/job-index-failure-count"
    assert of_a_job("backoffLimitPerIndex: 2", pod_annotations={count: "1"}).evictions_left == 1
    assert not of_a_job("backoffLimitPerIndex: 2", pod_annotations={count: "2"}).moves_safely


def test_a_gang_goes_as_a_whole_so_all_its_pods_count() -> None:
    gang = ", annotations: {kai.scheduler/batch-min-member: '4'}"
    assert of_a_job("parallelism: 4, backoffLimit: 4", gang).moves_safely
    grouping = of_a_job("parallelism: 4, backoffLimit: 3", gang)
    assert grouping.why_not == "the 4 pods of its gang would be 4 failures, and 3 are left"


def test_nobody_makes_the_pods_of_a_suspended_or_deleted_job_anew() -> None:
    assert not of_a_job("suspend: true").recreated
    gone = of_a_job("", ", deletionTimestamp: '2025-03-01T10:00:00Z'")
    assert (gone.recreated, gone.why_not) == (False, "Job j is being deleted and makes no pod anew")


def test_a_job_that_was_not_read_is_not_moved() -> None:
    owner = an_owner(JOB % ("", ""))
    grouping = grouped(a_pod("j-x", owner))
    assert grouping.recreated
    assert grouping.why_not == "Job j has not been read, and may give up after an eviction"


def test_an_owner_that_is_not_the_controller_makes_nothing_anew() -> None:
    owner = an_owner("{apiVersion: example.com/v1, kind: Experiment, metadata: {name: e}}")
    pod = a_pod("p", owner)
    reference = msgspec.structs.replace((pod.metadata.owner_references or [])[0], controller=False)
    metadata = msgspec.structs.replace(pod.metadata, owner_references=[reference])
    grouping = grouped(msgspec.structs.replace(pod, metadata=metadata), owner)
    assert grouping.job_id == "default/experiment/e"
    assert not grouping.recreated


def test_a_job_of_a_job_set_is_judged_by_its_own_limit_and_its_own_pods() -> None:
    above = an_owner(
        """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: s}
spec: {replicatedJobs: [{name: w, replicas: 4, template: {spec: {parallelism: 2, backoffLimit: 2}}}]}
"""
    )
    labels = {"jobset.sigs.k8s.io/replicatedjob-name": "w", "jobset.sigs.k8s.io/job-index": "0"}
    for limit, safe in ((2, True), (1, False)):
        job = owned_by(above, an_owner(JOB % ("", f"parallelism: 2, backoffLimit: {limit}")))
        assert grouped(a_pod("x", job, labels=labels), job, above).moves_safely is safe


# ----------------------------------------------------------------------------------------------------------- Kubeflow

KUBEFLOW = """
apiVersion: kubeflow.org/%s
kind: %s
metadata: {name: k}
spec:
  %s
  %s: {Worker: {replicas: 2%s}}
"""


def worker(kind: str, field: str, policy: str = "", run_policy: str = "", version: str = "v1") -> Grouping:
    more = f", restartPolicy: {policy}" if policy else ""
    run = f"runPolicy: {{{run_policy}}}" if run_policy else ""
    owner = an_owner(KUBEFLOW % (version, kind, run, field, more))
    return grouped(a_pod("k-worker-0", owner, labels={"training.kubeflow.org/replica-type": "worker"}), owner)


@pytest.mark.parametrize(
    ("kind", "field", "policy", "safe"),
    [
        ("PyTorchJob", "pytorchReplicaSpecs", "", True),
        ("PyTorchJob", "pytorchReplicaSpecs", "OnFailure", True),
        ("PyTorchJob", "pytorchReplicaSpecs", "ExitCode", True),
        ("PyTorchJob", "pytorchReplicaSpecs", "Never", False),
        ("JAXJob", "jaxReplicaSpecs", "", False),
        ("JAXJob", "jaxReplicaSpecs", "OnFailure", True),
        ("XGBoostJob", "xgbReplicaSpecs", "OnFailure", False),
        ("XGBoostJob", "xgbReplicaSpecs", "ExitCode", True),
        ("TFJob", "tfReplicaSpecs", "ExitCode", False),
        ("MPIJob", "mpiReplicaSpecs", "", False),
        ("MPIJob", "mpiReplicaSpecs", "ExitCode", True),
    ],
)
def test_a_replica_is_moved_where_its_operator_restarts_it(kind: str, field: str, policy: str, safe: bool) -> None:
    grouping = worker(kind, field, policy)
    assert (grouping.recreated, grouping.moves_safely) == (True, safe)


def test_a_back_off_limit_of_nothing_bears_no_eviction() -> None:
    assert not worker("PyTorchJob", "pytorchReplicaSpecs", run_policy="backoffLimit: 0").moves_safely
    assert worker("PyTorchJob", "pytorchReplicaSpecs", run_policy="backoffLimit: 3").moves_safely
    assert not worker("PyTorchJob", "pytorchReplicaSpecs", run_policy="suspend: true").recreated


def test_workers_of_the_newer_mpi_job_are_moved_while_its_launcher_may_try_again() -> None:
    assert worker("MPIJob", "mpiReplicaSpecs", version="v2beta1").moves_safely
    assert not worker("MPIJob", "mpiReplicaSpecs", run_policy="backoffLimit: 0", version="v2beta1").moves_safely


LWS = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: llama}
spec: {replicas: 1, leaderWorkerTemplate: {size: %s, restartPolicy: %s}}
"""


@pytest.mark.parametrize(
    ("size", "policy", "at", "said"),
    [
        (2, "RecreateGroupOnPodRestart", 0, "makes the whole group anew when its leader goes"),
        (2, "RecreateGroupOnPodRestart", 1, "makes the whole group anew when one of its workers goes"),
        (2, "None", 0, "makes the whole group anew when its leader goes"),
        (2, "None", 1, ""),
        (1, "RecreateGroupOnPodRestart", 0, ""),
    ],
)
def test_a_group_that_is_made_anew_as_a_whole_is_not_moved_and_may_give_way(
    size: int, policy: str, at: int, said: str
) -> None:
    """So does the operator of LeaderWorkerSets, v0.7.0."""
    owner = an_owner(LWS % (size, policy))
    text = "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: llama}, spec: {replicas: 1}}"
    leaders = owned_by(owner, an_owner(text))
    prefix = "leaderworkerset.sigs.k8s.io"
    labels = {f"{prefix}/name": "llama", f"{prefix}/group-index": "0", f"{prefix}/worker-index": str(at)}
    grouping = grouped(a_pod("llama-0", leaders, labels=labels), leaders, owner)
    assert grouping.why_not == (f"LeaderWorkerSet llama {said}" if said else "")
    assert (grouping.recreated, grouping.moves_safely, grouping.costs_work) == (True, not said, False)


@pytest.mark.parametrize(
    ("spec", "failed", "kind", "said", "lost"),
    [
        ("", 0, "worker", "", False),
        ("", 0, "head", "would fail: the head of its RayCluster is not made anew", True),
        ("backoffLimit: 1", 0, "head", "would begin anew with another RayCluster", False),
        ("backoffLimit: 1", 1, "head", "would fail: the head of its RayCluster is not made anew", True),
    ],
)
def test_the_head_of_a_ray_jobs_cluster_is_not_moved(spec: str, failed: int, kind: str, said: str, lost: bool) -> None:
    """KubeRay v1.5.1 leaves a cluster of a RayJob without a head, once it was there."""
    text = "{apiVersion: ray.io/v1, kind: %s, metadata: {name: r}, spec: {%s}}"
    job = an_owner(text % ("RayJob", spec), failed=failed)
    cluster = owned_by(job, an_owner(text % ("RayCluster", "headGroupSpec: {}")))
    grouping = grouped(a_pod("r-x", cluster, labels={"ray.io/node-type": kind}), cluster, job)
    assert said in grouping.why_not
    assert (grouping.moves_safely, grouping.costs_work) == (not said, lost)
