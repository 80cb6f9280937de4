"""`gpuyard wait`: until jobs are over."""

from __future__ import annotations

import click

from gpuyard.cli.flags import DURATION
from gpuyard.cli.session import Session, connected


@click.command(epilog="Ends with the job's own exit code; of several jobs with the first that is not 0.")
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@click.option("--timeout", type=DURATION, help="Give up after that (exit code 124); the jobs go on.")
@connected
def wait(session: Session, jobs: tuple[str, ...], timeout: str | None) -> None:
    """Wait until jobs are over, and end with their exit code.

    \b
    gpuyard wait 17
    gpuyard wait 17-19 sweep --timeout 2h     an array or a name of several: all of them
    """
    from gpuyard.cli.follow import end_with, stay_with_all, timeout_ms
    from gpuyard.cli.job_ids import all_to_wait_for

    end_with(stay_with_all(session.client, all_to_wait_for(session.client, jobs), timeout_ms(timeout)))
