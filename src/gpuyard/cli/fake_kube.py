"""`gpuyard fake kube`: fake GPUs on the nodes of a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.output import output_option, print_data
from gpuyard.cli.plugin_flags import plugin_options

if TYPE_CHECKING:
    from gpuyard.fakegpu.daemon import Settings
    from gpuyard.fakegpu.kubernetes.process import Where

PORT = 9400

Command = Callable[..., Any]


@click.group(epilog="How it fits together, and what to deploy: docs/fake-gpus-kubernetes.md, deploy/fakegpu")
def kube() -> None:
    """Fake GPUs on Kubernetes: real kubelets, KWOK nodes and any other.

    What GPUs there are stands in a ConfigMap, as a fleet file; changes to it take effect at once.

    \b
    kubectl apply -k deploy/fakegpu         everything below, in a cluster
    gpuyard fake kube updater               once: labels, nodes without a kubelet, who holds what
    gpuyard fake kube node --node-name N    on every node with a kubelet: device plugin, exporter, NVML
    gpuyard fake kube status                who holds which GPU
    """


def cluster_options(command: Command) -> Command:
    """Which cluster, and where in it."""
    options = (
        click.option(
            "--namespace",
            "-n",
            envvar="POD_NAMESPACE",
            default="gpuyard-fake",
            show_default=True,
            help="Where the ConfigMap is; also POD_NAMESPACE.",
        ),
        click.option("--config-map", default="fake-gpus", show_default=True, help="Its name."),
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path, dir_okay=False),
            help="How to reach the cluster.  [default: KUBECONFIG, the pod's own account, ~/.kube/config]",
        ),
        click.option("--context", help="Which context of that file.  [default: its current one]"),
    )
    for option in reversed(options):
        command = option(command)
    return command


def process_options(command: Command) -> Command:
    """Where a process listens and lives."""
    options = (
        click.option("--host", default="0.0.0.0", show_default=True, help="Where the exporter listens."),
        click.option(
            "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes any free one."
        ),
        click.option(
            "--home",
            type=click.Path(path_type=Path, file_okay=False),
            envvar="GPUYARD_FAKE_HOME",
            help="The folder of this process; other commands find it there.  [default: one for each user]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@kube.command()
@cluster_options
@output_option
def status(output: str, **given: Any) -> None:  # noqa: ANN401
    """Show who holds which GPU, as the ConfigMaps say.

    \b
    gpuyard fake kube status
    gpuyard fake kube status -o json
    """
    from gpuyard.fakegpu.kubernetes.process import look

    found = look(_where(given))
    if output == "text":
        from gpuyard.cli.show_fake import show_cluster

        show_cluster(found)
    else:
        print_data(found, output)


@kube.command()
@cluster_options
@process_options
def updater(**given: Any) -> None:  # noqa: ANN401
    """Serve a whole cluster: labels, nodes without a kubelet, and who holds what.

    One for a cluster. It gives nodes the labels GPU feature discovery would and keeps them; it is device plugin,
    kubelet and DCGM exporter for nodes without a kubelet (KWOK, or made by hand); and it writes into the ConfigMap
    which container holds which GPU. Pods say what they do with the annotation gpuyard.io/gpu-profile.

    \b
    gpuyard fake kube updater
    gpuyard fake kube updater --kubeconfig ~/.kube/config -n gpuyard-fake --port 9400
    """
    from gpuyard.fakegpu.kubernetes.process import run_updater

    run_updater(_settings(given), _where(given))


@kube.command()
@click.option("--node-name", required=True, envvar="NODE_NAME", help="The node this is; also NODE_NAME.")
@click.option(
    "--pod-resources",
    type=click.Path(path_type=Path),
    default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
    show_default=True,
    help="The socket on which the kubelet tells who holds what.",
)
@plugin_options
@cluster_options
@process_options
def node(node_name: str, pod_resources: Path, plugin_dir: Path, inject: bool, numa: bool, **given: Any) -> None:  # noqa: ANN401
    """Give one node with a kubelet its fake GPUs: device plugin, NVML, exporter.

    One on every node; a DaemonSet does it. The kubelet hands the GPUs out and says who got which; that is what the
    exporter shows and what is written into the node's ConfigMap. The home has to be a folder the kubelet knows by the
    same path, because containers are given files from it.

    \b
    gpuyard fake kube node --node-name node-1 --home /var/lib/gpuyard-fake
    gpuyard fake fault node-1 3 xid:79 --for 5m --home /var/lib/gpuyard-fake
    """
    from gpuyard.fakegpu.kubernetes.nodepart import NodeSettings
    from gpuyard.fakegpu.kubernetes.plugin import PluginSettings
    from gpuyard.fakegpu.kubernetes.process import run_node

    settings = _settings(given)
    plugin = PluginSettings(settings.home, node_name, plugin_dir.absolute(), inject, numa)
    run_node(settings, _where(given), NodeSettings(node_name, pod_resources, plugin_dir), plugin)


def _settings(given: dict[str, Any]) -> Settings:
    from gpuyard.fakegpu.control import default_home
    from gpuyard.fakegpu.daemon import Settings

    home = given["home"].absolute() if given["home"] else default_home()
    return Settings(home, host=given["host"], port=given["port"])


def _where(given: dict[str, Any]) -> Where:
    from gpuyard.fakegpu.kubernetes.names import Scope
    from gpuyard.fakegpu.kubernetes.process import Where

    return Where(Scope(given["namespace"], given["config_map"]), given["kubeconfig"], given["context"])
