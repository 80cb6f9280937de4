"""`gpuyard run`: a job as if it ran here."""

from __future__ import annotations

from typing import Any

import click

from gpuyard.cli.flags import DURATION
from gpuyard.cli.job_flags import JobCommand, job_body, job_options, refuse_array
from gpuyard.cli.session import Session, connected
from gpuyard.cli.terminal import talk


@click.command(cls=JobCommand, epilog="Exit codes: docs/cli.md")
@click.argument("words", metavar="[FILE | -- CMD...]", nargs=-1, type=click.UNPROCESSED)
@job_options
@click.option("--allow-never", is_flag=True, help="Take it even if it can never run on this cluster.")
@click.option("--rank", type=click.IntRange(0), default=0, help="Whose output is shown, where it has several tasks.")
@click.option("--timeout", type=DURATION, help="Give up watching after that (exit code 124); the job goes on.")
@connected
def run(
    session: Session,
    words: tuple[str, ...],
    flags: dict[str, Any],
    allow_never: bool,
    rank: int,
    timeout: str | None,
) -> None:
    """Submit a job, show where it is and what it writes, and end with its exit code.

    Ctrl-C lets go of the job and never ends it.

    \b
    gpuyard run --gpus 1 -- nvidia-smi
    gpuyard run --gpus 2 --team vision -- python train.py
    gpuyard run train.yaml
    """
    from gpuyard.cli.file_errors import about_file
    from gpuyard.cli.follow import end_with, stay, timeout_ms
    from gpuyard.sdk import calls

    job = job_body(words, flags, session.settings.get("team"))
    refuse_array(job, "use gpuyard submit --wait, which waits for all of it")
    with about_file(words[0], job):
        submitted = session.client.send(calls.submit_job(job, allow_never=allow_never))
    for warning in submitted.warnings:
        talk(f"warning: {warning}")
    end_with(stay(session.client, submitted.jobs[0].id, task=rank, timeout_ms=timeout_ms(timeout)))
