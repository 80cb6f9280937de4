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
    gpuyard wait 17 18 19 --timeout 2h
    """
    from gpuyard.cli.exit_codes import INTERRUPTED, TIMED_OUT
    from gpuyard.cli.follow import end_with, stay, timeout_ms
    from gpuyard.cli.job_ids import several_jobs
    from gpuyard.platform.clock import monotonic_ms

    limit_ms = timeout_ms(timeout)
    began_ms = monotonic_ms()
    codes = []
    for id in several_jobs(session.client, jobs, {}, "", ""):
        left_ms = None if limit_ms is None else max(limit_ms - (monotonic_ms() - began_ms), 0)
        codes.append(stay(session.client, id, output=False, timeout_ms=left_ms))
        if codes[-1] in (INTERRUPTED, TIMED_OUT):
            break
    end_with(next((code for code in codes if code), 0))
