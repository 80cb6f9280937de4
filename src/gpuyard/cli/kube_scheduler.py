"""`gpuyard kube scheduler`: be the scheduler of a Kubernetes cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from gpuyard.cli.flags import DURATION
from gpuyard.cli.kube_flags import access_options

PLACEMENTS = ("bin-pack", "spread", "best-fit", "fragmentation-gradient", "topology", "keep-whole-nodes-free")
MODES = ("on-demand", "keep-whole-nodes-free", "off")


@click.command(epilog="To run it in the cluster: deploy/scheduler. More: docs/kube-scheduler.md")
@access_options
@click.option("--also", multiple=True, metavar="NAME", help="Take pods of this schedulerName, too: kai-scheduler.")
@click.option("--name", default="gpuyard", show_default=True, help="The schedulerName pods say to be ours.")
@click.option(
    "--namespace",
    "-n",
    envvar="POD_NAMESPACE",
    default="gpuyard-system",
    show_default=True,
    help="Where its lease and its notes are; also POD_NAMESPACE.",
)
@click.option("--queue-label", default="kai.scheduler/queue", show_default=True, help="The label that names a queue.")
@click.option(
    "--consolidation", type=click.Choice(MODES), default="on-demand", show_default=True, help="When pods move."
)
@click.option(
    "--placement", type=click.Choice(PLACEMENTS), default="bin-pack", show_default=True, help="Which node is best."
)
@click.option(
    "--staleness-grace", type=DURATION, default="60s", show_default=True, help="How long a gang may lack a part."
)
@click.option(
    "--decisions", metavar="FILE", help="Write every decision there, a line of JSON each; - is this terminal."
)
@click.option(
    "--leader-elect/--no-leader-elect", default=True, show_default=True, help="Share the work with others by a lease."
)
@click.option("--identity", help="Who it is in that election.  [default: this machine and process]")
@click.option("--qps", type=click.FloatRange(1, 100_000), default=200, show_default=True, help="Requests a second.")
@click.option("--burst", type=click.IntRange(1, 100_000), default=400, show_default=True, help="And so many at once.")
@click.option("--host", default="0.0.0.0", show_default=True, help="Where its pages are: /metrics, /healthz, /readyz.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes any free one.")
@click.option("--no-pages", is_flag=True, help="Listen nowhere.")
@click.option("--install-crds", is_flag=True, help="Make the kinds the cluster lacks first (gpuyard kube install).")
def scheduler(also: tuple[str, ...], name: str, **given: Any) -> None:  # noqa: ANN401
    """Be the scheduler of a cluster, until it is ended.

    Takes pods with `schedulerName: gpuyard`, groups them by their owners or PodGroups, and gives them nodes by the
    queues they name: fair shares, gangs, reclaim, preemption, consolidation. Says of every pod that waits why.

    \b
    gpuyard kube install                                  once: Queue, PodGroup, Topology, priority classes
    gpuyard kube scheduler                                with your own kubeconfig
    gpuyard kube scheduler --also kai-scheduler           in the place of KAI's scheduler
    gpuyard kube scheduler --decisions - | jq .text       see it decide
    kubectl apply -k deploy/scheduler                     in the cluster, twice, one of them leading
    """
    from gpuyard.files.durations import duration_ms
    from gpuyard.kube.run import Start, run_scheduler
    from gpuyard.kube.scheduler import Options
    from gpuyard.platform.listening import host_name
    from gpuyard.policies.policy import Consolidation, ConsolidationMode, NodePlacement, Policy
    from gpuyard.worlds.kubernetes.settings import Settings

    policy = Policy(
        node_placement=NodePlacement(given["placement"]),
        staleness_grace_ms=duration_ms(given["staleness_grace"]),
        consolidation=Consolidation(mode=ConsolidationMode(given["consolidation"])),
    )
    options = Options(
        settings=Settings((name, *also), given["namespace"], given["queue_label"]),
        policy=policy,
        identity=given["identity"] or f"{host_name()}_{os.getpid()}",
        elect=given["leader_elect"],
        per_second=given["qps"],
        burst=given["burst"],
    )
    start = Start(
        options,
        given["kubeconfig"],
        given["context"],
        host=given["host"],
        port=None if given["no_pages"] else given["port"],
        install=given["install_crds"],
    )
    target = given["decisions"]
    decisions = None if target is None else sys.stdout if target == "-" else Path(target).open("a", encoding="utf-8")  # noqa: SIM115
    run_scheduler(start, lambda line: click.echo(line, err=True), decisions)
