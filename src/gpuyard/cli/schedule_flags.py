"""The flags of schedules, and what they make: a request, whole or changed from what the server has.

Place in the flow: `schedule set` and `submit --cron` ─flags─▶ **ScheduleRequest** ─▶ sdk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from gpuyard.cli.flags import DURATION, Checked
from gpuyard.cli.job_flags import changed_fields, fields_in_file, fields_of, job_body

if TYPE_CHECKING:
    from gpuyard.cli.session import Session
    from gpuyard.sdk.bodies import JobRequest, ScheduleRequest, YamlText
    from gpuyard.wire.rest import ScheduleDetail

Command = Callable[..., Any]

OVERLAPS: Final = ("skip", "queue", "replace")
MISSED: Final = ("skip", "run-once")
"""Spelled out here, so that the help needs no reader; a test compares them with model.recurrence."""


def _cron(text: str) -> None:
    from gpuyard.files.cron import check_cron

    check_cron(text)


CRON: Final = Checked("cron", _cron)

cron_option = click.option(
    "--cron", type=CRON, metavar="'M H D M W'", help="When: '0 3 * * *', '*/15 8-17 * * MON-FRI', @daily."
)
zone_option = click.option("--time-zone", help="Whose clocks are meant: Europe/Berlin.  [default: UTC]")
_OPTIONS: Final = (
    cron_option,
    zone_option,
    click.option("--overlap", type=click.Choice(OVERLAPS), help="While an earlier run is not over.  [default: skip]"),
    click.option("--missed", type=click.Choice(MISSED), help="Times without a manager.  [default: run-once]"),
    click.option("--missed-limit", type=DURATION, help="How late a run for them may be.  [default: 1d]"),
    click.option("--paused", is_flag=True, default=None, help="Run nothing until it is resumed."),
)
_FIELDS: Final = ("cron", "time_zone", "overlap", "missed", "missed_limit", "paused")


def schedule_options(command: Command) -> Command:
    """The flags; the command gets those that were given as one map `timing`."""

    @functools.wraps(command)
    def with_timing(*arguments: Any, **given: Any) -> Any:  # noqa: ANN401
        timing = {name: given.pop(name) for name in _FIELDS}
        given_only = {name: value for name, value in timing.items() if value is not None}
        return command(*arguments, timing=given_only, **given)

    for option in reversed(_OPTIONS):
        option(with_timing)
    return with_timing


# --------------------------------------------------------------------------------------------------------------- names


def named(session: Session, text: str, team: str = "") -> tuple[str, str]:
    """Team and name of `TEAM/NAME`, or of a NAME that is known or can only be of one team."""
    first, slash, rest = text.partition("/")
    if slash:
        if not first or not rest or (team and team != first):
            raise click.UsageError(f'"{text}" names no schedule{f" of team {team}" if team else ""}; write TEAM/NAME')
        return first, rest
    team = team or session.settings.get("team")
    return (team or _only_team(session, text)), text


def _only_team(session: Session, name: str) -> str:
    found = sorted({one.team for one in session.client.schedules() if one.name == name})
    teams = found or list(session.client.whoami().teams)
    if len(teams) == 1:
        return teams[0]
    whose = ", ".join(teams) or "none that you may submit to"
    raise click.UsageError(f'Of which team is "{name}"? Write TEAM/{name}; teams: {whose}')


# ------------------------------------------------------------------------------------------------------------ requests


class Written(NamedTuple):
    """What to send, and which revision it was made from; 0: there was none."""

    body: ScheduleRequest | YamlText
    revision: int | None


def request_of(
    session: Session, team: str, name: str, words: tuple[str, ...], timing: dict[str, Any], flags: dict[str, Any]
) -> Written:
    """The schedule as it is to be: what is given, and for the rest what it is."""
    from gpuyard.sdk.bodies import ScheduleRequest

    inside = fields_in_file(words)
    if "cron" in inside:
        return Written(_from_file(words[0], inside, timing, flags), None)
    known = _known(session, team, name)
    fields = {**_timing_of(known), **timing}
    if "cron" not in fields:
        raise click.UsageError(f'Say when it runs: gpuyard schedule set {name} --cron "0 3 * * *" -- CMD')
    job = _job(known, words, flags, team)
    return Written(ScheduleRequest(job=job, **fields), known.revision if known else 0)


def _from_file(
    path: str, inside: dict[str, Any], timing: dict[str, Any], flags: dict[str, Any]
) -> ScheduleRequest | YamlText:
    """A schedule file as it is written, so that errors name its lines; flags about time win over it."""
    from gpuyard.files.source import read_text
    from gpuyard.sdk.bodies import ScheduleRequest, YamlText

    if set(flags) - {"team"}:
        raise click.UsageError(
            "The flags of a job are for a job file or a command; a schedule file says it all itself."
        )
    if not timing:
        return YamlText(read_text(Path(path)))
    known = {field: inside[field] for field in ScheduleRequest.__struct_fields__ if field in inside}
    if "job" not in known:
        raise click.UsageError(f"{path} lacks the job: docs/recurring-jobs.md")
    return ScheduleRequest(**{**known, **timing})


def _known(session: Session, team: str, name: str) -> ScheduleDetail | None:
    from gpuyard.errors import NotFoundError

    try:
        return session.client.get_schedule(team, name)
    except NotFoundError:
        return None


def _timing_of(known: ScheduleDetail | None) -> dict[str, Any]:
    if known is None:
        return {}
    return {
        "cron": known.cron,
        "time_zone": known.time_zone,
        "overlap": known.overlap,
        "missed": known.missed,
        "missed_limit": f"{known.missed_limit_ms}ms",
    }


def _job(
    known: ScheduleDetail | None, words: tuple[str, ...], flags: dict[str, Any], team: str
) -> JobRequest | dict[str, object]:
    from gpuyard.sdk.bodies import JobRequest

    given = {field: value for field, value in flags.items() if field != "team"}
    if words:
        body = job_body(words, given, "")
        return body if isinstance(body, JobRequest) else fields_of(words[0], body.text)
    if known is None:
        raise click.UsageError("Say what it runs: a job file, or a command after two dashes: -- python report.py")
    if known.job is None:
        raise click.UsageError("You may not see its job, so say what it runs: a job file, or a command: -- CMD")
    return changed_fields(known.job, given)
