"""The first process of a machine, as a script. Pure.

Place in the flow: components and files ─**boot**─▶ a shell script ─▶ `machine.py` runs it as process 1 of new
namespaces. It arranges what the machine sees, joins its network, and keeps its components running: one that ends is
started again unless it is held. When it is killed, the kernel ends everything below it; that is a loss of power.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from gpuyard.testbed.control_plane import Component
from gpuyard.testbed.node_files import CONTAINERD_SOCKET, KERNEL_SETTINGS
from gpuyard.testbed.record import CONTROL, Record, node_name

KUBELET: Final = "kubelet"
CONTAINERD: Final = "containerd"
CABLE: Final = "eth0"
BRIDGE: Final = "br0"
HOST_PORT: Final = "host0"
BOOTED: Final = "booted"
"""A file that says: mounts and network are there."""
IMAGES_IN: Final = "images-in"

KEEP: Final = """\
# Starts a component again whenever it ends, unless it is held: then it waits for a line from a pipe.
# What it is told beyond its command lies in a file that may change; of a word that is said twice the last one counts.
keep() {
  component=$1; shift
  while :; do
    while [ -p "$here/hold/$component" ]; do read -r _ 2>/dev/null <"$here/hold/$component" || :; done
    "$@" $(cat "$here/words/$component" 2>/dev/null) >>"$here/log/$component.log" 2>&1 </dev/null || :
    echo >>"$here/ended/$component"
    sleep 0.2
  done
}
"""


def control_script(record: Record, components: Iterable[Component]) -> str:
    """The control plane is also the switch all cables of a testbed end in."""
    addresses = record.addresses
    own = [f"{addresses.control}/{addresses.machines.prefixlen}", f"{addresses.api}/32", f"{addresses.dns}/32"]
    lines = [
        _until(f"ip link show {HOST_PORT}"),
        # With an address of its own: else it has that of one of its ports, and another one when that port goes.
        f"ip link add {BRIDGE} address {hardware_address(0)} type bridge",
        *(f"ip address add {address} dev {BRIDGE}" for address in own),
        f"ip link set {BRIDGE} up",
        f"ip link set {HOST_PORT} master {BRIDGE} up",
        *_common_network(record, own_number=0),
    ]
    return _script(record, CONTROL, [*lines, f"touch $here/{BOOTED}", *map(_kept, components)])


def node_script(record: Record, number: int, kubelet: Path, *, snapshotter: str) -> str:
    name, addresses = node_name(number), record.addresses
    folder = record.machine_folder(name)
    own = [
        # The same after every reboot, so that what the others know of it stays true.
        f"ip link set {CABLE} address {hardware_address(number)}",
        f"ip address add {addresses.node(number)}/{addresses.machines.prefixlen} dev {CABLE}",
        f"ip link set {CABLE} up",
        f"ip route add {addresses.services} via {addresses.control}",
    ]
    configuration = str(folder / "containerd.toml")
    containerd = Component(CONTAINERD, ("containerd", "--config", configuration, "--log-level", "warn"))
    lines = [
        *_mounts(),
        _until(f"ip link show {CABLE}"),
        *own,
        *_common_network(record, own_number=number),
        f"touch $here/{BOOTED}",
        _kept(containerd),
        _until(f"ctr --address {CONTAINERD_SOCKET} version"),
        # What was imported before is still there after a reboot.
        f"for image in $here/images/*.tar; do {shlex.join(import_image(snapshotter))} $image || exit 1; done",
        f"touch $here/{IMAGES_IN}",
        _kept(_kubelet(record, number, kubelet)),
    ]
    return _script(record, name, lines)


def hardware_address(number: int) -> str:
    """Of a node, or of the control plane (0). Every testbed has its own network, so they may be the same in all."""
    return f"02:67:79:74:62:{number:02x}"


def import_image(snapshotter: str) -> tuple[str, ...]:
    """The command that takes an image in; the path of its archive belongs behind it."""
    own = ("ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io")
    return (*own, "images", "import", "--snapshotter", snapshotter)


def _kubelet(record: Record, number: int, program: Path) -> Component:
    folder = record.machine_folder(node_name(number))
    command = (
        str(program),
        f"--config={folder / 'kubelet.json'}",
        f"--kubeconfig={folder / 'kubeconfig'}",
        f"--hostname-override={node_name(number)}",
        f"--node-ip={record.addresses.node(number)}",
    )
    return Component(KUBELET, command)


def _mounts() -> list[str]:
    """What a node has of its own; the rest it shares with this machine."""
    binds = {"/var/lib/kubelet": "kubelet", "/var/lib/containerd": "containerd", "/var/log/pods": "pod-logs"}
    fresh = ("/run/containerd", "/run/netns", "/var/lib/cni", "/var/log/containers")
    settings = {f"/proc/sys/{name}": f"settings/{name.replace('/', '.')}" for name in KERNEL_SETTINGS}
    return [
        f"mkdir -p {' '.join((*binds, *fresh))}",
        *(f"mount -t tmpfs -o mode=755 tmpfs {place}" for place in fresh),
        *(f"mount --bind $here/{own} {place}" for place, own in {**binds, **settings}.items()),
    ]


def _common_network(record: Record, *, own_number: int) -> list[str]:
    """The way to the pods of every other node."""
    addresses = record.addresses
    others = (number for number in range(1, record.nodes + 1) if number != own_number)
    return [
        "ip link set lo up",
        "echo 1 >/proc/sys/net/ipv4/ip_forward",
        *(f"ip route add {addresses.pods_of(number)} via {addresses.node(number)}" for number in others),
    ]


def _script(record: Record, machine: str, lines: Sequence[str]) -> str:
    begin = [
        "#!/bin/sh",
        f"# Process 1 of {machine} of the testbed {record.name}; written anew whenever it is brought up.",
        "set -eu",
        f"here={shlex.quote(str(record.machine_folder(machine)))}",
        f"hostname {machine}",
        KEEP,
    ]
    # Whatever loses its parent in here becomes a child of this one, and is reaped by `wait`.
    return "\n".join([*begin, *lines, "while :; do wait; sleep 1; done"]) + "\n"


def _kept(component: Component) -> str:
    variables = ["env", *(f"{name}={value}" for name, value in component.variables)] if component.variables else []
    return f"keep {component.name} {shlex.join((*variables, *component.command))} &"


def _until(command: str) -> str:
    return f"until {command} >/dev/null 2>&1; do sleep 0.05; done"
