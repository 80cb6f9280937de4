"""Who holds which GPU, as the document of the GPU mock's design: the text of a ConfigMap.

Place in the flow: MachineReading ─**statusmap**─▶ text ─▶ ConfigMap, and back when we start. Pure. Invariants: the text
has the fields of the design and no others, but for instances of GPUs that are cut (`mig-devices`); without those a
fleet file can be made of it; the same readings give the same bytes.

    mig-strategy: mixed
    nodes:
      node-a:
        gpu-memory: 11441
        gpu-product: Tesla-K80
        gpus:
          - id: GPU-8fc73fbd-91f0-697e-57ef-fc978bd54af1
            metrics:
              metadata: ...
              utilization: 10
              fb-used: 5000
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
import yaml

from gpuyard.fakegpu.labels import sanitised
from gpuyard.fakegpu.reading import DeviceReading, Holder, MachineReading, MigInstance
from gpuyard.files.tree import YES_NO

MAX_GPUS_IN_ONE: Final = 1_000
"""GPUs whose states one ConfigMap holds; Kubernetes allows it 1 MiB. Above, every node has a ConfigMap of its own."""
MIB_SHIFT: Final = 20

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9./_-]*")
_WORDS: Final = frozenset({"null", "true", "false", "y", "n"}) | frozenset(word.lower() for word in YES_NO)
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


# ---------------------------------------------------------------------------------------------------------- writing


def document(strategy: str, nodes: Iterable[str]) -> str:
    """The whole, of what `node_text` makes of each node."""
    entries = "".join(nodes)
    return f"mig-strategy: {strategy}\nnodes:" + (f"\n{entries}" if entries else " {}\n")


def node_text(machine: MachineReading, strategy: str) -> str:
    """One node below `nodes`; its own strategy is told where it is another than that of all."""
    return "".join(f"  {line}\n" for line in _node(machine, strategy))


def _node(machine: MachineReading, strategy: str) -> Iterator[str]:
    yield f"{_text(machine.machine)}:"
    if machine.mig_strategy != strategy:
        yield f"  mig-strategy: {machine.mig_strategy}"
    usual = machine.devices[0] if machine.devices else None
    if usual is not None:
        yield f"  gpu-memory: {usual.memory_total_bytes >> MIB_SHIFT}"
        yield f"  gpu-product: {_text(sanitised(usual.product))}"
    yield "  gpus:" if machine.devices else "  gpus: []"
    for device in machine.devices:
        assert usual is not None
        yield f"    - id: {_text(device.uuid)}"
        for line in _gpu(device, usual):
            yield f"      {line}"


def _gpu(device: DeviceReading, usual: DeviceReading) -> Iterator[str]:
    if device.memory_total_bytes != usual.memory_total_bytes:
        yield f"gpu-memory: {device.memory_total_bytes >> MIB_SHIFT}"
    if device.product != usual.product:
        yield f"gpu-product: {_text(sanitised(device.product))}"
    yield from _metrics(device.holder if not device.mig else None, device.gpu_percent, device.memory_used_bytes)
    if device.mig:
        yield "mig-devices:"
    for instance in device.mig:
        yield from _instance(instance)


def _instance(instance: MigInstance) -> Iterator[str]:
    yield f"  - id: {_text(instance.uuid)}"
    yield f"    profile: {_text(instance.profile)}"
    for line in _metrics(instance.holder, instance.gpu_percent, instance.memory_used_bytes):
        yield f"    {line}"


def _metrics(holder: Holder | None, percent: int, used_bytes: int) -> Iterator[str]:
    yield "metrics:"
    if holder is not None:
        yield "  metadata:"
        yield f"    namespace: {_text(holder.namespace)}"
        yield f"    pod: {_text(holder.pod)}"
        yield f"    container: {_text(holder.container)}"
    yield f"  utilization: {percent}"
    yield f"  fb-used: {used_bytes >> MIB_SHIFT}"


def _text(value: str) -> str:
    """In quotes where YAML would take it for something else than text."""
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return value if plain else msgspec.json.encode(value).decode()


# ---------------------------------------------------------------------------------------------------------- reading


class DeviceHolder(msgspec.Struct, frozen=True):
    """What a document says about one device."""

    device: str
    holder: Holder


def holders_in(text: str) -> dict[str, list[DeviceHolder]]:
    """By node, who held what when the document was written; nothing of a document that is not one of ours."""
    try:
        nodes = _map(_map(yaml.load(text, Loader=_LOADER)).get("nodes"))
    except yaml.YAMLError:
        return {}
    return {str(name): [*_holders(_map(node).get("gpus"))] for name, node in nodes.items()}


def _holders(devices: object) -> Iterator[DeviceHolder]:
    for entry in devices if isinstance(devices, list) else ():
        device = _map(entry)
        said = _map(_map(device.get("metrics")).get("metadata"))
        if said:
            named = (str(said.get(field, "")) for field in ("namespace", "pod", "container"))
            yield DeviceHolder(str(device.get("id")), Holder(*named))
        yield from _holders(device.get("mig-devices"))


@lru_cache(maxsize=512)
def node_entries(text: str) -> Mapping[str, str]:
    """The text of each node of a document of ours, as `node_text` made it."""
    _, _, body = text.partition("nodes:\n")
    found: dict[str, str] = {}
    for entry in re.findall(r"(?:^  \S.*\n(?:^   .*\n)*)", body, re.MULTILINE):
        name = entry.partition("\n")[0].strip().removesuffix(":")
        found[msgspec.json.decode(name) if name.startswith('"') else name] = entry
    return found


def _map(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}
