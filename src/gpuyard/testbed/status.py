"""How a testbed is: its machines, their components, what they hold.

Place in the flow: record, processes, API server ─**status**─▶ cli. Nothing is changed by looking.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from gpuyard.errors import KubeTestbedError
from gpuyard.platform.processes import resident_bytes
from gpuyard.testbed import machine
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import node_is_ready
from gpuyard.testbed.credentials import server_url
from gpuyard.testbed.extras import names_of_components
from gpuyard.testbed.record import CONTROL, Record, node_number

RUNNING: Final = "running"
STOPPED: Final = "stopped"
"""Somebody has stopped it."""
DOWN: Final = "down"


class ComponentStatus(msgspec.Struct, frozen=True):
    """One program that is kept running."""

    name: str
    state: str
    pid: int | None
    memory_bytes: int
    restarts: int


class MachineStatus(msgspec.Struct, frozen=True):
    """The control plane, or a node."""

    name: str
    on: bool
    ready: bool
    """The API server answers, or says so of the node."""
    address: str
    memory_bytes: int
    """Of all its processes, those in pods too."""
    components: tuple[ComponentStatus, ...]


class BedStatus(msgspec.Struct, frozen=True):
    """All of it."""

    name: str
    healthy: bool
    """It came up whole, every machine is on and Ready, every component runs."""
    problems: tuple[str, ...]
    """What is not so, each in a few words."""
    came_up: bool
    ready_after_ms: int
    url: str
    kubeconfig: str
    folder: str
    interface: str
    network: str
    memory_bytes: int
    fake_nodes: int
    machines: tuple[MachineStatus, ...]


def status_of(record: Record) -> BedStatus:
    nodes = _nodes(record)
    machines = tuple(_machine(record, name, nodes) for name in record.machine_names())
    problems = tuple(problems_of(record, machines))
    return BedStatus(
        name=record.name,
        healthy=not problems,
        problems=problems,
        came_up=record.ready,
        ready_after_ms=record.ready_after_ms,
        url=server_url(record),
        kubeconfig=str(record.kubeconfig),
        folder=str(record.folder),
        interface=record.interface,
        network=str(record.addresses.network),
        memory_bytes=sum(one.memory_bytes for one in machines),
        fake_nodes=len(set(nodes or {}) - set(record.node_names())),
        machines=machines,
    )


def problems_of(record: Record, machines: Iterable[MachineStatus]) -> Iterator[str]:
    if not record.ready:
        yield "it did not come up whole"
    for one in machines:
        if not one.ready:
            yield f"{one.name} is {'not ready' if one.on else 'off'}"
        # Of one that is off nothing runs.
        for component in one.components if one.on else ():
            if component.state != RUNNING:
                yield f"{component.name} of {one.name} is {component.state}"


def _nodes(record: Record) -> dict[str, dict[str, Any]] | None:
    """What the API server knows of nodes; None if it does not answer."""
    try:
        with Api(record) as api:
            return {node["metadata"]["name"]: node for node in api.get("/api/v1/nodes")["items"]}
    except (KubeTestbedError, OSError):
        return None


def _machine(record: Record, name: str, nodes: dict[str, dict[str, Any]] | None) -> MachineStatus:
    found = machine.find(record, name)
    if name == CONTROL:
        ready, address = nodes is not None, record.addresses.control
    else:
        ready = found is not None and node_is_ready((nodes or {}).get(name, {}))
        address = record.addresses.node(node_number(record, name))
    return MachineStatus(
        name=name,
        on=found is not None,
        ready=ready,
        address=str(address),
        memory_bytes=sum(map(resident_bytes, machine.processes_of(found))) if found else 0,
        components=tuple(_component(record, name, component) for component in names_of_components(record, name)),
    )


def _component(record: Record, name: str, component: str) -> ComponentStatus:
    process = machine.find_component(record, name, component)
    held = (record.machine_folder(name) / machine.HOLD / component).exists()
    return ComponentStatus(
        name=component,
        state=RUNNING if process else STOPPED if held else DOWN,
        pid=process.pid if process else None,
        memory_bytes=resident_bytes(process.pid) if process else 0,
        restarts=machine.endings(record, name, component),
    )
