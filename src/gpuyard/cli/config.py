"""`gpuyard config`: which server or Kubernetes cluster and which team are used, and who says so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.output import FORMATS, form_option, print_data
from gpuyard.cli.session import Session, connected
from gpuyard.cli.terminal import one_line, talk

if TYPE_CHECKING:
    from gpuyard.sdk.config import ContextEntry

HIDDEN = "(hidden)"


@click.group()
def config() -> None:
    """Contexts and settings.

    Highest first: flags, the environment (GPUYARD_URL, GPUYARD_TOKEN_FILE, ...), .gpuyard.yaml here or above, your
    config.toml, the machine's, and last the server of this machine.

    \b
    gpuyard config view --show-origin
    gpuyard config use-context lab
    """


@config.command()
@click.option("--show-origin", is_flag=True, help="Say where each value comes from.")
@form_option
@connected
def view(session: Session, show_origin: bool, output: str | None) -> None:
    """Show the settings that hold here, and the contexts there are.

    \b
    gpuyard config view --show-origin
    gpuyard config view -o json
    """
    from gpuyard.sdk.config import SHOWN, Setting

    settings = session.settings
    held = {name: settings.values[name] for name in SHOWN if name in settings.values}
    if "token" in held:
        held["token"] = Setting(HIDDEN, held["token"].origin)
    form = session.output(output, FORMATS, "text")
    if form != "text":
        print_data({"settings": held, "contexts": settings.contexts}, form)
        return
    for name, setting in held.items():
        click.echo(one_line(f"{name} = {setting.value}" + (f"    # {setting.origin}" if show_origin else "")))
    for context, entry in settings.contexts.items():
        mark = "*" if context == settings.get("context") else " "
        click.echo(one_line(f"{mark} context {context}: {entry}{f', team {entry.team}' if entry.team else ''}"))
    if not held and not settings.contexts:
        talk("nothing is set and no server runs here: gpuyard up, or gpuyard login URL")


@config.command("use-context")
@click.argument("name", metavar="CONTEXT")
def use_context(name: str) -> None:
    """Use that context from now on.

    \b
    gpuyard config use-context lab
    """
    from msgspec.structs import replace

    from gpuyard.errors import InputError
    from gpuyard.files.suggest import did_you_mean
    from gpuyard.sdk.config import MACHINE_FILE, read_config, user_config_path, write_config

    path = user_config_path()
    file = read_config(path)
    known = {**read_config(MACHINE_FILE).contexts, **file.contexts}
    if name not in known:
        fix = f"contexts: {', '.join(known) or 'none yet'}; make one: gpuyard login URL --context {name}"
        raise InputError(f'there is no context "{name}"{did_you_mean(name, known)}', fix=fix)
    write_config(path, replace(file, context=name))
    talk(f"context {name} ({known[name]}) is in use")


@config.command("set-context")
@click.argument("name", metavar="CONTEXT")
@click.option("--url", help="The address of its server.")
@click.option("--team", help="The team to submit for.")
@click.option("--ca", metavar="FILE", help="The authority that signed the server's certificate.")
@click.option("--token-file", metavar="FILE", help="Where the token is kept; gpuyard login makes one.")
@click.option("--kubernetes/--no-kubernetes", default=None, help="It is no server but a Kubernetes cluster.")
@click.option("--kubeconfig", metavar="FILE", help="How to reach that.  [default: as kubectl finds it]")
@click.option("--kube-context", metavar="NAME", help="Which context of that file.  [default: its current one]")
@click.option("-n", "--namespace", metavar="NS", help="Where pods are looked for.  [default: that context's]")
@click.option("--system-namespace", metavar="NS", help="Where its scheduler's own objects are.")
def set_context(name: str, **given: Any) -> None:  # noqa: ANN401
    """Make a context, or change one; an empty value takes a setting away.

    A context is a server of gpuyard, or a Kubernetes cluster: then explain, what-if, team ls, team tree, gpu ls,
    node ls and doctor answer from that.

    \b
    gpuyard config set-context lab --url https://gpu.example.org:7400 --team vision
    gpuyard config set-context lab --team ""
    gpuyard config set-context prod --kubernetes --kube-context admin@prod
    """
    from msgspec.structs import replace

    from gpuyard.sdk.config import ContextEntry, read_config, refuse_both, user_config_path, write_config

    path = user_config_path()
    file = read_config(path)
    paths = {field: _whole(given[field]) for field in ("ca", "token_file", "kubeconfig")}
    changes = {field: value for field, value in {**given, **paths}.items() if value is not None}
    if not changes:
        raise click.UsageError(f"Say what to set: gpuyard config set-context {name} --url URL")
    before = file.contexts.get(name, ContextEntry())
    if _another_server(before, changes):
        # A token is for one server; another one must not get it.
        changes["token_file"] = ""
        talk("the token of this context was for another server, and is not used any more: gpuyard login")
    entry = replace(before, **changes)
    refuse_both(name, entry)
    write_config(path, replace(file, contexts={**file.contexts, name: entry}))
    talk(f"context {name} is written; use it with: gpuyard config use-context {name}")


def _another_server(before: ContextEntry, changes: dict[str, Any]) -> bool:
    moved = "url" in changes and bool(before.url) and changes["url"] != before.url
    return moved and "token_file" not in changes


def _whole(path: str | None) -> str | None:
    return str(Path(path).expanduser().absolute()) if path else path
