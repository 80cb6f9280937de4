"""The document `gpuyard kube node` publishes of its node: which devices there are, how they are, and who holds which.

Place in the flow: node part ─document_of─▶ ConfigMap ─**devices**, read_devices─▶ nodes, picture. Pure. Invariants:
what is read back is what was written; of a document that contradicts itself nothing is taken, and no ConfigMap,
whoever wrote it, raises an exception.

The kubelet chooses devices and tells nobody but programs on its own node: that is what this is for. It says nothing of
how many devices a node may hand out now, which the node's own status does (`allocatable`): a device plugin that is
started anew leaves its devices healthy here, and the kubelet without any for as long as that takes.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from gpuyard.kubeapi.names import name_about
from gpuyard.worlds.kubernetes.objects import ConfigMap

NAMESPACE: Final = "gpuyard-system"
"""Where the scheduler and what it reads are, unless somebody says otherwise."""
KEY: Final = "devices.json"
"""The entry of the ConfigMap the document stands in."""
LABEL: Final = "gpuyard.io/devices"
LABEL_VALUE: Final = "true"
SELECTOR: Final = f"{LABEL}={LABEL_VALUE}"
NODE_ANNOTATION: Final = "gpuyard.io/node"
"""Of which node it is; the name of a node may be longer than a label can hold."""
GPUS: Final = ("nvidia.com/gpu", "amd.com/gpu")
"""Resources of which one is a whole GPU."""
GPU: Final = GPUS[0]
MIG: Final = "nvidia.com/mig-"
"""How the name of a resource begins of which one is a slice."""
MAX_DEVICES: Final = 1024
MAX_HELD: Final = 4 * MAX_DEVICES
"""Containers: a device can be one's of each, where those before it in the pod have ended."""
MAX_DOCUMENT_BYTES: Final = 960 << 10
"""The API server takes 1 MiB for a ConfigMap as a whole."""

Memory = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]


class PublishedDevice(msgspec.Struct, frozen=True, gc=False):
    """One device as the kubelet hands it out: a GPU, a MIG slice, or a replica of a GPU that is shared in time."""

    id: str
    healthy: bool = True
    """False: the kubelet gives it to nobody, or NVML says it is ill. Whoever holds it still does."""
    model: str = ""
    """As the label nvidia.com/gpu.product has it; empty where no driver on the node tells, and the labels may."""
    memory_mib: Memory = 0
    numa: Number = 0
    nvlink: Number = 0
    """Devices of a node with the same number, if it is not 0, reach each other directly."""
    resource: str = GPU
    """Under which name pods ask for it."""
    gpu: str = ""
    """The GPU it is a part of; empty where it is a whole one, or nobody knows."""


class Held(msgspec.Struct, frozen=True, gc=False):
    """What one container has. Containers of one pod that do not run at once may have the same device."""

    namespace: str
    pod: str
    container: str
    devices: tuple[str, ...]
    uid: str = ""
    """The pod's; empty where the API server had not told of it yet."""


class NodeDevices(msgspec.Struct, frozen=True):
    """One node. A device's place in the list is its index; every device that somebody holds is in it."""

    node: str
    devices: tuple[PublishedDevice, ...] = ()
    held: tuple[Held, ...] = ()
    at: str = ""
    """When it was written, as Kubernetes writes times. Only what has changed is written, so it may be long ago."""

    def gpus(self) -> tuple[PublishedDevice, ...]:
        """The whole GPUs, in the order of their index among those; slices are the rest."""
        return tuple(device for device in self.devices if device.resource in GPUS)


def indices_held(devices: NodeDevices, namespace: str, pod: str) -> tuple[int, ...]:
    """Which whole GPUs a pod has, by their place among those; none where it has anything else, too."""
    at = {device.id: index for index, device in enumerate(devices.gpus())}
    found = {id for held in devices.held if (held.namespace, held.pod) == (namespace, pod) for id in held.devices}
    return tuple(sorted(at[id] for id in found)) if found <= at.keys() else ()


class Unreadable(msgspec.Struct, frozen=True):
    """A ConfigMap that says nothing one could use, and why."""

    config_map: str
    why: str

    def __str__(self) -> str:
        return f"ConfigMap {self.config_map} tells nothing of its node's devices: {self.why}"


_DECODER: Final = msgspec.json.Decoder(NodeDevices)


def is_gpu_resource(name: str) -> bool:
    """Whether this is about devices of that kind."""
    return name in GPUS or name.startswith(MIG)


def map_name(node: str) -> str:
    """The ConfigMap of a node."""
    return name_about("gpuyard-devices", node)


def document_of(devices: NodeDevices) -> str:
    """What stands under the key: the same text for the same devices, a line each for those who look at it."""
    fields = (f'"{name}": {_lines(getattr(devices, name))}' for name in devices.__struct_fields__)
    return "{" + ",\n ".join(fields) + "}"


def _lines(value: object) -> str:
    if not isinstance(value, tuple):
        return msgspec.json.encode(value).decode()
    return "[" + ",".join(f"\n  {msgspec.json.encode(each).decode()}" for each in value) + "]"


def read_devices(config_map: ConfigMap) -> NodeDevices | Unreadable:
    """What a node part has written; a note where that cannot be used."""
    name = config_map.metadata.name
    text = (config_map.data or {}).get(KEY)
    if text is None:
        return Unreadable(name, f"it has no {KEY}")
    if len(text) > MAX_DOCUMENT_BYTES:
        return Unreadable(name, f"{KEY} is longer than {MAX_DOCUMENT_BYTES} characters")
    try:
        found = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return Unreadable(name, f"{KEY} cannot be read: {error}")
    why = _contradiction(name, found)
    return Unreadable(name, why) if why else found


def _contradiction(name: str, found: NodeDevices) -> str:
    """What cannot be true of any node; empty where nothing is wrong."""
    ids = {device.id for device in found.devices}
    if not found.node or map_name(found.node) != name:
        return f'it is about node "{found.node}", whose ConfigMap has another name'
    if len(found.devices) > MAX_DEVICES or len(found.held) > MAX_HELD:
        return f"more than {MAX_DEVICES} devices or {MAX_HELD} containers"
    if len(ids) < len(found.devices) or "" in ids:
        return "two devices have the same id, or one has none"
    return _wrongly_held(found.held, ids)


def _wrongly_held(held: tuple[Held, ...], ids: set[str]) -> str:
    holders: dict[str, tuple[str, str]] = {}
    for each in held:
        pod = (each.namespace, each.pod)
        if not each.namespace or not each.pod:
            return "a container belongs to no pod"
        for device in each.devices:
            if device not in ids:
                return f'"{each.namespace}/{each.pod}" holds "{device}", which is not among the devices'
            if holders.setdefault(device, pod) != pod:
                return f'"{device}" is held by two pods'
    return ""
