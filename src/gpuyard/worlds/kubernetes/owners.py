"""The kinds of objects that make pods: which of a pod's owners groups it, and where to read one.

Place in the flow: owner references ─**owners**─▶ what to read, and which owner is asked for the group (`gangs`).
Invariant: the answer depends on the chain of owners alone, so all pods of one workload give the same.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from gpuyard.kubeapi.paths import path_of
from gpuyard.model.jobs import TopologyRule
from gpuyard.worlds.kubernetes import gangs
from gpuyard.worlds.kubernetes.asking import Asking, Gang
from gpuyard.worlds.kubernetes.gangs import Shape
from gpuyard.worlds.kubernetes.objects import Metadata, Owner, OwnerReference, Pod
from gpuyard.worlds.kubernetes.priorities import BUILD, INFERENCE, TRAIN
from gpuyard.worlds.kubernetes.topologies import NO_TOPOLOGIES, Topologies

LWS: Final = "leaderworkerset.x-k8s.io"
LWS_KIND: Final = "LeaderWorkerSet"
LWS_VERSION: Final = f"{LWS}/v1"
LWS_NAME: Final = "leaderworkerset.sigs.k8s.io/name"

MAX_OWNERS: Final = 16
"""Longer chains are not followed: somebody made a ring."""
_VERSION: Final = re.compile(r"v[0-9]{1,4}(?:(?:alpha|beta)[0-9]{1,4})?", re.ASCII)
"""Whoever makes a pod may write any text as the version of its owner; only one of an API becomes part of a path."""


class Part(enum.Enum):
    """What an owner has to do with the group of a pod."""

    THROUGH = "through"
    """Nothing: the owner below it decides. Its labels and annotations count where the one below has none."""
    PLAIN = "plain"
    """Groups its pods when it is the topmost."""
    GANG = "gang"
    """Groups its pods wherever it stands: whoever made it does not know which of them must start together."""


class OwnerRule(msgspec.Struct, frozen=True):
    """What is known of one kind."""

    plural: str = ""
    """In paths; empty: not known."""
    part: Part = Part.PLAIN
    shape: Shape = gangs.any_number
    default_class: str = TRAIN
    """The priority class of whoever names none."""


UNKNOWN: Final = OwnerRule()

NO_PLURALS: Final[Mapping[tuple[str, str], str]] = {}

_THROUGH: Final = Part.THROUGH
_GANG: Final = Part.GANG

RULES: Final[dict[tuple[str, str], OwnerRule]] = {
    ("", "ReplicationController"): OwnerRule("replicationcontrollers", shape=gangs.each_alone),
    ("apps", "Deployment"): OwnerRule("deployments", shape=gangs.each_alone, default_class=INFERENCE),
    ("apps", "ReplicaSet"): OwnerRule("replicasets", shape=gangs.each_alone),
    ("apps", "StatefulSet"): OwnerRule("statefulsets", shape=gangs.stateful_set),
    ("apps", "DaemonSet"): OwnerRule("daemonsets", shape=gangs.each_alone),
    ("batch", "Job"): OwnerRule("jobs", shape=gangs.job),
    ("batch", "CronJob"): OwnerRule("cronjobs", _THROUGH),
    ("jobset.x-k8s.io", "JobSet"): OwnerRule("jobsets", _GANG, gangs.job_set),
    ("kubeflow.org", "PyTorchJob"): OwnerRule("pytorchjobs", _GANG, gangs.pytorch_job),
    ("kubeflow.org", "TFJob"): OwnerRule("tfjobs", _GANG, gangs.tf_job),
    ("kubeflow.org", "XGBoostJob"): OwnerRule("xgboostjobs", _GANG, gangs.xgboost_job),
    ("kubeflow.org", "JAXJob"): OwnerRule("jaxjobs", _GANG, gangs.jax_job),
    ("kubeflow.org", "PaddleJob"): OwnerRule("paddlejobs", _GANG, gangs.paddle_job),
    ("kubeflow.org", "MPIJob"): OwnerRule("mpijobs", _GANG, gangs.mpi_job),
    ("kubeflow.org", "Notebook"): OwnerRule("notebooks", default_class=BUILD),
    ("kubeflow.org", "ScheduledWorkflow"): OwnerRule("scheduledworkflows"),
    ("trainer.kubeflow.org", "TrainJob"): OwnerRule("trainjobs", _THROUGH),
    ("ray.io", "RayCluster"): OwnerRule("rayclusters", _GANG, gangs.ray_cluster),
    ("ray.io", "RayJob"): OwnerRule("rayjobs", _THROUGH),
    ("ray.io", "RayService"): OwnerRule("rayservices", _THROUGH),
    (LWS, LWS_KIND): OwnerRule("leaderworkersets", _GANG, gangs.leader_worker_set),
    ("argoproj.io", "Workflow"): OwnerRule("workflows", _THROUGH),
    ("serving.knative.dev", "Service"): OwnerRule("services", default_class=INFERENCE),
    ("machinelearning.seldon.io", "SeldonDeployment"): OwnerRule("seldondeployments"),
    ("kubevirt.io", "VirtualMachine"): OwnerRule("virtualmachines"),
    ("kubevirt.io", "VirtualMachineInstance"): OwnerRule("virtualmachineinstances"),
    ("tekton.dev", "PipelineRun"): OwnerRule("pipelineruns"),
    ("tekton.dev", "TaskRun"): OwnerRule("taskruns"),
    ("workspace.devfile.io", "DevWorkspace"): OwnerRule("devworkspaces"),
    ("egx.nvidia.io", "SPOTRequest"): OwnerRule("spotrequests", default_class=INFERENCE),
}


def owner_rule(kind: str, api_group: str) -> OwnerRule:
    """What is known of a kind; an unknown one groups all its pods, and one of them is enough."""
    return RULES.get((api_group, kind), UNKNOWN)


_TAKEN: Final = frozenset({kind for _, kind in RULES} | {"PodGroup"})
"""Words for jobs that mean these kinds of ours."""


def word_for(owner: Owner) -> str:
    """What jobs of this kind of owner are called: its kind, and its API group where another one has that name."""
    group = api_group_of(owner.api_version)
    own = (group, owner.kind) in RULES or owner.kind not in _TAKEN or not group
    return owner.kind.lower() if own else f"{owner.kind.lower()}.{group}"


def api_group_of(api_version: str) -> str:
    """`apps/v1` → `apps`; the core group is empty."""
    return api_version.rpartition("/")[0]


def rule_of(owner: Owner) -> OwnerRule:
    return owner_rule(owner.kind, api_group_of(owner.api_version))


def owner_path(api_version: str, kind: str, plurals: Mapping[tuple[str, str], str] = NO_PLURALS) -> str | None:
    """Where all objects of a kind are read; None for one whose plural is neither known nor among those given.

    `plurals` are of kinds the cluster was asked about, by apiVersion and kind.
    """
    group, _, version = api_version.rpartition("/")
    plural = owner_rule(kind, group).plural or plurals.get((api_version, kind))
    if not plural or not _VERSION.fullmatch(version):
        return None
    return path_of(plural, group=group, version=version)


def owner_reference(metadata: Metadata) -> OwnerReference | None:
    """Who made an object: its controller, else the first of its owners."""
    references = metadata.owner_references or []
    return next((one for one in references if one.controller), references[0] if references else None)


def chain_of(pod: Pod, owners: Sequence[Owner]) -> tuple[Owner, ...]:
    """A pod's owners, nearest first; one that is named but was not read is there without its fields."""
    chain: list[Owner] = []
    by_uid = {owner.metadata.uid: owner for owner in owners}
    above = owner_reference(pod.metadata)
    while above is not None and len(chain) < MAX_OWNERS:
        owner = by_uid.get(above.uid)
        if owner is None:
            unread = Metadata(name=above.name, namespace=pod.metadata.namespace, uid=above.uid)
            chain.append(Owner(unread, above.kind, above.api_version))
            break
        # A list of objects leaves out what each of them is; the reference says it.
        named = owner if owner.kind else msgspec.structs.replace(owner, kind=above.kind, api_version=above.api_version)
        chain.append(named)
        above = owner_reference(owner.metadata)
    return (*chain, *_leader_worker_set(pod, chain, owners))


def named_set(pod: Pod) -> str:
    """The LeaderWorkerSet that the labels of a pod name. The owners of a worker end at its leader, which is a pod."""
    return (pod.metadata.labels or {}).get(LWS_NAME, "")


def _leader_worker_set(pod: Pod, chain: Sequence[Owner], owners: Sequence[Owner]) -> Iterator[Owner]:
    name = named_set(pod)
    if name and not any(owner.kind == LWS_KIND for owner in chain):
        unread = Metadata(name=name, namespace=pod.metadata.namespace, uid=f"{LWS_KIND}/{name}")
        read = (owner for owner in owners if owner.kind == LWS_KIND and owner.metadata.name == name)
        yield next(read, Owner(unread, LWS_KIND, LWS_VERSION))


def grouping_owner(chain: Sequence[Owner]) -> int | None:
    """The position in the chain of the owner whose pods are the group; None where the pod is on its own."""
    topmost: int | None = None
    for position in reversed(range(len(chain))):
        part = rule_of(chain[position]).part
        if part is Part.GANG:
            return position
        if part is Part.PLAIN and topmost is None:
            topmost = position
    return topmost


def gang_of(
    owner: Owner, pod: Pod, topology: TopologyRule | None = None, topologies: Topologies = NO_TOPOLOGIES
) -> Gang:
    """The group that an owner shapes for one of its pods."""
    return rule_of(owner).shape(Asking(owner, pod, topology, topologies))
