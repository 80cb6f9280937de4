"""Every kind of owner as its users write it: how many of its pods start together, and which of them a pod is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.model.jobs import Job, Request, Task, TaskGroup, TaskState, TopologyRule
from gpuyard.scheduler.gang import Gang as CoreGang
from gpuyard.scheduler.gang import leaves
from gpuyard.worlds.kubernetes.grouping import Grouping, widest
from gpuyard.worlds.kubernetes.objects import Metadata, Owner, Pod
from gpuyard.worlds.kubernetes.owners import RULES, Part, gang_of, grouping_owner, owner_path, owner_rule
from tests.worlds.kubernetes.manifests import a_pod, an_owner, grouped, owned_by, topologies_in


def job_of(*groupings: Grouping) -> Job:
    """The pods of one job, all waiting, as the scheduler sees them."""
    assert len({grouping.job_id for grouping in groupings}) == 1
    tasks = tuple(
        Task(f"t{at}", Request(devices=1), group=grouping.leaf, priority=grouping.task_priority)
        for at, grouping in enumerate(groupings)
    )
    return Job(groupings[0].job_id, groupings[0].queue, tasks, group=widest(one.group for one in groupings))


def starts(*groupings: Grouping) -> list[str] | None:
    """The tasks that start together first, in order; None while some are still to be made."""
    chunk = CoreGang(job_of(*groupings)).next_chunk()
    return None if chunk is None else [task.id for task in chunk.all_tasks()]


# -------------------------------------------------------------------------------------------------------- batch/v1

TRAINING_JOB = """
apiVersion: batch/v1
kind: Job
metadata:
  name: training-job-1
  labels: {runai/queue: project-a}
spec:
  template:
    spec:
      schedulerName: kai-scheduler
      restartPolicy: Never
      containers: [{name: main, image: busybox, resources: {limits: {nvidia.com/gpu: 4}}}]
"""

INDEXED = """
apiVersion: batch/v1
kind: Job
metadata:
  name: sweep
  labels: {kai.scheduler/queue: vision}
  annotations: {kai.scheduler/batch-min-member: "4"}
spec: {completionMode: Indexed, parallelism: 6, completions: 10, backoffLimit: 20}
"""


def index(at: int) -> dict[str, str]:
    return {"batch.kubernetes.io/job-completion-index": str(at)}


def test_a_job_is_one_group_of_which_one_pod_is_enough() -> None:
    owner = an_owner(TRAINING_JOB)
    grouping = grouped(a_pod("training-job-1-x7k2p", owner), owner)
    assert grouping.job_id == "default/job/training-job-1"
    assert (grouping.queue, grouping.queue_from) == ("project-a", "label runai/queue of Job training-job-1")
    assert (grouping.group, grouping.leaf, grouping.wanted) == (TaskGroup(), "", 1)
    assert (grouping.priority, grouping.priority_class, grouping.preemptible) == (50, "train", True)
    assert grouping.recreated
    assert grouping.moves_safely


def test_any_pod_of_a_job_without_indices_takes_over_from_another() -> None:
    owner = an_owner(TRAINING_JOB)
    first, second = (grouped(a_pod(name, owner), owner) for name in ("training-job-1-a", "training-job-1-b"))
    assert first.successor_key == second.successor_key != ""


def test_a_job_says_how_many_of_its_pods_start_together() -> None:
    owner = an_owner(INDEXED)
    pods = [grouped(a_pod(f"sweep-{at}-x", owner, labels=index(at)), owner) for at in range(6)]
    assert pods[0].group == TaskGroup(min_tasks=4)
    assert pods[0].wanted == 6
    assert len({pod.successor_key for pod in pods}) == 6
    assert all(pod.group is pods[0].group for pod in pods)
    assert starts(*pods[:3]) is None, "the gang is not complete yet"
    assert len(starts(*pods) or ()) == 4


def test_the_last_pods_of_a_job_do_not_wait_for_more_than_are_left() -> None:
    owner = an_owner(INDEXED, succeeded=8)
    grouping = grouped(a_pod("sweep-9-x", owner, labels=index(9)), owner)
    assert (grouping.group.min_tasks, grouping.wanted) == (2, 2)


@pytest.mark.parametrize(("text", "minimum", "reason"), [("many", 1, "MinimumIgnored"), ("9", 6, "MinimumTooHigh")])
def test_a_minimum_that_cannot_be_is_noted(text: str, minimum: int, reason: str) -> None:
    owner = an_owner(INDEXED.replace('"4"', f'"{text}"'))
    grouping = grouped(a_pod("sweep-0-x", owner, labels=index(0)), owner)
    assert grouping.group.min_tasks == minimum
    assert [note.reason for note in grouping.notes] == [reason]


def test_the_job_of_a_cron_job_is_the_group() -> None:
    cron = an_owner(
        """
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, labels: {kai.scheduler/queue: nights}}
spec: {schedule: "0 3 * * *"}
"""
    )
    job = owned_by(cron, an_owner("{apiVersion: batch/v1, kind: Job, metadata: {name: nightly-29}, spec: {}}"))
    grouping = grouped(a_pod("nightly-29-x", job), job, cron)
    assert grouping.job_id == "default/job/nightly-29"
    assert (grouping.queue, grouping.queue_from) == ("nights", "label kai.scheduler/queue of CronJob nightly")


# ----------------------------------------------------------------------------------------------------------- apps/v1

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat, labels: {kai.scheduler/queue: serving}}
spec: {replicas: 3}
"""
REPLICA_SET = "{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: chat-6d5}, spec: {replicas: 3}}"


def test_each_pod_of_a_deployment_is_on_its_own_and_not_preempted() -> None:
    deployment = an_owner(DEPLOYMENT)
    replicas = owned_by(deployment, an_owner(REPLICA_SET))
    first, second = (grouped(a_pod(f"chat-6d5-{one}", replicas), replicas, deployment) for one in "ab")
    assert (first.job_id, second.job_id) == ("default/pod/chat-6d5-a", "default/pod/chat-6d5-b")
    assert (first.priority, first.priority_class, first.preemptible) == (125, "inference", False)
    assert first.queue == "serving"
    assert first.successor_key == second.successor_key, "any pod of the ReplicaSet"
    assert first.recreated
    assert first.moves_safely


def test_a_deployment_that_names_a_class_has_that_one() -> None:
    replicas = owned_by(an_owner(DEPLOYMENT), an_owner(REPLICA_SET))
    grouping = grouped(a_pod("chat-6d5-a", replicas, priorityClassName="train"), replicas, an_owner(DEPLOYMENT))
    assert (grouping.priority_class, grouping.preemptible) == ("train", True)


def test_an_owner_that_was_not_read_still_names_the_group() -> None:
    replicas = owned_by(an_owner(DEPLOYMENT), an_owner(REPLICA_SET))
    grouping = grouped(a_pod("chat-6d5-a", replicas, labels={"kai.scheduler/queue": "mine"}), replicas)
    assert (grouping.priority_class, grouping.queue) == ("inference", "mine")


def test_a_replica_set_of_nobody_trains() -> None:
    replicas = an_owner(REPLICA_SET)
    grouping = grouped(a_pod("chat-6d5-a", replicas), replicas)
    assert (grouping.job_id, grouping.priority_class) == ("default/pod/chat-6d5-a", "train")


STATEFUL = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, annotations: {kai.scheduler/min-member: "3"}}
spec: {replicas: 3, podManagementPolicy: %s}
"""


def test_a_stateful_set_is_one_group_whose_pods_keep_their_names() -> None:
    owner = an_owner(STATEFUL % "Parallel")
    grouping = grouped(a_pod("db-1", owner), owner)
    assert (grouping.job_id, grouping.group, grouping.wanted) == ("default/statefulset/db", TaskGroup(min_tasks=3), 3)
    assert grouping.successor_key == "StatefulSet-db/db-1"


def test_pods_that_are_made_one_after_the_other_do_not_wait_for_each_other() -> None:
    owner = an_owner(STATEFUL % "OrderedReady")
    grouping = grouped(a_pod("db-0", owner), owner)
    assert grouping.group == TaskGroup()
    assert [note.reason for note in grouping.notes] == ["MinimumIgnored"]


def test_a_notebook_is_built_in_and_not_preempted() -> None:
    notebook = an_owner("{apiVersion: kubeflow.org/v1beta1, kind: Notebook, metadata: {name: n}, spec: {}}")
    inner = owned_by(notebook, an_owner("{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: n}}"))
    grouping = grouped(a_pod("n-0", inner), inner, notebook)
    assert (grouping.job_id, grouping.priority_class, grouping.preemptible) == ("default/notebook/n", "build", False)


# ---------------------------------------------------------------------------------------------------------- Kubeflow

PYTORCH = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: training-job-3, labels: {runai/queue: project-c}}
spec:
  pytorchReplicaSpecs:
    Master: {replicas: 1, restartPolicy: OnFailure, template: {spec: {containers: [{name: pytorch}]}}}
    Worker: {replicas: 2, restartPolicy: OnFailure, template: {spec: {containers: [{name: pytorch}]}}}
"""


def replica(owner: Owner, kind: str, at: int = 0) -> Pod:
    """A pod as the training operator makes it."""
    labels = {
        "training.kubeflow.org/job-name": owner.metadata.name,
        "training.kubeflow.org/replica-type": kind,
        "training.kubeflow.org/replica-index": str(at),
    }
    if kind in ("master", "launcher"):
        labels["training.kubeflow.org/job-role"] = kind if kind == "launcher" else "master"
    return a_pod(f"{owner.metadata.name}-{kind}-{at}", owner, labels=labels)


def test_a_pytorch_job_starts_whole_its_master_first() -> None:
    owner = an_owner(PYTORCH)
    pods = [grouped(pod, owner) for pod in (replica(owner, "worker", 0), replica(owner, "worker", 1))]
    master = grouped(replica(owner, "master"), owner)
    assert (master.job_id, master.queue, master.wanted) == ("default/pytorchjob/training-job-3", "project-c", 3)
    assert master.group == TaskGroup(min_tasks=3)
    assert starts(*pods) is None
    assert starts(*pods, master) == ["t2", "t0", "t1"]
    assert len({one.successor_key for one in (*pods, master)}) == 3
    assert master.successor_key == "PyTorchJob-training-job-3/master/0"


def test_an_elastic_pytorch_job_starts_with_its_master_and_its_minimum() -> None:
    elastic = PYTORCH.replace("spec:\n  pytorch", "spec:\n  elasticPolicy: {minReplicas: 2}\n  pytorch")
    owner = an_owner(elastic.replace("Worker: {replicas: 2", "Worker: {replicas: 4"))
    workers = [grouped(replica(owner, "worker", at), owner) for at in range(4)]
    master = grouped(replica(owner, "master"), owner)
    assert [(leaf.name, leaf.min_tasks) for leaf in leaves(master.group)] == [("master", 1), ("worker", 1)]
    assert starts(*workers) is None, "not without the master"
    assert starts(*workers, master) == ["t4", "t0"]


def test_an_elastic_job_without_a_master_starts_with_as_many_workers_as_it_needs() -> None:
    owner = an_owner(
        """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: elastic}
spec:
  elasticPolicy: {minReplicas: 2, maxReplicas: 8, rdzvBackend: c10d}
  pytorchReplicaSpecs: {Worker: {replicas: 4, restartPolicy: OnFailure}}
"""
    )
    grouping = grouped(replica(owner, "worker"), owner)
    assert (grouping.group, grouping.wanted) == (TaskGroup(min_tasks=2), 4)


def test_the_scheduling_policy_has_the_last_word_on_how_many() -> None:
    policy = "  elasticPolicy: {minReplicas: 3}\n  runPolicy: {schedulingPolicy: {minAvailable: 2}}\n"
    owner = an_owner(PYTORCH.replace("spec:\n  pytorch", f"spec:\n{policy}  pytorch"))
    assert grouped(replica(owner, "worker"), owner).group.fewest_tasks == 2


@pytest.mark.parametrize(
    ("kind", "field", "types"),
    [
        ("TFJob", "tfReplicaSpecs", {"Chief": 1, "PS": 2, "Worker": 3}),
        ("XGBoostJob", "xgbReplicaSpecs", {"Master": 1, "Worker": 5}),
        ("JAXJob", "jaxReplicaSpecs", {"Worker": 6}),
        ("PaddleJob", "paddleReplicaSpecs", {"Master": 1, "Worker": 5}),
        ("MPIJob", "mpiReplicaSpecs", {"Launcher": 1, "Worker": 5}),
    ],
)
def test_the_other_jobs_of_kubeflow_start_whole(kind: str, field: str, types: dict[str, int]) -> None:
    replicas = ", ".join(f"{name}: {{replicas: {count}}}" for name, count in types.items())
    text = f"{{apiVersion: kubeflow.org/v1, kind: {kind}, metadata: {{name: t}}, spec: {{{field}: {{{replicas}}}}}}}"
    owner = an_owner(text)
    grouping = grouped(replica(owner, "worker"), owner)
    assert (grouping.job_id, grouping.group) == (f"default/{kind.lower()}/t", TaskGroup(min_tasks=6))


MPI_V2 = """
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: allreduce, labels: {kai.scheduler/queue: vision}}
spec:
  slotsPerWorker: 8
  launcherCreationPolicy: %s
  runPolicy: {cleanPodPolicy: Running}
  mpiReplicaSpecs:
    Launcher: {replicas: 1, template: {spec: {containers: [{name: launcher}]}}}
    Worker: {replicas: 2, template: {spec: {containers: [{name: worker}]}}}
"""


def mpi_pods(owner: Owner) -> tuple[list[Grouping], Grouping]:
    """Workers belong to the MPIJob itself; its launcher is made by a Job."""
    role = "training.kubeflow.org/job-role"
    at = "training.kubeflow.org/replica-index"
    workers = [
        grouped(a_pod(f"allreduce-worker-{one}", owner, labels={role: "worker", at: str(one)}), owner)
        for one in range(2)
    ]
    text = "{apiVersion: batch/v1, kind: Job, metadata: {name: allreduce-launcher}, spec: {}}"
    job = owned_by(owner, an_owner(text))
    return workers, grouped(a_pod("allreduce-launcher-x", job, labels={role: "launcher"}), job, owner)


def test_an_mpi_job_starts_with_its_launcher() -> None:
    workers, launcher = mpi_pods(an_owner(MPI_V2 % "AtStartup"))
    assert launcher.job_id == workers[0].job_id == "default/mpijob/allreduce"
    assert starts(*workers) is None
    assert starts(*workers, launcher) == ["t2", "t0", "t1"]


def test_workers_do_not_wait_for_a_launcher_that_waits_for_them() -> None:
    workers, launcher = mpi_pods(an_owner(MPI_V2 % "WaitForWorkersReady"))
    assert starts(*workers) == ["t0", "t1"]
    assert starts(*workers, launcher) == ["t2", "t0", "t1"], "once it is there it belongs to them"
    job = job_of(*workers, launcher)
    running = [Task(task.id, task.request, task.group, TaskState.RUNNING, "n") for task in job.tasks[:2]]
    rest = CoreGang(Job(job.id, "", (*running, job.tasks[2]), group=job.group)).next_chunk()
    assert rest is not None
    assert [task.id for task in rest.all_tasks()] == ["t2"]


def test_a_gang_whose_owner_was_not_read_waits() -> None:
    owner = an_owner(PYTORCH)
    unread = grouped(replica(owner, "worker"))
    assert unread.job_id == "default/pytorchjob/training-job-3"
    assert unread.waits.startswith("PyTorchJob training-job-3 has not been read")
    assert not unread.moves_safely


# -------------------------------------------------------------------------------------------------------------- JobSet

JOB_SET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: paxml, labels: {kai.scheduler/queue: speech}}
spec:
  %s
  replicatedJobs:
    - name: driver
      template: {spec: {parallelism: 1, completions: 1}}
    - name: workers
      replicas: 2
      template: {spec: {parallelism: 3, completions: 3, backoffLimit: 3}}
"""


def job_set_pods(owner: Owner) -> dict[str, Grouping]:
    found = {}
    for name, replicas, count in (("driver", 1, 1), ("workers", 2, 3)):
        for job_at in range(replicas):
            text = f"{{apiVersion: batch/v1, kind: Job, metadata: {{name: paxml-{name}-{job_at}}}, spec: {{}}}}"
            job = owned_by(owner, an_owner(text))
            labels = {
                "jobset.sigs.k8s.io/jobset-name": "paxml",
                "jobset.sigs.k8s.io/replicatedjob-name": name,
                "jobset.sigs.k8s.io/job-index": str(job_at),
            }
            for at in range(count):
                pod = a_pod(f"paxml-{name}-{job_at}-{at}-x", job, labels=labels | index(at))
                found[f"{name}/{job_at}/{at}"] = grouped(pod, job, owner)
    return found


def test_a_job_set_starts_whole() -> None:
    pods = job_set_pods(an_owner(JOB_SET % "failurePolicy: {maxRestarts: 1}"))
    one = pods["workers/1/2"]
    assert (one.job_id, one.queue, one.leaf, one.wanted) == ("default/jobset/paxml", "speech", "workers/1", 7)
    assert one.successor_key == "JobSet-paxml/workers/1/2"
    assert [(leaf.name, leaf.min_tasks) for leaf in leaves(one.group)] == [
        ("driver/0", 1),
        ("workers/0", 3),
        ("workers/1", 3),
    ]
    assert all(pod.group is one.group for pod in pods.values())
    everyone = list(pods.values())
    assert starts(*everyone[:-1]) is None
    assert len(starts(*everyone) or ()) == 7


def test_a_job_set_in_order_starts_with_what_is_there() -> None:
    pods = job_set_pods(an_owner(JOB_SET % "startupPolicy: {startupPolicyOrder: InOrder}"))
    assert starts(pods["driver/0/0"]) == ["t0"]
    workers = [pod for name, pod in pods.items() if name.startswith("workers")]
    assert starts(*workers[:3]) is None
    assert len(starts(*workers) or ()) == 6


def test_jobs_that_depend_on_others_are_not_waited_for() -> None:
    """As the runtimes of a TrainJob have it: what prepares the data is done before the trainer is made."""
    text = JOB_SET.replace(
        "      replicas: 2", "      dependsOn: [{name: driver, status: Complete}]\n      replicas: 2"
    )
    pods = job_set_pods(an_owner(text % "failurePolicy: {maxRestarts: 1}"))
    assert starts(pods["driver/0/0"]) == ["t0"]


def test_a_pod_of_a_job_that_its_job_set_does_not_have_waits_and_says_why() -> None:
    pods = job_set_pods(an_owner((JOB_SET % "suspend: false").replace("replicas: 2", "replicas: 1")))
    assert pods["workers/0/0"].waits == ""
    assert pods["workers/1/0"].waits == 'JobSet paxml has no Job "workers" with the index 1 that its labels name'


def test_a_replicated_job_may_say_its_own_minimum_and_place() -> None:
    text = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: s}
spec:
  replicatedJobs:
    - name: w
      replicas: 1
      template:
        metadata:
          annotations:
            kai.scheduler/batch-min-member: "2"
            kai.scheduler/topology: racks
            kai.scheduler/topology-required-placement: rack
        spec: {parallelism: 4}
"""
    racks = "{kind: Topology, metadata: {name: racks}, spec: {levels: [{nodeLabel: example.com/rack, alias: rack}]}}"
    owner = an_owner(text)
    gang = gang_of(owner, a_pod(), topologies=topologies_in(racks))
    (leaf,) = leaves(gang.group)
    assert leaf == TaskGroup("w/0", min_tasks=2, topology=TopologyRule("racks", "example.com/rack"))


EXCLUSIVE_SET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train%s}
spec:
  replicatedJobs:
    - {name: driver, replicas: 1, template: {spec: {parallelism: 1, completions: 1}}}
    - {name: workers, replicas: 2, template: {%s spec: {parallelism: 3, completions: 3}}}
"""
EXCLUSIVELY = "annotations: {alpha.jobset.sigs.k8s.io/exclusive-topology: rack}"


def exclusive_pod(
    owner: Owner, name: str, job: int, index: int, *, exclusive: bool = True, backoff_limit: int = 6
) -> Grouping:
    """With what JobSet v0.10.1 and the Job controller write on it."""
    text = "{apiVersion: batch/v1, kind: Job, metadata: {name: train-%s-%s}, spec: {backoffLimit: %s}}"
    above = owned_by(owner, an_owner(text % (name, job, backoff_limit)))
    prefix = "jobset.sigs.k8s.io"
    named = {
        f"{prefix}/global-replicas": "3",
        f"{prefix}/group-name": "default",
        f"{prefix}/job-index": str(job),
        f"{prefix}/job-key": "bfcf5ebea76efcf5a9add9af4c26c7d637c630a1",
        f"{prefix}/jobset-name": "train",
        f"{prefix}/replicatedjob-name": name,
        f"{prefix}/restart-attempt": "0",
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    placed = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"} if exclusive else {}
    pod = a_pod(f"train-{name}-{job}-{index}-x", above, labels=named, annotations={**named, **placed})
    return grouped(pod, above, owner)


@pytest.mark.parametrize("at", ["set", "job"])
def test_jobs_with_a_domain_of_their_own_start_with_their_first_pods_then_as_a_whole(at: str) -> None:
    """No other pod of such a Job is made before its first one has a place."""
    texts = (f", {EXCLUSIVELY}", "") if at == "set" else ("", f"metadata: {{{EXCLUSIVELY}}},")
    owner = an_owner(EXCLUSIVE_SET % texts)
    driver = exclusive_pod(owner, "driver", 0, 0, exclusive=at == "set")
    first, other = (exclusive_pod(owner, "workers", job, 0) for job in (0, 1))
    assert starts(driver, first) is None
    assert starts(driver, first, other) == ["t0", "t1", "t2"]
    rest = [exclusive_pod(owner, "workers", job, index) for job in (0, 1) for index in (1, 2)]
    assert starts(driver, first, other, *rest[:3]) is None
    assert len(starts(driver, first, other, *rest) or ()) == 7
    assert first.why_not == "JobSet train keeps each Job in a domain of its own, where its first pod is"
    assert not first.costs_work
    soon_failed = exclusive_pod(owner, "workers", 0, 1, backoff_limit=2)
    assert soon_failed.why_not == "the 3 pods of its gang would be 3 failures, and 2 are left"
    assert soon_failed.costs_work


def test_jobs_whose_nodes_are_labelled_beforehand_start_as_a_whole_at_once() -> None:
    strategy = EXCLUSIVELY.replace("rack}", "rack, alpha.jobset.sigs.k8s.io/node-selector: 'true'}")
    owner = an_owner(EXCLUSIVE_SET % (f", {strategy}", ""))
    assert exclusive_pod(owner, "workers", 0, 0).group.fewest_tasks == 7


# ----------------------------------------------------------------------------------------------------------------- Ray

RAY = """
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: tune, labels: {kai.scheduler/queue: vision, ray.io/priority-class-name: build}}
spec:
  headGroupSpec: {rayStartParams: {}, template: {spec: {containers: [{name: ray-head}]}}}
  workerGroupSpecs:
    - {groupName: gpu, replicas: 3, minReplicas: 1, maxReplicas: 5, numOfHosts: 2}
    - {groupName: cpu, replicas: 2, minReplicas: 0, maxReplicas: 4}
    - {groupName: spare, replicas: 0, minReplicas: 0, maxReplicas: 4}
"""


def ray_pod(owner: Owner, group: str, name: str) -> Grouping:
    node_type = "head" if group == "headgroup" else "worker"
    labels = {"ray.io/cluster": "tune", "ray.io/group": group, "ray.io/node-type": node_type}
    return grouped(a_pod(name, owner, labels=labels), owner)


def test_a_ray_cluster_starts_with_its_head_and_the_minimum_of_each_group() -> None:
    owner = an_owner(RAY)
    head = ray_pod(owner, "headgroup", "tune-head")
    assert (head.job_id, head.leaf, head.wanted) == ("default/raycluster/tune", "headgroup", 9)
    assert [(leaf.name, leaf.min_tasks) for leaf in leaves(head.group)] == [
        ("headgroup", 1),
        ("gpu", 2),
        ("cpu", 2),
        ("spare", 0),
    ]
    assert (head.priority_class, head.preemptible) == ("build", False)
    gpu = [ray_pod(owner, "gpu", f"gpu-{at}") for at in range(6)]
    cpu = [ray_pod(owner, "cpu", f"cpu-{at}") for at in range(2)]
    assert starts(head, *gpu) is None
    started = starts(head, *gpu, *cpu)
    assert started is not None
    assert len(started) == 5
    assert {"t0", "t7", "t8"} <= set(started)
    assert gpu[0].successor_key == gpu[5].successor_key != cpu[0].successor_key


@pytest.mark.parametrize(
    ("replicas", "made", "minimum"),
    [
        ("replicas: 3, minReplicas: 0, maxReplicas: 1", 1, 1),
        ("replicas: 3, minReplicas: 3, maxReplicas: 2", 2, 2),
        ("minReplicas: 2", 2, 2),
        ("replicas: 4, minReplicas: 1, maxReplicas: 3, numOfHosts: 2", 6, 2),
    ],
)
def test_no_more_workers_of_ray_are_waited_for_than_are_made(replicas: str, made: int, minimum: int) -> None:
    """As KubeRay v1.5.1 counts them."""
    text = "{apiVersion: ray.io/v1, kind: RayCluster, metadata: {name: tune}, spec: {workerGroupSpecs: [%s]}}"
    head = ray_pod(an_owner(text % f"{{groupName: g, {replicas}}}"), "headgroup", "tune-head")
    assert (head.wanted, [leaf.min_tasks for leaf in leaves(head.group)]) == (1 + made, [1, minimum])


def test_the_cluster_of_a_ray_job_is_the_group_and_its_submitter_another() -> None:
    job = an_owner("{apiVersion: ray.io/v1, kind: RayJob, metadata: {name: j, labels: {project: p}}, spec: {}}")
    cluster = owned_by(job, an_owner(RAY.replace("kai.scheduler/queue: vision, ", "")))
    head = grouped(a_pod("h", cluster, labels={"ray.io/node-type": "head"}), cluster, job)
    assert (head.job_id, head.leaf, head.queue) == ("default/raycluster/tune", "headgroup", "p")
    submitter = owned_by(job, an_owner("{apiVersion: batch/v1, kind: Job, metadata: {name: j-x}, spec: {}}"))
    assert grouped(a_pod("j-x-y", submitter), submitter, job).job_id == "default/job/j-x"


# ------------------------------------------------------------------------------------------------------ LeaderWorkerSet

LWS = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: llama, labels: {kai.scheduler/queue: serving}}
spec:
  replicas: 2
  startupPolicy: %s
  leaderWorkerTemplate: {size: 3, restartPolicy: RecreateGroupOnPodRestart}
"""


def lws_labels(group: int, worker: int) -> dict[str, str]:
    prefix = "leaderworkerset.sigs.k8s.io"
    return {f"{prefix}/name": "llama", f"{prefix}/group-index": str(group), f"{prefix}/worker-index": str(worker)}


def lws_pods(owner: Owner, group: int) -> list[Grouping]:
    """The leader belongs to a set of leaders; its workers to a set that belongs to the leader."""
    text = "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: %s}, spec: {replicas: 2}}"
    leaders = owned_by(owner, an_owner(text % "llama"))
    leader = a_pod(f"llama-{group}", leaders, labels=lws_labels(group, 0))
    as_owner = Owner(leader.metadata, "Pod", "v1")
    workers = owned_by(as_owner, an_owner(text % f"llama-{group}"))
    pods = [a_pod(f"llama-{group}-{at}", workers, labels=lws_labels(group, at)) for at in (1, 2)]
    chain = (workers, as_owner, leaders, owner)
    return [grouped(leader, leaders, owner), *(grouped(pod, *chain) for pod in pods)]


def test_each_replica_of_a_leader_worker_set_is_a_gang() -> None:
    owner = an_owner(LWS % "LeaderCreated")
    first, second = lws_pods(owner, 0), lws_pods(owner, 1)
    assert {one.job_id for one in first} == {"default/leaderworkerset/llama-0"}
    assert {one.job_id for one in second} == {"default/leaderworkerset/llama-1"}
    assert first[1].queue == "serving"
    assert first[0].group == TaskGroup(min_tasks=3)
    assert starts(*first[:2]) is None
    assert starts(first[1], first[2], first[0]) == ["t2", "t0", "t1"], "the leader first"
    assert len({one.successor_key for one in (*first, *second)}) == 6


def test_a_leader_that_must_be_ready_first_does_not_wait_for_its_workers() -> None:
    leader, *workers = lws_pods(an_owner(LWS % "LeaderReady"), 0)
    assert starts(leader) == ["t0"]
    assert starts(leader, workers[0]) is None
    assert starts(leader, *workers) == ["t0", "t1", "t2"]


def test_a_leader_that_chooses_the_domain_of_its_group_does_not_wait_for_its_workers() -> None:
    exclusive = "name: llama, annotations: {leaderworkerset.sigs.k8s.io/exclusive-topology: rack}"
    leader, *workers = lws_pods(an_owner((LWS % "LeaderCreated").replace("name: llama", exclusive)), 0)
    assert starts(leader) == ["t0"]
    assert starts(leader, workers[0]) is None
    assert starts(leader, *workers) == ["t0", "t1", "t2"]


def real_worker(uid_of_leader: str = "77a8f352") -> tuple[Pod, Owner]:
    """As LeaderWorkerSet v0.7.0 makes it: it has a set of its own, which belongs to the leader, which is a pod."""
    text = "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: llama-0}, spec: {replicas: 2}}"
    workers = owned_by(Owner(Metadata(name="llama-0", uid=uid_of_leader), "Pod", "v1"), an_owner(text))
    prefix = "leaderworkerset.sigs.k8s.io"
    labels = {
        "apps.kubernetes.io/pod-index": "1",
        "controller-revision-hash": "llama-0-6fd7df5dc4",
        f"{prefix}/group-key": "c64651e2dc36faeae2eea7f1bc984c8f9688432f",
        f"{prefix}/template-revision-hash": "859d4567f8",
        "statefulset.kubernetes.io/pod-name": "llama-0-1",
        **lws_labels(0, 1),
    }
    annotations = {f"{prefix}/leader-name": "llama-0", f"{prefix}/size": "3"}
    return a_pod("llama-0-1", workers, labels=labels, annotations=annotations, schedulerName="gpuyard"), workers


def test_a_worker_knows_its_set_by_label_where_the_leader_is_not_read() -> None:
    owner = an_owner(LWS % "LeaderCreated")
    pod, workers = real_worker()
    grouping = grouped(pod, workers)
    assert (grouping.job_id, grouping.group) == (lws_pods(owner, 0)[0].job_id, TaskGroup(min_tasks=3))
    assert grouping.waits == ""


def test_a_worker_has_the_queue_and_the_startup_policy_of_the_set_its_label_names() -> None:
    owner = an_owner(LWS % "LeaderReady")
    pod, workers = real_worker()
    assert grouped(pod, workers, owner) == lws_pods(owner, 0)[1]


# ------------------------------------------------------------------------------------------------------ everything else


def test_a_bare_pod_is_its_own_group_and_nobody_makes_it_anew() -> None:
    grouping = grouped(a_pod("alone"))
    assert (grouping.job_id, grouping.group, grouping.queue) == ("default/pod/alone", TaskGroup(), "default-queue")
    assert (grouping.recreated, grouping.moves_safely, grouping.successor_key) == (False, False, "")
    assert grouping.why_not == "nobody makes this pod anew"


def test_any_other_owner_is_one_group_of_which_one_pod_is_enough() -> None:
    owner = an_owner("{apiVersion: example.com/v1, kind: Experiment, metadata: {name: e, labels: {project: p}}}")
    inner = owned_by(owner, an_owner("{apiVersion: batch/v1, kind: Job, metadata: {name: e-1}, spec: {}}"))
    first, second = grouped(a_pod("e-1-x", inner), inner, owner), grouped(a_pod("e-y", owner), owner)
    assert first.job_id == second.job_id == "default/experiment/e"
    assert (first.group, first.queue) == (TaskGroup(), "p")


def test_a_gang_stays_one_below_an_owner_that_knows_nothing_of_gangs() -> None:
    above = an_owner("{apiVersion: workload.codeflare.dev/v1beta2, kind: AppWrapper, metadata: {name: w}}")
    owner = owned_by(above, an_owner(PYTORCH))
    grouping = grouped(replica(owner, "worker"), owner, above)
    assert (grouping.job_id, grouping.group.min_tasks) == ("default/pytorchjob/training-job-3", 3)


def test_a_pod_below_a_workflow_is_its_own_group_with_the_labels_of_the_workflow() -> None:
    text = "{apiVersion: argoproj.io/v1alpha1, kind: Workflow, metadata: {name: w, labels: {kai.scheduler/queue: q}}}"
    owner = an_owner(text)
    grouping = grouped(a_pod("w-step", owner), owner)
    assert (grouping.job_id, grouping.queue) == ("default/pod/w-step", "q")


def test_executors_are_in_the_group_of_the_pod_that_drives_them() -> None:
    driver = a_pod("pi-driver")
    as_owner = Owner(driver.metadata, "Pod", "v1")
    executor = grouped(a_pod("pi-exec-1", as_owner), as_owner)
    assert executor.job_id == grouped(driver).job_id == "default/pod/pi-driver"


def test_where_owners_are_read() -> None:
    assert owner_path("batch/v1", "Job") == "/apis/batch/v1/jobs"
    assert owner_path("kubeflow.org/v2beta1", "MPIJob") == "/apis/kubeflow.org/v2beta1/mpijobs"
    assert owner_path("v1", "ReplicationController") == "/api/v1/replicationcontrollers"
    assert owner_path("example.com/v1", "Experiment") is None
    plurals = {("example.com/v1", "Experiment"): "experiments"}
    assert owner_path("example.com/v1", "Experiment", plurals) == "/apis/example.com/v1/experiments"
    assert owner_path("v1", "Pod") is None, "all pods are read anyway"


@pytest.mark.parametrize("version", ["", "v中", "v1\r\nX: y", "v1 x", "v1?watch=true", "..", "1", "v1%2f", "v1٣"])
def test_whoever_names_an_owner_cannot_make_a_path_of_it_that_leads_elsewhere(version: str) -> None:
    assert owner_path(f"batch/{version}", "Job") is None


def test_a_ring_of_owners_ends() -> None:
    one = an_owner("{apiVersion: example.com/v1, kind: Ring, metadata: {name: one}}")
    two = owned_by(one, an_owner("{apiVersion: example.com/v1, kind: Ring, metadata: {name: two}}"))
    one = owned_by(two, one)
    assert grouped(a_pod("p", one), one, two).job_id.startswith("default/ring/")


# ---------------------------------------------------------------------------------------------------------- properties

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    "replicas",
    "parallelism",
    "completions",
    "suspend",
    "backoffLimit",
    "replicatedJobs",
    "template",
    "spec",
    "name",
    "metadata",
    "annotations",
    "pytorchReplicaSpecs",
    "mpiReplicaSpecs",
    "tfReplicaSpecs",
    "Master",
    "Worker",
    "Launcher",
    "runPolicy",
    "schedulingPolicy",
    "minAvailable",
    "elasticPolicy",
    "minReplicas",
    "workerGroupSpecs",
    "headGroupSpec",
    "groupName",
    "numOfHosts",
    "leaderWorkerTemplate",
    "size",
    "startupPolicy",
    "startupPolicyOrder",
    "launcherCreationPolicy",
    "podFailurePolicy",
    "rules",
    "onPodConditions",
    "onExitCodes",
    "values",
    "operator",
    "action",
    "type",
    "restartPolicy",
    "podManagementPolicy",
    "kai.scheduler/batch-min-member",
]
WORDS = st.sampled_from(
    ["InOrder", "LeaderReady", "WaitForWorkersReady", "Parallel", "In", "NotIn", "FailJob", "Ignore", "3", "-1", ""]
)
SPEC = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.integers() | WORDS | JSON,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)
OBJECT = st.dictionaries(st.sampled_from(FIELDS), SPEC, max_size=5)
TEXTS = st.dictionaries(
    st.sampled_from(
        [
            "kai.scheduler/batch-min-member",
            "kai.scheduler/min-member",
            "kai.scheduler/task-priority",
            "kai.scheduler/preemptibility",
            "kai.scheduler/preemption-delay",
            "kai.scheduler/staleness-grace-period",
            "kai.scheduler/topology",
            "leaderworkerset.sigs.k8s.io/size",
            "leaderworkerset.sigs.k8s.io/worker-index",
            "leaderworkerset.sigs.k8s.io/name",
            "training.kubeflow.org/replica-type",
            "ray.io/group",
            "jobset.sigs.k8s.io/replicatedjob-name",
            "jobset.sigs.k8s.io/job-index",
            "training.kubeflow.org/replica-index",
            "training.kubeflow.org/job-role",
            "kai.scheduler/segment-size",
            "kai.scheduler/segment-topology-required-placement",
            "batch.kubernetes.io/job-index-failure-count",
        ]
    ),
    st.text(max_size=6) | WORDS,
    max_size=4,
)


@given(st.sampled_from(sorted(RULES)), OBJECT | st.none(), OBJECT | st.none(), TEXTS, TEXTS)
def test_no_spec_is_too_odd(
    kind: tuple[str, str],
    spec: dict[str, object] | None,
    status: dict[str, object] | None,
    labels: dict[str, str],
    annotations: dict[str, str],
) -> None:
    version = f"{kind[0]}/v1" if kind[0] else "v1"
    owner = Owner(Metadata("o", "default", "u", annotations=annotations), kind[1], version, spec, status)
    grouping = grouped(a_pod("p", owner, labels=labels, annotations=annotations), owner)
    names = [leaf.name for leaf in leaves(grouping.group)]
    assert len(names) == len(set(names))
    assert grouping.waits or grouping.group.leaf or grouping.leaf in names, "no pod waits without a word"
    assert grouping.group.fewest_tasks <= 100_000
    assert grouping.moves_safely == (not grouping.why_not)


@given(st.lists(st.sampled_from(sorted(RULES)), max_size=4))
def test_the_grouping_owner_is_a_gang_or_the_topmost_that_groups_at_all(kinds: list[tuple[str, str]]) -> None:
    chain = [Owner(Metadata(str(at)), kind, f"{group}/v1") for at, (group, kind) in enumerate(kinds)]
    at = grouping_owner(chain)
    parts = [owner_rule(kind, group).part for group, kind in kinds]
    if at is None:
        assert all(part is Part.THROUGH for part in parts)
    elif parts[at] is Part.PLAIN:
        assert Part.GANG not in parts
        assert Part.PLAIN not in parts[at + 1 :]
    else:
        assert Part.GANG not in parts[at + 1 :]
