"""`gpuyard what-if`: what a change of a cluster would make different."""

from __future__ import annotations

from pathlib import Path

import click

from gpuyard.cli.inputs import InputFile
from gpuyard.cli.output import output_option, print_data


@click.command("what-if", epilog="The format is described by: gpuyard schema change")
@click.argument("change_path", metavar="CHANGE.yaml", type=InputFile())
@click.option("--cluster", "cluster_path", required=True, type=InputFile(), help="The cluster file.")
@output_option
def what_if(change_path: Path, cluster_path: Path, output: str) -> None:
    """Say who would start, stop, move and wait if something changed. Nothing is done.

    A change is another quota, a drained, removed or new node, a new job, a cancelled one, or several of these. The
    next plan is made without it and with it; the difference is shown. A file named - is read from a pipe.

    \b
    gpuyard what-if change.yaml --cluster cluster.yaml
    gpuyard what-if change.yaml --cluster cluster.yaml -o json
    echo 'queues: {ads: {limit: 16}}' | gpuyard what-if - --cluster cluster.yaml
    """
    from gpuyard.files import read_change, read_cluster
    from gpuyard.scheduler.what_if import what_if as difference_of

    cluster = read_cluster(cluster_path)
    changes = read_change(change_path, cluster)
    difference = difference_of(cluster.snapshot, changes, cluster.policy)
    if output != "text":
        print_data(difference, output)
        return
    from gpuyard.cli.show import console
    from gpuyard.cli.show_answers import show_difference

    show_difference(console(), difference)
