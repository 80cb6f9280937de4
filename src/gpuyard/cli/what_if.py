"""`gpuyard what-if`: what a change of a cluster would make different."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuyard.cli.inputs import InputFile
from gpuyard.cli.output import FORMATS, form_option, print_data
from gpuyard.cli.session import Session, connected_anywhere

if TYPE_CHECKING:
    from gpuyard.model.difference import Difference
    from gpuyard.sdk.bodies import YamlText


@click.command("what-if", epilog="The format is described by: gpuyard schema change")
@click.argument("change_path", metavar="[CHANGE.yaml]", required=False, type=InputFile())
@click.option("-f", "--file", "file_path", type=InputFile(), help="The change, as an option.")
@click.option("--cluster", "cluster_path", type=InputFile(), help="Answer from a cluster file instead.")
@form_option
@connected_anywhere
def what_if(
    session: Session, change_path: Path | None, file_path: Path | None, cluster_path: Path | None, output: str | None
) -> None:
    """Say who would start, stop, move and wait if something changed. Nothing is done.

    A change is another quota, a drained, removed or new node, a new job, a cancelled one, or several of these. The
    next plan is made without it and with it; the difference is shown. A file named - is read from a pipe.
    With a Kubernetes context the cluster is read as its scheduler reads it, and nothing is written there.

    \b
    gpuyard what-if change.yaml
    gpuyard what-if change.yaml --kubernetes
    gpuyard what-if change.yaml --cluster cluster.yaml -o json
    echo 'queues: {ads: {limit: 16}}' | gpuyard what-if -
    """
    path = change_path or file_path
    if path is None:
        raise click.UsageError("Name the change: gpuyard what-if change.yaml")
    form = session.output(output, FORMATS, "text")
    if cluster_path is not None:
        _answer_from_file(path, cluster_path, form)
    elif session.on_kubernetes:
        from gpuyard.cli.kube_questions import what_if_cluster

        what_if_cluster(session, path, form)
    else:
        _ask_server(session, path, form)


def _ask_server(session: Session, path: Path, output: str) -> None:
    from gpuyard.cli.file_errors import about_file
    from gpuyard.files.source import read_text
    from gpuyard.sdk.bodies import YamlText

    change = YamlText(read_text(path))
    with about_file(str(path), change):
        show_change(session, change, output)


def show_change(session: Session, change: YamlText, output: str) -> None:
    """What the server says that a change would do."""
    from gpuyard.cli.listing import print_object
    from gpuyard.sdk import calls
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.rest import DifferenceObject

    raw = session.client.send(calls.what_if(change).verbatim())
    if output == "text":
        _show(decoded_json(raw, DifferenceObject).difference)
    else:
        print_object(raw, output)


def _answer_from_file(change_path: Path, cluster_path: Path, output: str) -> None:
    from gpuyard.files.change import read_change
    from gpuyard.files.cluster import read_cluster
    from gpuyard.scheduler.what_if import what_if as difference_of

    cluster = read_cluster(cluster_path)
    difference = difference_of(cluster.snapshot, read_change(change_path, cluster), cluster.policy)
    if output == "text":
        _show(difference)
    else:
        print_data(difference, output)


def _show(difference: Difference) -> None:
    from gpuyard.cli.show import console
    from gpuyard.cli.show_answers import show_difference

    show_difference(console(), difference)
