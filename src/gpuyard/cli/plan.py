"""`gpuyard plan`: the next cycle of a cluster, or what would happen to a job in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.inputs import PIPE, InputFile
from gpuyard.cli.job_flags import SEPARATED, JobCommand, job_body, job_options, runs_something
from gpuyard.cli.output import FORMATS, form_option, print_data
from gpuyard.cli.session import Session, connected

if TYPE_CHECKING:
    from gpuyard.model.plan import Plan
    from gpuyard.model.snapshot import Snapshot


CHANGE = 2
"""--detailed-exitcode: something would happen."""


@click.command(
    cls=JobCommand,
    epilog="The formats are described by: gpuyard schema work, gpuyard schema cluster, gpuyard schema job",
)
@click.argument("words", metavar="[JOB.yaml | -- CMD... | CLUSTER.yaml]", nargs=-1, type=click.UNPROCESSED)
@job_options
@click.option("--cluster", "cluster_path", type=InputFile(), help="Answer from a cluster file instead.")
@click.option("--detailed-exitcode", is_flag=True, help="End with 2 if something would happen, 0 if not.")
@form_option
@connected
def plan(
    session: Session,
    words: tuple[str, ...],
    flags: dict[str, Any],
    cluster_path: Path | None,
    detailed_exitcode: bool,
    output: str | None,
) -> None:
    """Say what would happen to a job, or in the next cycle of a cluster file, and why. Nothing is started.

    A job is given as to `gpuyard submit`, and the server says whether it would start, where and at whose cost, or why
    it would wait. With a cluster file no server is asked. A file named - is read from a pipe.

    \b
    gpuyard plan train.yaml
    gpuyard plan --gpus 4 --team vision -- python train.py
    gpuyard plan cluster.yaml
    gpuyard plan --cluster cluster.yaml job.yaml -o json
    gpuyard demo --yaml | gpuyard plan -
    """
    form = session.output(output, FORMATS, "text")
    if cluster_path is None and _is_for_server(words, flags):
        happens = _ask_server(session, words, flags, form)
    else:
        happens = _answer_from_file(words, flags, cluster_path, form)
    if detailed_exitcode and happens:
        click.get_current_context().exit(CHANGE)


def _is_for_server(words: tuple[str, ...], flags: dict[str, Any]) -> bool:
    """What runs something is a job to submit; a cluster file never does."""
    if not words or flags or len(words) > 1 or click.get_current_context().meta.get(SEPARATED):
        return bool(words or flags)
    path = Path(words[0])
    return words[0] != "-" and path.is_file() and runs_something(path)


def _ask_server(session: Session, words: tuple[str, ...], flags: dict[str, Any], output: str) -> bool:
    from gpuyard.cli.file_errors import about_file
    from gpuyard.cli.listing import print_object
    from gpuyard.cli.terminal import one_line
    from gpuyard.sdk import calls
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.rest import PlanObject

    job = job_body(words, flags, session.settings.get("team"))
    with about_file(words[0], job):
        raw = session.client.send(calls.plan_job(job).verbatim())
    answer: PlanObject = decoded_json(raw, PlanObject)
    if output != "text":
        print_object(raw, output)
    else:
        for line in answer.text:
            click.echo(one_line(line))
    return bool(answer.plan.actions)


def _answer_from_file(words: tuple[str, ...], flags: dict[str, Any], cluster_path: Path | None, output: str) -> bool:
    from msgspec.structs import replace

    from gpuyard.files.cluster import read_cluster, read_jobs
    from gpuyard.scheduler.cycle import schedule

    if flags or len(words) > 1:
        raise click.UsageError("With a cluster file a job comes from a file: gpuyard plan --cluster FILE job.yaml")
    path = _path(words[0]) if words else None
    job_path = path if cluster_path else None
    cluster = read_cluster(cluster_path or _named(path))
    jobs = read_jobs(job_path, cluster) if job_path else ()
    snapshot = replace(cluster.snapshot, jobs=cluster.snapshot.jobs + jobs)
    decided = schedule(snapshot, cluster.policy)
    shown = _about(decided, {job.id for job in jobs}) if jobs else decided
    _show(shown, snapshot, output)
    return bool(shown.actions)


def _path(word: str) -> Path:
    return PIPE if word == "-" else Path(word)


def _named(path: Path | None) -> Path:
    if path is None:
        raise click.UsageError("Name a job file or a cluster file: gpuyard plan train.yaml")
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
