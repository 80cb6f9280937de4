"""`gpuyard logs`: what a job has written."""

from __future__ import annotations

import click

from gpuyard.cli.flags import DURATION
from gpuyard.cli.session import Session, connected

BYTES_A_LINE = 200
"""How much is fetched for each line of --tail at first; more is fetched where lines are longer."""


@click.command(epilog="With -f it ends with the exit code of the job; Ctrl-C lets go of the job and never ends it.")
@click.argument("job", metavar="JOB")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over, through restarts.")
@click.option("--rank", "--task", "rank", type=click.IntRange(0), default=0, show_default=True, help="Which task.")
@click.option("--attempt", type=click.IntRange(1), help="Which attempt.  [default: the newest]")
@click.option("--tail", type=click.IntRange(0), help="Only the last lines.")
@click.option("--timeout", type=DURATION, help="With -f: give up watching after that (exit code 124).")
@connected
def logs(
    session: Session,
    job: str,
    follow: bool,
    rank: int,
    attempt: int | None,
    tail: int | None,
    timeout: str | None,
) -> None:
    """Show what a job has written.

    \b
    gpuyard logs 17
    gpuyard logs -f train
    gpuyard logs 17 --rank 3 --tail 100
    """
    from gpuyard.cli.follow import end_with, stay, timeout_ms, write_bytes
    from gpuyard.cli.job_ids import one_job

    client = session.client
    id = one_job(client, job)
    if follow:
        if attempt is not None:
            raise click.UsageError("-f follows the job through all attempts from its newest on; leave --attempt out.")
        end_with(stay(client, id, task=rank, timeout_ms=timeout_ms(timeout), tail=tail))
        return
    if tail is not None:
        write_bytes(last_lines(session, id, rank, attempt or 0, tail))
        return
    for piece in client.logs(id, task=rank, attempt=attempt or 0):
        write_bytes(piece)


def last_lines(session: Session, id: str, rank: int, attempt: int, count: int) -> bytes:
    """The last lines of a log, fetching no more of it than needed."""
    size = max(count, 1) * BYTES_A_LINE
    while True:
        end = b"".join(session.client.logs(id, task=rank, attempt=attempt, offset=-size))
        lines = end.splitlines(keepends=True)
        if len(lines) > count or len(end) < size:
            return b"".join(lines[len(lines) - min(count, len(lines)) :])
        size *= 4
