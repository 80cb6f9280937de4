"""`gpuyard submit`: a job into the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.flags import DURATION
from gpuyard.cli.job_flags import JobCommand, job_body, job_options, refuse_array
from gpuyard.cli.schedule_flags import cron_option, zone_option
from gpuyard.cli.session import Session, connected
from gpuyard.cli.terminal import on_terminal, one_line, talk

if TYPE_CHECKING:
    from gpuyard.sdk.bodies import JobRequest, YamlText
    from gpuyard.wire.rest import Submitted

OUTPUTS = ("text", "json", "yaml", "name")


@click.command(cls=JobCommand, epilog="The format of job files: gpuyard schema work. What would happen: gpuyard plan")
@click.argument("words", metavar="[FILE | -- CMD...]", nargs=-1, type=click.UNPROCESSED)
@job_options
@click.option("--dry-run", is_flag=True, help="Check it and say what would be submitted; nothing is.")
@click.option("--allow-never", is_flag=True, help="Take it even if it can never run on this cluster.")
@click.option("--wait", is_flag=True, help="Wait until it is over, and end with its exit code.")
@click.option("--follow", is_flag=True, help="The same, and show what it writes.")
@cron_option
@zone_option
@click.option("--timeout", type=DURATION, help="With --wait or --follow: give up watching after that (exit code 124).")
@click.option("-o", "--output", type=click.Choice(OUTPUTS), help="The form of the answer.  [default: text]")
@connected
def submit(
    session: Session,
    words: tuple[str, ...],
    flags: dict[str, Any],
    dry_run: bool,
    allow_never: bool,
    wait: bool,
    follow: bool,
    cron: str | None,
    time_zone: str | None,
    timeout: str | None,
    output: str | None,
) -> None:
    """Submit a job, or an array of jobs.

    A job is a YAML file, a command after two dashes, or a script whose #GPUYARD lines hold flags; flags win over what
    a file says. When piped, only the ids are printed. Ctrl-C while following lets go of the job and never ends it.

    \b
    gpuyard submit train.yaml
    gpuyard submit --gpus 2 --team vision -- python train.py --epochs 3
    gpuyard submit --gpus 0.5 --array 0-9%4 -- python sweep.py
    gpuyard submit --gpus 8 --nodes 4 --time 12h --afterok 17 train.yaml
    gpuyard submit --cron "0 3 * * *" --time-zone Europe/Berlin --name nightly -- python report.py
    ID=$(gpuyard submit train.yaml) && gpuyard logs -f $ID
    """
    from gpuyard.cli.follow import end_with, stay, stay_with_all, timeout_ms

    if timeout and not (wait or follow):
        raise click.UsageError("--timeout is for --wait and --follow; to limit the job itself use --time.")
    if cron or time_zone:
        if wait or follow:
            raise click.UsageError("A job that comes again cannot be waited for; see: gpuyard schedule describe")
        _repeat(session, words, flags, cron, time_zone, dry_run=dry_run, allow_never=allow_never, output=output)
        return
    job = job_body(words, flags, session.settings.get("team"))
    if follow:
        refuse_array(job, "--wait waits for all of it")
    submitted = send(session, job, words, dry_run=dry_run, allow_never=allow_never, output=output)
    if dry_run or not (wait or follow):
        return
    ids = [one.id for one in submitted.jobs]
    limit_ms = timeout_ms(timeout)
    end_with(
        stay(session.client, ids[0], timeout_ms=limit_ms) if follow else stay_with_all(session.client, ids, limit_ms)
    )


def _repeat(
    session: Session,
    words: tuple[str, ...],
    flags: dict[str, Any],
    cron: str | None,
    time_zone: str | None,
    *,
    dry_run: bool,
    allow_never: bool,
    output: str | None,
) -> None:
    """The job comes again: the same as `gpuyard schedule set` for a name that is not taken."""
    from gpuyard.cli import schedule
    from gpuyard.cli.schedule_flags import named, request_of

    if not cron or "name" not in flags:
        raise click.UsageError("A job that comes again needs --cron and a --name, by which it is found.")
    timing = {"cron": cron, **({"time_zone": time_zone} if time_zone else {})}
    team, name = named(session, str(flags["name"]), str(flags.get("team", "")))
    written = request_of(session, team, name, words, timing, flags)
    schedule.send(
        session,
        (team, name),
        written.body,
        words,
        if_revision=0,
        allow_never=allow_never,
        dry_run=dry_run,
        output=output,
    )


def send(
    session: Session,
    job: JobRequest | YamlText,
    words: tuple[str, ...],
    *,
    dry_run: bool = False,
    allow_never: bool = False,
    output: str | None = None,
) -> Submitted:
    """Submit it, and print what came of it."""
    from gpuyard.cli.file_errors import about_file
    from gpuyard.sdk import calls

    form = session.output(output, OUTPUTS, "text")
    call = calls.submit_job(job, dry_run=dry_run, allow_never=allow_never)
    with about_file(words[0], job):
        raw = session.client.send(call.verbatim())
    return show_submitted(raw, form, dry_run=dry_run)


def show_submitted(raw: bytes, form: str, *, dry_run: bool = False) -> Submitted:
    """What came of a submission: a sentence for a person, ids for a program."""
    from gpuyard.cli.listing import print_object
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.rest import Submitted

    submitted: Submitted = decoded_json(raw, Submitted)
    for warning in submitted.warnings:
        talk(f"warning: {one_line(warning)}")
    if form in ("json", "yaml"):
        print_object(raw, form)
    elif form == "name" or not (on_terminal() or dry_run):
        click.echo("\n".join(job.id for job in submitted.jobs))
    else:
        for line in (_said(submitted, dry_run=dry_run), *submitted.text):
            click.echo(one_line(line))
    return submitted


def _said(submitted: Submitted, *, dry_run: bool) -> str:
    first, count = submitted.jobs[0], len(submitted.jobs)
    verb = "would submit" if dry_run else "submitted"
    what = f"for team {first.team}: {first.gpus} GPU{'' if first.gpus == '1' else 's'}, priority {first.priority}"
    if count > 1:
        which = f"{count} jobs" if dry_run else f"{count} jobs, {first.id} to {submitted.jobs[-1].id},"
        return f"{verb} {which} {what} each"
    return f"{verb} {'a job' if dry_run else f'job {first.id}'} ({first.name}) {what}"
