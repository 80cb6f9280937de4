"""`gpuyard team`: the tree of teams, what each is owed and holds, and who belongs to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.flags import AMOUNT, DURATION, KEY_VALUE
from gpuyard.cli.inputs import PIPE, InputFile
from gpuyard.cli.listing import Look, listing_options, show_all
from gpuyard.cli.session import Session, connected
from gpuyard.cli.terminal import ask, one_line, talk

if TYPE_CHECKING:
    from gpuyard.sdk.bodies import TeamsChange, YamlText
    from gpuyard.sdk.calls import Call
    from gpuyard.wire.rest import TeamObject, TeamsChanged

ROLES = ("lead", "member", "viewer")
FILE_ENDINGS = (".yaml", ".yml", ".json")


@click.group()
def team() -> None:
    """Teams: what each is owed, holds, borrows and lends.

    \b
    gpuyard team tree
    gpuyard team set vision --quota 16 --limit 32
    gpuyard team members vision --set ann=lead
    """


@team.command()
@connected
@listing_options
def ls(session: Session, look: Look) -> None:
    """List all teams and the queues above them.

    \b
    gpuyard team ls
    gpuyard team ls -o csv
    """
    from gpuyard.cli.team_columns import TEAMS
    from gpuyard.sdk import calls

    show_all(session, calls.list_teams(), TEAMS, look)


@team.command()
@connected
def tree(session: Session) -> None:
    """Show the tree: owed, held, borrowed, lent, waiting; in GPUs.

    \b
    gpuyard team tree
    """
    from gpuyard.cli.listing import table_lines
    from gpuyard.cli.terminal import PIPED_WIDTH

    rows = [["TEAM", "OWED", "HELD", "BORROWED", "LENT", "FAIR SHARE", "LIMIT", "WAITING", "JOBS"]]
    for found, depth in _in_order(list(session.client.teams())):
        rows.append(
            [
                "  " * depth + one_line(found.name),
                "all it asks" if found.quota is None else found.quota,
                found.held,
                found.borrowed,
                found.lent,
                found.fair_share,
                "none" if found.limit is None else found.limit,
                found.waiting,
                f"{found.running_jobs} run, {found.waiting_jobs} wait",
            ]
        )
    for line in table_lines(rows, PIPED_WIDTH):
        click.echo(line)


def _in_order(teams: list[TeamObject], parent: str | None = None, depth: int = 0) -> list[tuple[TeamObject, int]]:
    listed = []
    for found in teams:
        if found.parent == parent:
            listed += [(found, depth), *_in_order(teams, found.name, depth + 1)]
    return listed


# ------------------------------------------------------------------------------------------------------------- changes


@team.command("set", epilog="The formats are described by: gpuyard schema teams, gpuyard schema team-changes")
@click.argument("what", metavar="TEAM | FILE.yaml")
@click.option("--quota", type=AMOUNT, help="GPUs it is owed.")
@click.option("--limit", type=AMOUNT, help="GPUs it may hold at most, or unlimited.")
@click.option("--weight", type=AMOUNT, help="Its part of what is left over.")
@click.option("--priority", type=int, help="Who is served first.")
@click.option("--parent", help="The queue above it; for a new team.")
@click.option(
    "--idle-limit", type=DURATION, help="Jobs that hold GPUs unused for so long are warned, then reclaimable."
)
@click.option("--idle-percent", type=click.IntRange(0, 100), help="Use below this is idle.")
@click.option("--unix-user", help="The user of the machines its jobs run as.")
@click.option("--new", is_flag=True, help="It does not exist yet, and stands at the top.")
@click.option("--replace", is_flag=True, help="The file is the whole tree; what it does not name goes.")
@click.option("--dry-run", is_flag=True, help="Only say who would start, stop or wait.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--if-revision", type=click.IntRange(0), help="Only if the teams have not changed since then.")
@connected
def set_(
    session: Session,
    what: str,
    replace: bool,
    dry_run: bool,
    yes: bool,
    if_revision: int | None,
    **values: Any,  # noqa: ANN401
) -> None:
    """Change a team, or make one, or write several from a file; shows first who would start, stop or wait.

    \b
    gpuyard team set vision --quota 16 --limit 32
    gpuyard team set audio --parent research --quota 4
    gpuyard team set teams.yaml --dry-run
    gpuyard team set teams.yaml --replace
    """
    from gpuyard.cli.file_errors import about_file
    from gpuyard.sdk import calls

    body = _body(what, values, replace=replace)

    def call(*, trial: bool) -> Call[TeamsChanged]:
        send = calls.set_teams if replace else calls.change_teams
        return send(body, dry_run=trial, if_revision=if_revision)

    with about_file(what, body):
        if dry_run or not yes:
            trial = session.client.send(call(trial=True))
            _show(trial)
            if dry_run:
                return
            if not trial.difference.empty:
                ask("Do that?")
        changed = session.client.send(call(trial=False))
    if yes:
        _tell_notes(changed)
    talk(f"done (revision {changed.revision})")


def _body(what: str, values: dict[str, Any], *, replace: bool) -> TeamsChange | YamlText:
    from gpuyard.sdk.bodies import TeamChange, TeamsChange

    given = {name: value for name, value in values.items() if value is not None and value is not False}
    if what == "-" or what.endswith(FILE_ENDINGS):
        if given:
            raise click.UsageError("Flags are for one team; a file says it all itself.")
        return _file(PIPE if what == "-" else Path(what))
    if replace:
        raise click.UsageError("--replace is for a file with the whole tree.")
    if not given:
        raise click.UsageError(f"Say what changes: gpuyard team set {what} --quota 8")
    return TeamsChange({what: TeamChange(**given)})


def _file(path: Path) -> YamlText:
    from gpuyard.files.source import read_text
    from gpuyard.sdk.bodies import YamlText

    return YamlText(read_text(path))


def _show(changed: TeamsChanged) -> None:
    from gpuyard.cli.show import console
    from gpuyard.cli.show_answers import show_difference

    show_difference(console(), changed.difference)
    _tell_notes(changed)


def _tell_notes(changed: TeamsChanged) -> None:
    for note in changed.notes:
        talk(f"note: {one_line(note)}")


@team.command(epilog="The format is described by: gpuyard schema teams")
@click.argument("path", metavar="FILE.yaml", type=InputFile())
@click.option("--changes", is_flag=True, help="The file names some teams only, not the whole tree.")
@connected
def validate(session: Session, path: Path, changes: bool) -> None:
    """Check a teams file against the cluster, and say who would start, stop or wait. Nothing is done.

    \b
    gpuyard team validate teams.yaml
    """
    from gpuyard.cli.file_errors import about_file

    body = _file(path)
    with about_file(str(path), body):
        send = session.client.change_teams if changes else session.client.set_teams
        _show(send(body, dry_run=True))


@team.command()
@click.argument("name", metavar="TEAM")
@click.option("--dry-run", is_flag=True, help="Only say who would start, stop or wait.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--if-revision", type=click.IntRange(0), help="Only if the teams have not changed since then.")
@connected
def remove(session: Session, name: str, dry_run: bool, yes: bool, if_revision: int | None) -> None:
    """Take a team away that holds no jobs.

    \b
    gpuyard team remove audio
    """
    if dry_run:
        _show(session.client.remove_team(name, dry_run=True, if_revision=if_revision))
        return
    if not yes:
        ask(f"Take team {name} away?")
    session.client.remove_team(name, if_revision=if_revision)
    talk(f"team {name} is gone")


@team.command()
@click.argument("name", metavar="TEAM")
@click.option("--set", "given", type=KEY_VALUE, multiple=True, metavar="USER=ROLE", help="lead, member or viewer.")
@click.option("--remove", "removed", multiple=True, metavar="USER", help="Take somebody out.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@connected
def members(
    session: Session, name: str, given: tuple[tuple[str, str], ...], removed: tuple[str, ...], dry_run: bool
) -> None:
    """Show who belongs to a team, or change that.

    \b
    gpuyard team members vision
    gpuyard team members vision --set ann=lead --set bob=member --remove eve
    """
    for _, role in given:
        if role not in ROLES:
            raise click.BadParameter(
                f'"{role}" is no role in a team; there are: {", ".join(ROLES)}', param_hint="'--set'"
            )
    for user, role in given:
        if dry_run:
            click.echo(f"would make {user} {role} of {name}")
        else:
            session.client.set_member(name, user, role)
    for user in removed:
        if dry_run:
            click.echo(f"would take {user} out of {name}")
        else:
            session.client.remove_member(name, user)
    found = session.client.get_team(name).members
    if found is None:
        talk("you may not see who belongs to it")
    for member in found or ():
        click.echo(f"{one_line(member.user)}\t{member.role}")
