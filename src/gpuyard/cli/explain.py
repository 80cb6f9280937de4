"""`gpuyard explain`: why one job is where it is, or is not, and what would let it start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuyard.cli.inputs import InputFile
from gpuyard.cli.output import output_option, print_data

if TYPE_CHECKING:
    from gpuyard.model.snapshot import Snapshot

MAX_JOBS_NAMED = 10


@click.command(epilog="How to read the answer: docs/explain.md. To try a way out: gpuyard what-if")
@click.argument("job", metavar="JOB")
@click.option("--cluster", "cluster_path", required=True, type=InputFile(), help="The cluster file.")
@output_option
def explain(job: str, cluster_path: Path, output: str) -> None:
    """Say everything about one job: what blocks it, its turn, and the cheapest ways out.

    Every way out has been tried: after it, the next plan does give the job a place. Of a job that runs it says
    where, since when and why, and whether it must give way and to whom. A file named - is read from a pipe.

    \b
    gpuyard explain llm --cluster cluster.yaml
    gpuyard explain llm --cluster cluster.yaml -o json
    gpuyard demo --yaml | gpuyard explain ads-sweep --cluster -
    """
    from gpuyard.files import read_cluster
    from gpuyard.scheduler.explain import explain as explain_job

    cluster = read_cluster(cluster_path)
    _refuse_unknown(job, cluster.snapshot, cluster_path)
    explanation = explain_job(cluster.snapshot, job, cluster.policy)
    if output != "text":
        print_data(explanation, output)
        return
    from gpuyard.cli.show import console
    from gpuyard.cli.show_answers import show_explanation

    show_explanation(console(), explanation, cluster.snapshot.now_ms)


def _refuse_unknown(job: str, snapshot: Snapshot, path: Path) -> None:
    from gpuyard.errors import InputError, Where
    from gpuyard.files.suggest import did_you_mean

    names = [known.id for known in snapshot.jobs]
    if job in names:
        return
    shown = ", ".join(names[:MAX_JOBS_NAMED]) + (", ..." if len(names) > MAX_JOBS_NAMED else "")
    fix = f"jobs in it: {shown}" if names else "it lists no job, neither running nor pending"
    raise InputError(f'there is no job "{job}"{did_you_mean(job, names)}', where=Where(str(path)), fix=fix)
