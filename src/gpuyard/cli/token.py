"""`gpuyard token`: credentials for people and programs."""

from __future__ import annotations

import click

from gpuyard.cli.flags import DURATION
from gpuyard.cli.listing import Look, listing_options, show_all
from gpuyard.cli.output import FORMATS, form_option
from gpuyard.cli.session import Session, connected
from gpuyard.cli.terminal import ask, talk

SCOPES = ("full", "read", "scrape", "pool")
MAX_NAMED = 5


@click.group()
def token() -> None:
    """Tokens: credentials that expire and can be revoked.

    \b
    gpuyard token create --name laptop
    gpuyard token ls
    gpuyard token revoke 4f1c
    """


@token.command()
@click.option("--name", default="", help="What it is for.")
@click.option("--user", default="", help="Somebody else's, if you may.")
@click.option("--scope", type=click.Choice(SCOPES), default="full", show_default=True, help="What it is good for.")
@click.option("--expires", type=DURATION, default="30d", show_default=True, help="How long it is good.")
@form_option
@connected
def create(session: Session, name: str, user: str, scope: str, expires: str, output: str | None) -> None:
    """Make a token. Its secret is printed once, alone, and never again; for machines: gpuyard node token.

    \b
    gpuyard token create --name ci --expires 7d > token && chmod 600 token
    gpuyard token create --user ann
    gpuyard token create --scope scrape --name prometheus
    gpuyard token create --scope pool --name vdk
    """
    from gpuyard.cli.listing import print_object
    from gpuyard.cli.times import exact
    from gpuyard.files.durations import duration_ms
    from gpuyard.sdk import calls
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.access import Scope
    from gpuyard.wire.rest import CreatedToken, TokenRequest

    form = session.output(output, FORMATS, "text")
    request = TokenRequest(name, user, Scope(scope), duration_ms(expires))
    raw = session.client.send(calls.create_token(request).verbatim())
    if form != "text":
        print_object(raw, form)
        return
    created: CreatedToken = decoded_json(raw, CreatedToken)
    found = created.token
    talk(f"token {found.id} of {found.user}, good until {exact(found.expires_at)}; keep it now, it is not shown again:")
    click.echo(created.secret)


@token.command()
@connected
@listing_options
def ls(session: Session, look: Look) -> None:
    """List your tokens; for those who may see them, everybody's. Secrets are not kept.

    \b
    gpuyard token ls
    """
    from gpuyard.cli.user_columns import TOKENS
    from gpuyard.sdk import calls

    show_all(session, calls.list_tokens(), TOKENS, look)


@token.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@connected
def revoke(session: Session, ids: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """End tokens at once. The first signs of an id will do where they are those of no other.

    \b
    gpuyard token revoke 4f1c
    """
    ids = tuple(_whole_id(session, id) for id in ids)
    if dry_run:
        click.echo(f"would revoke {', '.join(ids)}")
        return
    if len(ids) > 1 and not yes:
        ask(f"Revoke {len(ids)} tokens?")
    for id in ids:
        session.client.revoke_token(id)
        click.echo(f"{id} revoked")


def _whole_id(session: Session, given: str) -> str:
    """The id that begins so; as it was given where none does, and the server says that there is none."""
    found = [token.id for token in session.client.tokens() if not token.revoked and token.id.startswith(given)]
    if len(found) > 1 and given not in found:
        raise click.UsageError(f"{len(found)} tokens begin with {given}: {', '.join(found[:MAX_NAMED])}")
    return found[0] if len(found) == 1 else given
