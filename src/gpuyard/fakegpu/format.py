"""The format of a fleet file, declared once: nodes with their GPUs, pools, profiles, tasks and faults.

Place in the flow: tree ─Spot─▶ shape ─**format**─▶ config. `gpuyard schema fleet` prints these declarations, so the
published schema cannot differ from what the reader accepts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gpuyard.files.format import Amount, Count, Duration, Name, Positive, says
from gpuyard.files.schema import schema_of


class MigStrategy(StrEnum):
    """How the slices of a machine are shown to a cluster: not at all, as GPUs, or each by its profile."""

    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


class _Fields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, rename="kebab"):
    """What all parts of a file have in common."""


class PhaseSpec(_Fields):
    """One phase of a profile."""

    time: Annotated[Duration | None, says("How long it lasts; as long as the task, for the last one.", "1h")] = None
    utilization: Annotated[int | str | None, says("Per cent, or a range; 100 unless given.", 80, "10-30")] = None
    memory: Annotated[
        Amount | None,
        says(
            "MiB, with a unit, per cent of the GPU, or a range of these; as in the phase before unless given, "
            "in the first the task's own.",
            "60%",
            "4GiB",
        ),
    ] = None


RepeatSpec = Positive | str


class ProfileSpec(_Fields):
    """Phases, and how often they are gone through."""

    phases: Annotated[list[PhaseSpec], Meta(description="The phases, in their order.", min_length=1)]
    repeat: Annotated[RepeatSpec | None, says("Rounds, or `forever`; 1 unless given.", 5)] = None


PhasesSpec = Annotated[
    list[PhaseSpec], Meta(description="The phases, one or more: [{time: 1h, utilization: 80}].", min_length=1)
]
ProfileField = str | PhasesSpec | ProfileSpec
"""A name under `profiles`, a list of phases, or a map of phases and repeat."""


class HolderSpec(_Fields):
    """The container that holds a GPU."""

    namespace: Annotated[str, says("Its namespace.")] = ""
    pod: Annotated[str, says("Its pod.")] = ""
    container: Annotated[str, says("Its name in the pod.")] = ""


class MetricsSpec(_Fields):
    """The state a GPU starts in, shown as written until something is observed on it."""

    metadata: Annotated[HolderSpec | None, says("Who holds it.")] = None
    utilization: Annotated[Count, says("Per cent, 0 to 100.")] = 0
    fb_used: Annotated[Amount, says("Used memory in MiB, or with a unit.", 5000)] = 0


MigSpec = dict[str, Positive] | list[str]


class WorkFields(_Fields):
    """What holds for GPUs unless one says otherwise."""

    mig: Annotated[
        MigSpec | None, says("MIG instances each GPU is cut into: profile → count, or a list.", {"1g.10gb": 7})
    ] = None
    power_limit: Annotated[Positive | None, says("Watts; the product's default unless given.", 300)] = None
    profile: Annotated[
        ProfileField | None, says("What runs on every GPU from the beginning; nothing unless given.")
    ] = None
    repeat: Annotated[RepeatSpec | None, says("Rounds of that profile, or `forever`; 1 unless given.")] = None


class GpuEntry(WorkFields):
    """One GPU of a node."""

    id: Annotated[str | None, says("Its id, at most 63 characters; made from node and index unless given.")] = None
    gpu_product: Annotated[str | None, says("Another product than that of the node.", "T4")] = None
    gpu_memory: Annotated[Amount | None, says("Another memory than that of the node or product.", 11441)] = None
    metrics: Annotated[MetricsSpec | None, says("The state it starts in.")] = None


class MachineFields(WorkFields):
    """What holds for a whole machine."""

    mig_strategy: Annotated[MigStrategy | None, says("How MIG is shown; that of the file unless given.")] = None
    driver: Annotated[str | None, says("Version of the driver; one that knows the product unless given.")] = None
    cuda: Annotated[str | None, says("Version of CUDA that the driver supports.")] = None
    numa_nodes: Annotated[
        Positive | None, says("Processors its GPUs are spread over; 2 for more than four GPUs unless given.", 2)
    ] = None


class NodeEntry(MachineFields, kw_only=True):
    """A node with its GPUs."""

    gpu_product: Annotated[str, says("The product, by its short or full name.", "Tesla-K80", "A100-80")]
    gpu_memory: Annotated[Amount | None, says("Memory of each GPU in MiB, or with a unit; the product's.", 11441)] = (
        None
    )
    gpus: Annotated[Count | list[GpuEntry], says("The GPUs, one by one, or how many there are.", 8)]


class PoolEntry(MachineFields, kw_only=True):
    """Nodes that are all alike, named after the pool: a100-1, a100-2, ..."""

    nodes: Annotated[
        Count | None,
        says("How many nodes; leave it out in a cluster whose nodes are labelled with the pool.", 100),
    ] = None
    gpus: Annotated[Count | None, says("GPUs on each; 8 unless given.", 8)] = None
    product: Annotated[str, says("The product, by its short or full name.", "A100-80")]
    memory: Annotated[Amount | None, says("Memory of each GPU in MiB, or with a unit; the product's.", "80GiB")] = None


class OnGpuFields(_Fields):
    """Which GPU, and when."""

    node: Annotated[Name, says("The node.", "a100-1")]
    gpu: Annotated[Count | str, says("The GPU, by its index or id; 0 unless given.")] = 0
    at: Annotated[Duration | None, says("How long after the beginning; at once unless given.", "10m")] = None
    for_: Annotated[Duration | None, says("How long; for good unless given.", "5m")] = msgspec.field(
        default=None, name="for"
    )


class TaskEntry(OnGpuFields):
    """Something that runs on a GPU, or somebody who uses it behind the cluster's back."""

    task: Annotated[str | None, says("Its name, once per GPU; task-1, task-2, ... unless given.")] = None
    profile: Annotated[ProfileField | None, says("What it does; 100 % while it runs unless given.")] = None
    repeat: Annotated[RepeatSpec | None, says("Rounds of the profile, or `forever`; 1 unless given.")] = None
    memory: Annotated[Amount | None, says("Its memory in MiB, or with a unit; nine tenths of the GPU.", "4GiB")] = None
    pid: Annotated[Positive | None, says("Its process; without one it is no process anybody sees.")] = None
    command: Annotated[str | None, says("The name of that process.", "python")] = None
    mig: Annotated[Count | None, says("The MIG instance it runs on, where the GPU is cut.")] = None
    metadata: Annotated[HolderSpec | None, says("The container it runs in.")] = None


class FaultEntry(OnGpuFields, kw_only=True):
    """Something that goes wrong with a GPU."""

    fault: Annotated[
        str,
        says(
            "What: unhealthy, xid:79, ecc:uncorrected, off-the-bus, throttle, memory-loss:8GiB, plugin:crash.", "xid:79"
        ),
    ]


class FleetFileSpec(_Fields):
    """A fleet of machines with fake GPUs."""

    mig_strategy: Annotated[MigStrategy | None, says("How MIG is shown: none unless given.")] = None
    nodes: Annotated[dict[Name, NodeEntry] | None, says("Nodes, one by one.")] = None
    pools: Annotated[dict[Name, PoolEntry] | None, says("Many nodes alike.")] = None
    profiles: Annotated[dict[str, ProfileField] | None, says("Profiles that others name.")] = None
    tasks: Annotated[list[TaskEntry] | None, says("What runs, where and when.")] = None
    faults: Annotated[list[FaultEntry] | None, says("What goes wrong, where and when.")] = None


def fleet_schema() -> dict[str, Any]:
    """The published JSON Schema of a fleet file."""
    return schema_of("A fleet of fake GPUs for gpuyard fake", (FleetFileSpec,))
