"""`gpuyard kube node`: tell the scheduler which container of a node holds which GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuyard.cli.kube_flags import access_options
from gpuyard.cli.output import output_option, print_data

if TYPE_CHECKING:
    from gpuyard.worlds.kubernetes.devices import NodeDevices

NO_ONE = "·"


@click.command(epilog="To run it on every node: a DaemonSet in deploy/. More: docs/kube-node.md")
@click.option("--node", "node_name", required=True, envvar="NODE_NAME", help="The node this is; also NODE_NAME.")
@click.option(
    "--namespace",
    "-n",
    envvar="POD_NAMESPACE",
    default="gpuyard-system",
    show_default=True,
    help="Where the scheduler looks for it; also POD_NAMESPACE.",
)
@click.option(
    "--pod-resources",
    type=click.Path(path_type=Path),
    default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
    show_default=True,
    help="The socket on which the kubelet tells who holds what.",
)
@click.option(
    "--plugin-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/lib/kubelet/device-plugins"),
    show_default=True,
    help="Where the kubelet keeps its record, which alone tells of init containers.",
)
@click.option("--listen", metavar="HOST:PORT", help="Serve /healthz and /metrics there; :9410 is on all addresses.")
@click.option("--once", is_flag=True, help="Print what would be published, publish nothing, and end.")
@output_option
@access_options
def node(
    node_name: str,
    namespace: str,
    pod_resources: Path,
    plugin_dir: Path,
    listen: str | None,
    once: bool,
    output: str,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Publish which container of a node holds which GPU, and which GPUs are ill.

    The kubelet chooses the GPUs of a pod and tells only programs on its own node. This is that program: one on every
    node, beside the kubelet. It writes a ConfigMap, gpuyard-devices-NODE, whenever something has changed, and changes
    nothing else. The scheduler works without it, too, but then knows GPUs by their number only.

    \b
    gpuyard kube node --node node-1                       until it is ended
    gpuyard kube node --node node-1 --once                what it sees, as a table; -o json as it would be written
    gpuyard kube node --node node-1 --listen :9410        with /healthz and /metrics
    kubectl get configmap -n gpuyard-system -l gpuyard.io/devices=true
    """
    from gpuyard.kube.node import NodeSettings
    from gpuyard.kube.node_process import published_now, run
    from gpuyard.kubeapi.access import find_access
    from gpuyard.service.settings import read_address

    address = read_address(listen) if listen else None
    settings = NodeSettings(
        node_name, namespace, pod_resources, plugin_dir, (address.host, address.port) if address else None
    )
    access = find_access(kubeconfig, context)
    if not once:
        run(settings, access)
        return
    found = published_now(settings, access)
    if output == "text":
        _show(found)
    else:
        print_data(found, output)


def _show(devices: NodeDevices) -> None:
    """One line a device."""
    from gpuyard.cli.show import console, table

    holders: dict[str, list[str]] = {}
    for held in devices.held:
        for id in held.devices:
            holders.setdefault(id, []).append(f"{held.namespace}/{held.pod}/{held.container}")
    made = table("DEVICE", "RESOURCE", "MODEL", "MEMORY (MiB)", "NUMA", "HEALTH", "HELD BY")
    for column in (3, 4):
        made.columns[column].justify = "right"
    for device in devices.devices:
        memory = str(device.memory_mib) if device.memory_mib else NO_ONE
        health = "ok" if device.healthy else "ill"
        holder = ", ".join(holders.get(device.id, [])) or NO_ONE
        made.add_row(device.id, device.resource, device.model or NO_ONE, memory, str(device.numa), health, holder)
    console().print(made)
