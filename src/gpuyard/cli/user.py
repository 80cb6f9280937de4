"""`gpuyard user`: people and their roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.listing import Look, listing_options, show_all
from gpuyard.cli.output import FORMATS, form_option
from gpuyard.cli.session import Session, connected
from gpuyard.cli.terminal import ask, one_line

if TYPE_CHECKING:
    from gpuyard.wire.access import Grant

ROLES = ("admin", "operator", "lead", "member", "viewer")
CLUSTER_ROLES = ("admin", "operator")


class GrantType(click.ParamType[Any]):
    """ROLE or ROLE@TEAM."""

    name = "role@team"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        role, at, team = value.partition("@")
        if role not in ROLES:
            self.fail(f'"{role}" is no role; there are: {", ".join(ROLES)}', param, ctx)
        if role in CLUSTER_ROLES and at:
            self.fail(f"{role} is for the whole cluster; write it without a team", param, ctx)
        if role not in CLUSTER_ROLES and not team:
            self.fail(f"{role} of which team? Write {role}@TEAM, or {role}@* for all", param, ctx)
        return role, team or "*"


@click.group()
def user() -> None:
    """Users and their roles.

    \b
    gpuyard user ls
    gpuyard user set ann --grant lead@vision
    """


@user.command()
@connected
@listing_options
def ls(session: Session, look: Look) -> None:
    """List the users.

    \b
    gpuyard user ls
    """
    from gpuyard.cli.user_columns import USERS
    from gpuyard.sdk import calls

    show_all(session, calls.list_users(), USERS, look)


@user.command("set")
@click.argument("name", metavar="USER")
@click.option("--grant", "grants", type=GrantType(), multiple=True, help="A role: admin, operator, lead@vision, ...")
@click.option(
    "--unix-user",
    default="",
    help="The account on the nodes that their jobs run as.  [default: the team's; else a user number of their own]",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--if-revision", type=click.IntRange(0), help="Only if they have not changed since then.")
@form_option
@connected
def set_(
    session: Session,
    name: str,
    grants: tuple[tuple[str, str], ...],
    unix_user: str,
    dry_run: bool,
    if_revision: int | None,
    output: str | None,
) -> None:
    """Make a user, or write all their roles anew.

    \b
    gpuyard user set ann --grant lead@vision --grant viewer@speech
    gpuyard user set ops --grant operator
    """
    from gpuyard.cli.listing import print_object
    from gpuyard.sdk import calls
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.access import Grant, Role
    from gpuyard.wire.rest import UserChange, UserObject

    form = session.output(output, FORMATS, "text")
    given = tuple(Grant(Role(role), team) for role, team in grants)
    if dry_run:
        click.echo(f"would give {name} the roles: {_said(given)}")
        return
    call = calls.set_user(name, UserChange(given, unix_user), if_revision=if_revision)
    raw = session.client.send(call.verbatim())
    if form != "text":
        print_object(raw, form)
        return
    found: UserObject = decoded_json(raw, UserObject)
    click.echo(one_line(f"{found.name}: {_said(found.grants)}"))


def _said(grants: tuple[Grant, ...]) -> str:
    return ", ".join(f"{grant.role}{'' if grant.team == '*' else f'@{grant.team}'}" for grant in grants) or "no role"


@user.command()
@click.argument("name", metavar="USER")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--if-revision", type=click.IntRange(0), help="Only if they have not changed since then.")
@connected
def remove(session: Session, name: str, dry_run: bool, yes: bool, if_revision: int | None) -> None:
    """Take a user and all their tokens away; their jobs stay, their schedules are suspended.

    \b
    gpuyard user remove eve
    """
    if dry_run:
        click.echo(f"would take {name} and all their tokens away")
        return
    if not yes:
        ask(f"Take {name} and all their tokens away?")
    session.client.remove_user(name, if_revision=if_revision)
    click.echo(f"{name} removed")
