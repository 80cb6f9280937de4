"""The network between the machines of a testbed: cables that end in the control plane's bridge.

Place in the flow: machine ─▶ **cables** ─▶ what `boot.py` waits for. A cable is a pair of interfaces in two namespaces;
it goes with either of them. Only one end of one cable lies in this machine's own network.
"""

from __future__ import annotations

from typing import Final

from gpuyard.errors import KubeTestbedError
from gpuyard.platform.clock import monotonic_ms, sleep_ms
from gpuyard.platform.commands import Finished, run
from gpuyard.testbed.boot import BRIDGE, CABLE, HOST_PORT
from gpuyard.testbed.machine import Machine
from gpuyard.testbed.record import Record

IP_S: Final = 20.0
GONE_MS: Final = 10_000
POLL_MS: Final = 20


def connect_host(record: Record, control: Machine) -> None:
    """From this machine to the control plane, and the way to everything behind it."""
    addresses, name = record.addresses, record.interface
    _ip("link", "add", name, "type", "veth", "peer", "name", HOST_PORT, "netns", str(control.first.pid))
    _ip("address", "add", f"{addresses.host}/{addresses.machines.prefixlen}", "dev", name)
    _ip("link", "set", name, "up")
    for network in (addresses.services, addresses.pods):
        _ip("route", "add", str(network), "via", str(addresses.control), "dev", name)


def connect_node(control: Machine, node: Machine) -> None:
    """From a node to the bridge in the control plane, whose end bears the node's name."""
    inside = _in_network_of(control)
    peer = ("peer", "name", CABLE, "netns", str(node.first.pid))
    _must([*inside, "link", "add", node.name, "type", "veth", *peer])
    _must([*inside, "link", "set", node.name, "master", BRIDGE, "up"])


def disconnect_node(control: Machine, node: str) -> None:
    """The kernel takes the network of a machine apart some time after its end; by then it may be on again."""
    _remove(_in_network_of(control), node)


def _in_network_of(machine: Machine) -> list[str]:
    """Only its network: the numbers of processes stay those of this machine."""
    return ["nsenter", f"--target={machine.first.pid}", "--net", "--", "ip"]


def routes() -> str:
    return _ip("-4", "route", "show", "table", "all").output


def remove(record: Record) -> None:
    """It goes with the control plane, some time later; one whose other end was never used would stay."""
    _remove(["ip"], record.interface)


def _remove(ip: list[str], name: str) -> None:
    until_ms = monotonic_ms() + GONE_MS
    while not run([*ip, "link", "show", "dev", name], timeout_s=IP_S).code:
        run([*ip, "link", "delete", "dev", name], timeout_s=IP_S)
        if monotonic_ms() > until_ms:
            raise KubeTestbedError(f"the interface {name} cannot be removed", fix="try again")
        sleep_ms(POLL_MS)


def _ip(*words: str) -> Finished:
    return _must(["ip", *words])


def _must(command: list[str]) -> Finished:
    done = run(command, timeout_s=IP_S)
    if done.code:
        raise KubeTestbedError(f"{' '.join(command)} failed: {done.output.strip()}", fix="is iproute2 installed?")
    return done
