"""`gpuyard schedule`: jobs that come again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.job_flags import JobCommand, job_options
from gpuyard.cli.listing import Look, listing_options, show_all
from gpuyard.cli.schedule_flags import named, request_of, schedule_options
from gpuyard.cli.session import Session, connected
from gpuyard.cli.terminal import ask, one_line

if TYPE_CHECKING:
    from gpuyard.sdk.bodies import ScheduleRequest, YamlText
    from gpuyard.sdk.calls import Call
    from gpuyard.wire.rest import ScheduleDetail

OUTPUTS = ("text", "json", "yaml", "name")
MAX_EVENTS = 20

output_option = click.option(
    "-o", "--output", type=click.Choice(OUTPUTS), help="The form of the answer.  [default: text]"
)
revision_option = click.option(
    "--if-revision", type=click.IntRange(0), help="Only if it has not changed since then; 0: only if there is none."
)
dry_option = click.option("--dry-run", is_flag=True, help="Only say what would be done.")


@click.group()
def schedule() -> None:
    """Jobs that come again: by cron expression and time zone, one run for each planned time.

    Schedules belong to a team and are called NAME, or TEAM/NAME. More: docs/recurring-jobs.md

    \b
    gpuyard schedule set nightly --cron "0 3 * * *" --time-zone Europe/Berlin --gpus 1 -- python report.py
    gpuyard schedule ls
    gpuyard schedule describe nightly
    gpuyard ls -l gpuyard.io/schedule=nightly
    """


@schedule.command()
@click.option("-t", "--team", default="", help="Of one team.")
@click.option("--owner", default="", metavar="USER", help="Of one user.")
@connected
@listing_options
def ls(session: Session, team: str, owner: str, look: Look) -> None:
    """List schedules: when each runs next, what its last run came to, why one was skipped.

    \b
    gpuyard schedule ls
    gpuyard schedule ls --team vision --sort next
    """
    from gpuyard.cli.schedule_columns import SCHEDULES
    from gpuyard.sdk import calls

    show_all(session, calls.list_schedules(team=team, owner=owner), SCHEDULES, look)


# ------------------------------------------------------------------------------------------------------------- writing


@schedule.command("set", cls=JobCommand, epilog="The format of the files: gpuyard schema schedule, gpuyard schema work")
@click.argument("schedule_name", metavar="[TEAM/]NAME")
@click.argument("words", metavar="[FILE | -- CMD...]", nargs=-1, type=click.UNPROCESSED)
@schedule_options
@job_options
@click.option("--allow-never", is_flag=True, help="Take it even if its job can never run on this cluster.")
@click.option("--dry-run", is_flag=True, help="Check it and say what it would be; nothing is done.")
@revision_option
@output_option
@connected
def set_(
    session: Session,
    schedule_name: str,
    words: tuple[str, ...],
    timing: dict[str, Any],
    flags: dict[str, Any],
    allow_never: bool,
    dry_run: bool,
    if_revision: int | None,
    output: str | None,
) -> None:
    """Make a schedule, or change one: what is not given stays as it is. It is yours then.

    FILE is a schedule file, or a job file; or the job is a command after two dashes.

    \b
    gpuyard schedule set nightly --cron "0 3 * * *" --time-zone Europe/Berlin --gpus 1 -- python report.py
    gpuyard schedule set vision/sweep --cron "@hourly" --overlap queue sweep.yaml
    gpuyard schedule set nightly nightly.yaml --dry-run
    gpuyard schedule set nightly --cron "0 4 * * *"
    """
    team, name = named(session, schedule_name, str(flags.get("team", "")))
    written = request_of(session, team, name, words, timing, flags)
    send(
        session,
        (team, name),
        written.body,
        words,
        if_revision=written.revision if if_revision is None else if_revision,
        allow_never=allow_never,
        dry_run=dry_run,
        output=output,
    )


def send(
    session: Session,
    where: tuple[str, str],
    body: ScheduleRequest | YamlText,
    words: tuple[str, ...],
    *,
    if_revision: int | None,
    allow_never: bool = False,
    dry_run: bool = False,
    output: str | None = None,
) -> None:
    """Write a schedule, and say what it is now."""
    from gpuyard.cli.file_errors import about_file
    from gpuyard.sdk import calls

    call = calls.set_schedule(*where, body, dry_run=dry_run, allow_never=allow_never, if_revision=if_revision)
    with about_file(words[0] if words else "", body):
        _send(session, call, "would be" if dry_run else "is", output)


def _send(session: Session, call: Call[Any], verb: str, output: str | None) -> None:
    from gpuyard.cli.listing import print_object
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.rest import ScheduleDetail

    form = session.output(output, OUTPUTS, "text")
    raw = session.client.send(call.verbatim())
    found: ScheduleDetail = decoded_json(raw, ScheduleDetail)
    if form == "name":
        click.echo(f"{found.team}/{found.name}")
    elif form == "text":
        click.echo(one_line(_said(found, verb)))
    else:
        print_object(raw, form)


def _said(found: ScheduleDetail, verb: str) -> str:
    from gpuyard.cli.times import exact, now, until

    first = found.next_times[0] if found.next_times else None
    then = f"; next {until(first, now())}, at {exact(first)}" if first else ""
    return f'{found.team}/{found.name} {verb} {found.state}: "{found.cron}" in {found.time_zone}{then}'


# ------------------------------------------------------------------------------------------------------------- looking


@schedule.command()
@click.argument("schedule_name", metavar="[TEAM/]NAME")
@click.option(
    "--events", "count", type=click.IntRange(0, 1000), default=MAX_EVENTS, show_default=True, help="How many."
)
@output_option
@connected
def describe(session: Session, schedule_name: str, count: int, output: str | None) -> None:
    """Show a schedule with its next times, its last runs, and what happened to it.

    \b
    gpuyard schedule describe nightly
    gpuyard schedule describe vision/nightly -o json | jq .runs
    """
    from gpuyard.cli.listing import lines_of, print_object
    from gpuyard.sdk import calls
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.rest import ScheduleDetail

    form = session.output(output, OUTPUTS, "text")
    team, name = named(session, schedule_name)
    raw = session.client.send(calls.get_schedule(team, name).verbatim())
    found: ScheduleDetail = decoded_json(raw, ScheduleDetail)
    if form == "name":
        click.echo(f"{team}/{name}")
    elif form != "text":
        print_object(raw, form)
    else:
        for line in lines_of(_facts(found)):
            click.echo(line)
        _print_runs(found)
        _print_events(session, f"schedule/{team}/{name}", count)


def _facts(found: ScheduleDetail) -> Iterator[tuple[str, str]]:
    from gpuyard.cli.times import exact, now, span, until

    at = now()
    yield "Schedule", f"{found.team}/{found.name}"
    yield "Owner", found.owner
    yield "State", found.state
    yield "Why", "; ".join(why.text for why in found.why)
    yield "Cron", f"{found.cron} in {found.time_zone}"
    yield "Next", ", ".join(exact(moment) for moment in found.next_times)
    yield "Next in", until(found.next_at, at).removeprefix("in ")
    yield "If one runs still", found.overlap
    yield "If one was missed", f"{found.missed}, at most {span(found.missed_limit_ms / 1000)} late"
    yield "Last skipped", found.last_skip.text if found.last_skip else ""
    yield "Asks for", f"{found.gpus} GPU{'' if found.gpus == '1' else 's'} in all"
    yield "Command", _command(found)
    yield "Written", exact(found.set_at)
    yield "Revision", str(found.revision)


def _command(found: ScheduleDetail) -> str:
    import shlex

    command = (found.job or {}).get("command", "")
    return command if isinstance(command, str) else shlex.join(map(str, command))


def _print_runs(found: ScheduleDetail) -> None:
    from gpuyard.cli.listing import table_lines
    from gpuyard.cli.terminal import PIPED_WIDTH
    from gpuyard.cli.times import exact

    if not found.runs:
        return
    rows = [["PLANNED", "SUBMITTED", "JOB", "STATE", "HOW"]]
    for run in found.runs:
        how = "asked for" if run.asked else "planned"
        rows.append([exact(run.planned_at), exact(run.submitted_at), run.job, run.state, how])
    click.echo()
    for line in table_lines(rows, PIPED_WIDTH):
        click.echo(line)


def _print_events(session: Session, object: str, count: int) -> None:
    from itertools import islice

    from gpuyard.cli.times import exact

    events = list(islice(session.client.events(object=object), count))
    if events:
        click.echo()
    for event in reversed(events):
        click.echo(f"{exact(event.at)}  {one_line(event.text)}")


# ------------------------------------------------------------------------------------------------------------ steering


def _would(session: Session, verb: str, where: tuple[str, str]) -> None:
    """Say what would be done to a schedule that is there."""
    found = session.client.get_schedule(*where)
    click.echo(one_line(f"would {verb} {found.team}/{found.name}, which is {found.state}"))


def _verb(name: str, text: str, make: Callable[..., Call[Any]]) -> None:
    @click.argument("names", metavar="[TEAM/]NAME...", nargs=-1, required=True)
    @dry_option
    @revision_option
    @output_option
    @connected
    def steer(
        session: Session, names: tuple[str, ...], dry_run: bool, if_revision: int | None, output: str | None
    ) -> None:
        for one in names:
            where = named(session, one)
            if dry_run:
                _would(session, name, where)
            else:
                _send(session, make(*where, if_revision=if_revision), "is", output)

    steer.__doc__ = f"{text}\n\n    \b\n    gpuyard schedule {name} nightly\n    "
    schedule.command(name)(steer)


def _pause(team: str, name: str, *, if_revision: int | None) -> Call[Any]:
    from gpuyard.sdk import calls

    return calls.pause_schedule(team, name, if_revision=if_revision)


def _resume(team: str, name: str, *, if_revision: int | None) -> Call[Any]:
    from gpuyard.sdk import calls

    return calls.resume_schedule(team, name, if_revision=if_revision)


_verb("pause", "Run nothing until it is resumed; what is planned meanwhile is not made up for.", _pause)
_verb("resume", "Run again at the next time; also a schedule that the manager has suspended.", _resume)


@schedule.command()
@click.argument("schedule_name", metavar="[TEAM/]NAME")
@dry_option
@revision_option
@output_option
@connected
def run(session: Session, schedule_name: str, dry_run: bool, if_revision: int | None, output: str | None) -> None:
    """Run it now, beside what is planned; it runs as its owner, and the rule about overlaps holds.

    \b
    gpuyard schedule run nightly
    gpuyard logs -f $(gpuyard schedule run nightly -o name)
    """
    from gpuyard.cli.submit import show_submitted
    from gpuyard.sdk import calls

    form = session.output(output, OUTPUTS, "text")
    where = named(session, schedule_name)
    if dry_run:
        _would(session, "run", where)
        return
    raw = session.client.send(calls.run_schedule(*where, if_revision=if_revision).verbatim())
    show_submitted(raw, form)


@schedule.command()
@click.argument("names", metavar="[TEAM/]NAME...", nargs=-1, required=True)
@dry_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@revision_option
@connected
def rm(session: Session, names: tuple[str, ...], dry_run: bool, yes: bool, if_revision: int | None) -> None:
    """Take schedules away; runs that are not over go on.

    \b
    gpuyard schedule rm nightly
    """
    found = [named(session, one) for one in names]
    if not yes and not dry_run:
        ask(f"Take {', '.join('/'.join(one) for one in found)} away?")
    for team, name in found:
        if dry_run:
            _would(session, "remove", (team, name))
        else:
            session.client.remove_schedule(team, name, if_revision=if_revision)
            click.echo(one_line(f"{team}/{name} removed"))
