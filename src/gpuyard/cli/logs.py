"""`gpuyard logs`: what a job has written."""

from __future__ import annotations

import click

from gpuyard.cli.flags import DURATION
from gpuyard.cli.session import Session, connected


@click.command(epilog="With -f it ends with the exit code of the job; Ctrl-C lets go of the job and never ends it.")
@click.argument("job", metavar="JOB")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over, through restarts.")
@click.option("--rank", "--task", "rank", type=click.IntRange(0), default=0, show_default=True, help="Which task.")
@click.option("--attempt", type=click.IntRange(1), help="Which attempt.  [default: the newest]")
@click.option("--tail", type=click.IntRange(0), help="Only the last lines.")
@click.option("--since", default="", help="What was written from then on: 10m ago, or 2026-11-01T12:00:00Z.")
@click.option("--timeout", type=DURATION, help="With -f: give up watching after that (exit code 124).")
@connected
def logs(
    session: Session,
    job: str,
    follow: bool,
    rank: int,
    attempt: int | None,
    tail: int | None,
    since: str,
    timeout: str | None,
) -> None:
    """Show what a job has written.

    \b
    gpuyard logs 17
    gpuyard logs -f train
    gpuyard logs 17 --rank 3 --tail 100
    gpuyard logs -f 17 --since 10m
    """
    from gpuyard.cli.follow import Begin, end_with, last_lines, stay, timeout_ms, write_bytes
    from gpuyard.cli.job_ids import one_job

    client = session.client
    id = one_job(client, job)
    if follow:
        if attempt is not None:
            raise click.UsageError("-f follows the job through all attempts from its newest on; leave --attempt out.")
        end_with(stay(client, id, task=rank, timeout_ms=timeout_ms(timeout), begin=Begin(tail, since)))
        return
    if tail is not None:
        write_bytes(last_lines(client, id, rank, attempt or 0, Begin(tail, since)).data)
        return
    for piece in client.logs(id, task=rank, attempt=attempt or 0, since=since):
        write_bytes(piece)
