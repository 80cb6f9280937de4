"""`gpuyard team`: the tree of teams, what each is owed and holds, and who belongs to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gpuyard.cli.flags import AMOUNT, DURATION, KEY_VALUE
from gpuyard.cli.inputs import PIPE, InputFile
from gpuyard.cli.listing import Look, listing_options, show_all
from gpuyard.cli.output import FORMATS, form_option
from gpuyard.cli.session import Session, connected, connected_anywhere
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
@connected_anywhere
@listing_options
def ls(session: Session, look: Look) -> None:
    """List all teams and the queues above them; with a Kubernetes context, its Queue objects.

    \b
    gpuyard team ls
    gpuyard team ls -o csv
    gpuyard team ls --kubernetes
    """
    if session.on_kubernetes:
        from gpuyard.cli.kube_questions import list_queues

        list_queues(session, look)
        return
    from gpuyard.cli.team_columns import TEAMS
    from gpuyard.sdk import calls

    show_all(session, calls.list_teams(), TEAMS, look)


@team.command()
@form_option
@connected_anywhere
def tree(session: Session, output: str | None) -> None:
    """Show the tree: owed, held, borrowed, lent, waiting; in GPUs.

    \b
    gpuyard team tree
    gpuyard team tree -o json
    gpuyard team tree --kubernetes --kube-context admin@prod
    """
    from gpuyard.cli.listing import print_verbatim
    from gpuyard.sdk import calls

    form = session.output(output, FORMATS, "text")
    if session.on_kubernetes:
        from gpuyard.cli.kube_questions import show_queues

        show_queues(session, form)
    elif form != "text":
        print_verbatim(list(session.client.items(calls.list_teams().verbatim())), form)
    else:
        print_tree(list(session.client.teams()))


def print_tree(teams: Sequence[TeamObject]) -> None:
    """A line per queue, below the one it belongs to."""
    from gpuyard.cli.listing import table_lines
    from gpuyard.cli.terminal import PIPED_WIDTH

    rows = [["TEAM", "OWED", "HELD", "BORROWED", "LENT", "FAIR SHARE", "LIMIT", "WAITING", "JOBS"]]
    for found, depth in _in_order(teams):
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


def _in_order(teams: Sequence[TeamObject], parent: str | None = None, depth: int = 0) -> list[tuple[TeamObject, int]]:
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
@form_option
@connected
def set_(
    session: Session,
    what: str,
    replace: bool,
    dry_run: bool,
    yes: bool,
    if_revision: int | None,
    output: str | None,
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

    form = session.output(output, FORMATS, "text")
    body = _body(what, values, replace=replace)

    def call(*, trial: bool) -> Call[TeamsChanged]:
        send = calls.set_teams if replace else calls.change_teams
        return send(body, dry_run=trial, if_revision=if_revision)

    with about_file(what, body):
        if dry_run:
            _show(_sent(session, call(trial=True)), form)
            return
        if not yes:
            _agreed(_sent(session, call(trial=True)), form)
        changed = _sent(session, call(trial=False))
    _done(changed, form, with_notes=yes)


class _Answer(NamedTuple):
    """What an edit does or would do, as the server wrote it and as it is read."""

    raw: bytes
    changed: TeamsChanged


def _sent(session: Session, call: Call[TeamsChanged]) -> _Answer:
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.rest import TeamsChanged

    raw = session.client.send(call.verbatim())
    return _Answer(raw, decoded_json(raw, TeamsChanged))


def _agreed(trial: _Answer, form: str) -> None:
    """Show who would be concerned, and go on only if that is meant. A program's output has only what was done."""
    if form == "text":
        _show(trial, form)
    else:
        for line in trial.changed.text:
            talk(one_line(line))
    if not trial.changed.difference.empty:
        ask("Do that?")


def _done(answer: _Answer, form: str, *, with_notes: bool) -> None:
    from gpuyard.cli.listing import print_object

    if form != "text":
        print_object(answer.raw, form)
        return
    if with_notes:
        _tell_notes(answer.changed)
    talk(f"done (revision {answer.changed.revision})")


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


def _show(answer: _Answer, form: str) -> None:
    from gpuyard.cli.listing import print_object
    from gpuyard.cli.show import console
    from gpuyard.cli.show_answers import show_difference

    if form != "text":
        print_object(answer.raw, form)
        return
    show_difference(console(), answer.changed.difference)
    _tell_notes(answer.changed)


def _tell_notes(changed: TeamsChanged) -> None:
    for note in changed.notes:
        talk(f"note: {one_line(note)}")


@team.command(epilog="The format is described by: gpuyard schema teams")
@click.argument("path", metavar="FILE.yaml", type=InputFile())
@click.option("--changes", is_flag=True, help="The file names some teams only, not the whole tree.")
@form_option
@connected
def validate(session: Session, path: Path, changes: bool, output: str | None) -> None:
    """Check a teams file against the cluster, and say who would start, stop or wait. Nothing is done.

    \b
    gpuyard team validate teams.yaml
    """
    from gpuyard.cli.file_errors import about_file
    from gpuyard.sdk import calls

    form = session.output(output, FORMATS, "text")
    body = _file(path)
    with about_file(str(path), body):
        send = calls.change_teams if changes else calls.set_teams
        _show(_sent(session, send(body, dry_run=True)), form)


@team.command()
@click.argument("name", metavar="TEAM")
@click.option("--dry-run", is_flag=True, help="Only say who would start, stop or wait.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--if-revision", type=click.IntRange(0), help="Only if the teams have not changed since then.")
@form_option
@connected
def remove(session: Session, name: str, dry_run: bool, yes: bool, if_revision: int | None, output: str | None) -> None:
    """Take a team away that holds no jobs.

    \b
    gpuyard team remove audio
    """
    from gpuyard.cli.listing import print_object
    from gpuyard.sdk import calls

    form = session.output(output, FORMATS, "text")
    if not dry_run and not yes:
        ask(f"Take team {name} away?")
    answer = _sent(session, calls.remove_team(name, dry_run=dry_run, if_revision=if_revision))
    if dry_run:
        _show(answer, form)
    elif form != "text":
        print_object(answer.raw, form)
    else:
        talk(f"team {name} is gone")


@team.command()
@click.argument("name", metavar="TEAM")
@click.option("--set", "given", type=KEY_VALUE, multiple=True, metavar="USER=ROLE", help="lead, member or viewer.")
@click.option("--remove", "removed", multiple=True, metavar="USER", help="Take somebody out.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@form_option
@connected
def members(
    session: Session,
    name: str,
    given: tuple[tuple[str, str], ...],
    removed: tuple[str, ...],
    dry_run: bool,
    output: str | None,
) -> None:
    """Show who belongs to a team, or change that.

    \b
    gpuyard team members vision
    gpuyard team members vision --set ann=lead --set bob=member --remove eve
    """
    from gpuyard.cli.output import print_data

    form = session.output(output, FORMATS, "text")
    for _, role in given:
        if role not in ROLES:
            raise click.BadParameter(
                f'"{role}" is no role in a team; there are: {", ".join(ROLES)}', param_hint="'--set'"
            )
    say = click.echo if form == "text" else talk
    for user, role in given:
        if dry_run:
            say(f"would make {user} {role} of {name}")
        else:
            session.client.set_member(name, user, role)
    for user in removed:
        if dry_run:
            say(f"would take {user} out of {name}")
        else:
            session.client.remove_member(name, user)
    found = session.client.get_team(name).members
    if found is None:
        talk("you may not see who belongs to it")
    if form != "text":
        print_data(found or (), form)
        return
    for member in found or ():
        click.echo(f"{one_line(member.user)}\t{member.role}")
