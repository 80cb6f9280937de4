"""`gpuyard login`, `logout` and `whoami`: a token for a server, kept where only its owner reads it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from gpuyard.cli.session import Session, connected
from gpuyard.cli.terminal import talk

if TYPE_CHECKING:
    from gpuyard.wire.rest import Whoami

OUTPUTS = ("text", "json", "yaml")


@click.command()
@click.argument("url", metavar="[URL]", default="")
@click.option("--context", "name", default="", help="The name to keep it under.  [default: the host]")
@click.option("--team", default="", help="The team to submit for.")
@click.option("--ca", default="", metavar="FILE", help="The authority that signed the server's certificate.")
def login(url: str, name: str, team: str, ca: str) -> None:
    """Keep a token for a server, and use that server from now on.

    The token is asked for, or read from a pipe; never give it as an argument, where others can see it. It is kept in a
    file of its own that only you can read.

    \b
    gpuyard login https://gpu.example.org:7400
    gpuyard login https://gpu.example.org:7400 --context lab --team vision < token
    """
    from gpuyard.sdk.client import Client
    from gpuyard.sdk.config import ConfigFile, ContextEntry, read_config, save_private, user_config_path, write_config

    url = url or Session(name).settings.url
    authority = str(Path(ca).expanduser().absolute()) if ca else ""
    token = _asked_for()
    with Client(url, token, ca=authority) as client:
        who = client.whoami()
    path = user_config_path()
    name = name or urlsplit(url).hostname or "default"
    token_path = path.parent / "tokens" / _file_name(name)
    save_private(token_path, f"{token}\n")
    file = read_config(path)
    contexts = {**file.contexts, name: ContextEntry(url, team, authority, str(token_path))}
    write_config(path, ConfigFile(name, file.team, file.output, contexts))
    talk(f"signed in to {who.server} as {who.user}; context {name} is in use")


def _file_name(context: str) -> str:
    from urllib.parse import quote

    return quote(context, safe="")


def _asked_for() -> str:
    from gpuyard.errors import NotSignedInError

    text = click.prompt("Token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.read(1 << 16)
    token = str(text).strip()
    if not token:
        raise NotSignedInError("no token was given", fix="an admin makes one with: gpuyard token create --user YOU")
    return token


@click.command()
@click.argument("name", metavar="[CONTEXT]", default="")
@click.option("--revoke", is_flag=True, help="Also end the token on the server.")
def logout(name: str, revoke: bool) -> None:
    """Forget the token of a context.

    \b
    gpuyard logout
    gpuyard logout lab --revoke
    """
    from gpuyard.errors import InputError
    from gpuyard.sdk.config import make_client, user_config_path

    session = Session(name)
    context = session.settings.get("context")
    entry = session.settings.contexts.get(context)
    if entry is None or not entry.token_file:
        raise InputError(
            "no token is kept", fix="gpuyard config view --show-origin says where the one in use comes from"
        )
    token_path = Path(entry.token_file)
    if token_path.parent != user_config_path().parent / "tokens":
        raise InputError(
            f"{token_path} was not made by gpuyard login", fix="remove it yourself, if it is yours to remove"
        )
    if revoke:
        with make_client(session.settings) as client:
            client.revoke_token(_id_of(session.settings.secret()))
    token_path.unlink(missing_ok=True)
    talk(f"the token of context {context} is forgotten{' and revoked' if revoke else '; it is still valid'}")


def _id_of(token: str) -> str:
    """Tokens are gy_ID_SECRET."""
    from gpuyard.errors import InputError

    parts = token.split("_")
    if len(parts) < 3:
        raise InputError("the kept token has no id", fix="revoke it by its id: gpuyard token ls")
    return parts[1]


@click.command()
@click.option("-o", "--output", type=click.Choice(OUTPUTS), help="The form of the answer.  [default: text]")
@connected
def whoami(session: Session, output: str | None) -> None:
    """Show whom the token speaks for, and where it may submit.

    \b
    gpuyard whoami
    gpuyard whoami -o json | jq -r .user
    """
    from gpuyard.cli.listing import lines_of, print_object
    from gpuyard.sdk import calls
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.rest import Whoami

    form = session.output(output, OUTPUTS, "text")
    raw = session.client.send(calls.whoami().verbatim())
    if form != "text":
        print_object(raw, form)
        return
    for line in lines_of(_facts(decoded_json(raw, Whoami), session.settings.url)):
        click.echo(line)


def _facts(who: Whoami, url: str) -> Iterator[tuple[str, str]]:
    yield "User", who.user
    yield "Server", f"{who.server} at {url}"
    yield "Roles", ", ".join(f"{grant.role}{'' if grant.team == '*' else f' of {grant.team}'}" for grant in who.grants)
    yield "Token", f"good for {who.scope}"
    yield "May submit for", ", ".join(who.teams) or "no team"
    yield "Isolation", who.isolation
