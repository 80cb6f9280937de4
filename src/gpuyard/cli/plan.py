"""`gpuyard plan`: the next cycle of a cluster, or what would happen to a job in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuyard.cli.inputs import InputFile
from gpuyard.cli.output import output_option, print_data

if TYPE_CHECKING:
    from gpuyard.model.plan import Plan
    from gpuyard.model.snapshot import Snapshot


@click.command(epilog="The formats are described by: gpuyard schema cluster, gpuyard schema job")
@click.option("--cluster", "cluster_path", type=InputFile(), help="The cluster file, beside a job file.")
@output_option
@click.argument("path", metavar="[CLUSTER.yaml | JOB.yaml]", required=False, type=InputFile())
def plan(cluster_path: Path | None, path: Path | None, output: str) -> None:
    """Say what the next scheduling cycle would decide, and why. Nothing is started.

    With a job file: whether that job would start, where, or why it would wait. A file named - is read from a pipe.

    \b
    gpuyard plan cluster.yaml
    gpuyard plan --cluster cluster.yaml job.yaml -o json
    gpuyard demo --yaml | gpuyard plan -
    """
    from msgspec.structs import replace

    from gpuyard.files import read_cluster, read_jobs
    from gpuyard.scheduler.cycle import schedule

    job_path = path if cluster_path else None
    cluster = read_cluster(cluster_path or _named(path))
    jobs = read_jobs(job_path, cluster) if job_path else ()
    snapshot = replace(cluster.snapshot, jobs=cluster.snapshot.jobs + jobs)
    decided = schedule(snapshot, cluster.policy)
    _show(_about(decided, {job.id for job in jobs}) if jobs else decided, snapshot, output)


def _named(path: Path | None) -> Path:
    if path is None:
        raise click.UsageError("Name a cluster file: gpuyard plan cluster.yaml")
    return path


def _about(decided: Plan, jobs: set[str]) -> Plan:
    """What concerns these jobs: their own actions and waits, and what happens to others for their sake."""
    from msgspec.structs import replace

    from gpuyard.model.plan import Plan

    actions = [action for action in decided.actions if action.job in jobs or action.reason.beneficiary in jobs]
    waiting = [
        replace(entry, jobs=tuple(job for job in entry.jobs if job in jobs))
        for entry in decided.waiting
        if jobs.intersection(entry.jobs)
    ]
    return Plan(tuple(actions), tuple(waiting))


def _show(decided: Plan, snapshot: Snapshot, output: str) -> None:
    if output != "text":
        print_data(decided, output)
        return
    from gpuyard.cli.show import console, show_plan

    show_plan(console(), decided, snapshot)
