"""`gpuyard node`: the machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.flags import DURATION
from gpuyard.cli.listing import Look, listing_options, show_all
from gpuyard.cli.session import Session, connected
from gpuyard.cli.terminal import ask, one_line, talk

if TYPE_CHECKING:
    from gpuyard.sdk.client import Client
    from gpuyard.wire.rest import NodeObject

OUTPUTS = ("text", "json", "yaml")
Command = Callable[..., Any]


@click.group()
def node() -> None:
    """Machines: what they have, and taking them in and out of service.

    \b
    gpuyard node ls
    gpuyard node drain node-3
    gpuyard node token                       to let another machine join
    """


@node.command()
@connected
@listing_options
def ls(session: Session, look: Look) -> None:
    """List the machines.

    \b
    gpuyard node ls
    gpuyard node ls -o wide --sort state
    """
    from gpuyard.cli.node_columns import NODES
    from gpuyard.sdk import calls

    show_all(session, calls.list_nodes(), NODES, look)


@node.command()
@click.argument("name", metavar="NODE")
@click.option("-o", "--output", type=click.Choice(OUTPUTS), help="The form of the answer.  [default: text]")
@connected
def describe(session: Session, name: str, output: str | None) -> None:
    """Show one machine, its GPUs and who holds them.

    \b
    gpuyard node describe node-1
    """
    from gpuyard.cli.device_columns import DEVICES
    from gpuyard.cli.listing import lines_of, print_object
    from gpuyard.sdk import calls

    form = session.output(output, OUTPUTS, "text")
    if form != "text":
        print_object(session.client.send(calls.get_node(name).verbatim()), form)
        return
    for line in lines_of(_facts(session.client.get_node(name))):
        click.echo(line)
    click.echo()
    show_all(session, calls.list_devices(node=name), DEVICES, Look("table"))


def _facts(found: NodeObject) -> Iterator[tuple[str, str]]:
    from gpuyard.cli.times import exact, size
    from gpuyard.model.quantities import format_milli

    yield "Node", found.name
    yield "State", found.state
    yield "Trouble", "; ".join(found.trouble)
    yield "GPUs", f"{found.gpus} ({', '.join(found.models)}), {found.free_gpus} free{', fake' if found.fake else ''}"
    yield "CPU", f"{format_milli(found.cpu_milli)} cores"
    yield "Memory", size(found.memory_bytes)
    yield "Tasks", str(found.tasks)
    yield "Isolation", found.isolation
    yield "Limits", _limits(found)
    yield "Labels", ", ".join(f"{key}={value}" for key, value in found.labels.items())
    yield "Agent", " ".join(part for part in (found.version, found.address) if part)
    yield "Last seen", exact(found.last_seen_at)
    yield "Revision", str(found.revision)


def _limits(found: NodeObject) -> str:
    cores = "enforced" if found.cores_kept == "enforced" else "booked, not enforced"
    memory = "enforced" if found.memory_kept == "enforced" else "looked at every second"
    why = f" ({found.limits_note})" if found.limits_note else ""
    return f"cores are {cores}; memory is {memory}{why}"


# ------------------------------------------------------------------------------------------------------------- changes


def _changes(command: Command) -> Command:
    """The flags of commands that change machines."""
    for option in (
        click.option("--if-revision", type=click.IntRange(0), help="Only if it has not changed since then."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Only say what would be done."),
        click.argument("names", metavar="NODE...", nargs=-1, required=True),
    ):
        command = option(command)
    return command


def _each(
    names: tuple[str, ...], verb: str, do: Callable[[str], NodeObject | None], *, dry_run: bool, question: str = ""
) -> None:
    if dry_run:
        for name in names:
            click.echo(f"would {verb} {name}")
        return
    if question:
        ask(question)
    for name in names:
        found = do(name)
        click.echo(one_line(f"{name} {found.state}" if found else f"{name} removed"))


def _one(names: tuple[str, ...], if_revision: int | None) -> None:
    if if_revision is not None and len(names) != 1:
        raise click.UsageError(f"--if-revision is about one machine, and these are {len(names)}.")


@node.command()
@_changes
@connected
def drain(session: Session, names: tuple[str, ...], dry_run: bool, yes: bool, if_revision: int | None) -> None:
    """Take machines out of service: nothing new starts there, and what may be stopped is, politely.

    Try it first: echo 'nodes: {drain: [node-3]}' | gpuyard what-if -

    \b
    gpuyard node drain node-3
    """
    _one(names, if_revision)
    client: Client = session.client
    question = "" if yes else f"Drain {', '.join(names)}? Jobs there that may have to give way are stopped politely."
    _each(
        names,
        "drain",
        lambda name: client.drain_node(name, if_revision=if_revision),
        dry_run=dry_run,
        question=question,
    )


@node.command()
@_changes
@connected
def resume(session: Session, names: tuple[str, ...], dry_run: bool, yes: bool, if_revision: int | None) -> None:
    """Put drained machines into service again.

    \b
    gpuyard node resume node-3
    """
    _one(names, if_revision)
    client = session.client
    _each(names, "resume", lambda name: client.resume_node(name, if_revision=if_revision), dry_run=dry_run)


@node.command("declare-lost")
@_changes
@connected
def declare_lost(session: Session, names: tuple[str, ...], dry_run: bool, yes: bool, if_revision: int | None) -> None:
    """Say that machines are gone for good: what ran there is restarted elsewhere at once.

    Only do so if they are off: should they still run, jobs would run twice.

    \b
    gpuyard node declare-lost node-3
    """
    _one(names, if_revision)
    client = session.client
    question = "" if yes else f"Are you certain that {', '.join(names)} no longer run? Jobs could otherwise run twice."
    _each(
        names,
        "declare lost",
        lambda name: client.declare_lost_node(name, if_revision=if_revision),
        dry_run=dry_run,
        question=question,
    )


@node.command()
@_changes
@connected
def remove(session: Session, names: tuple[str, ...], dry_run: bool, yes: bool, if_revision: int | None) -> None:
    """Take machines away that run nothing; to come back they must join again.

    \b
    gpuyard node remove node-3
    """
    _one(names, if_revision)
    client = session.client
    question = "" if yes else f"Take {', '.join(names)} away?"
    _each(
        names,
        "remove",
        lambda name: client.remove_node(name, if_revision=if_revision),
        dry_run=dry_run,
        question=question,
    )


@node.command()
@click.argument("name", metavar="NODE")
@click.argument("labels", metavar="K=V... | K-...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--if-revision", type=click.IntRange(0), help="Only if it has not changed since then.")
@connected
def label(session: Session, name: str, labels: tuple[str, ...], dry_run: bool, if_revision: int | None) -> None:
    """Set labels of a machine; a name with a dash behind it takes one away.

    \b
    gpuyard node label node-3 rack=r7 zone-
    """
    from gpuyard.wire.rest import NodeChange

    changes = dict(_label(text) for text in labels)
    if dry_run:
        click.echo(f"would set labels of {name}: {' '.join(labels)}")
        return
    found = session.client.change_node(name, NodeChange(changes), if_revision=if_revision)
    click.echo(one_line(" ".join([name, *(f"{key}={value}" for key, value in found.labels.items())])))


def _label(text: str) -> tuple[str, str | None]:
    key, equals, value = text.partition("=")
    if equals and key:
        return key, value
    if text.endswith("-") and len(text) > 1:
        return text[:-1], None
    raise click.UsageError(f'"{text}" is no label; write rack=r7, or rack- to take it away.')


@node.command()
@click.option("--expires", type=DURATION, default="1h", show_default=True, help="How long it is good; at most 1d.")
@click.option("-o", "--output", type=click.Choice(("text", "name", "json")), default="text", help="name: it alone.")
@connected
def token(session: Session, expires: str, output: str) -> None:
    """Make a token with which one machine may join; the command to run there is printed.

    \b
    gpuyard node token
    gpuyard node token --expires 10m
    """
    from gpuyard.cli.listing import print_object
    from gpuyard.files.durations import duration_ms
    from gpuyard.sdk import calls
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.access import Scope
    from gpuyard.wire.rest import CreatedToken, TokenRequest

    request = TokenRequest("join", scope=Scope.JOIN, expires_in_ms=duration_ms(expires))
    raw = session.client.send(calls.create_token(request).verbatim())
    if output == "json":
        print_object(raw, "json")
        return
    created: CreatedToken = decoded_json(raw, CreatedToken)
    if output == "name":
        click.echo(created.secret)
        return
    talk(f"Good for one machine, for {expires}. Run there:")
    click.echo(f"gpuyard agent --join {created.secret}@{_seen_from_afar(session.settings.url)}")


def _seen_from_afar(url: str) -> str:
    """The address for another machine: loopback means this one only, so its name stands there instead."""
    from urllib.parse import urlsplit

    from gpuyard.platform.listening import host_name

    place = urlsplit(url)
    if place.hostname not in ("127.0.0.1", "::1", "localhost"):
        return url
    if place.scheme == "http":
        talk("This server listens on its own machine only; for others start it with: gpuyard up --listen 0.0.0.0:7400")
        return url
    return f"{place.scheme}://{host_name()}:{place.port}"
