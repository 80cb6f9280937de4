"""`gpuyard node`: the machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.flags import DURATION
from gpuyard.cli.listing import Look, listing_options, show_all
from gpuyard.cli.output import FORMATS, form_option
from gpuyard.cli.session import Session, connected, connected_anywhere
from gpuyard.cli.terminal import ask, one_line, talk

if TYPE_CHECKING:
    from gpuyard.sdk.calls import Call
    from gpuyard.wire.rest import NodeObject

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
@connected_anywhere
@listing_options
def ls(session: Session, look: Look) -> None:
    """List the machines; with a Kubernetes context, its nodes.

    \b
    gpuyard node ls
    gpuyard node ls -o wide --sort state
    gpuyard node ls --kubernetes
    """
    if session.on_kubernetes:
        from gpuyard.cli.kube_questions import list_nodes

        list_nodes(session, look)
        return
    from gpuyard.cli.node_columns import NODES
    from gpuyard.sdk import calls

    show_all(session, calls.list_nodes(), NODES, look)


@node.command()
@click.argument("name", metavar="NODE")
@form_option
@connected
def describe(session: Session, name: str, output: str | None) -> None:
    """Show one machine, its GPUs and who holds them.

    \b
    gpuyard node describe node-1
    """
    from gpuyard.cli.device_columns import DEVICES
    from gpuyard.cli.listing import lines_of, print_object
    from gpuyard.sdk import calls

    form = session.output(output, FORMATS, "text")
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
    yield "Unhealthy", found.unhealthy
    yield "Trouble", "; ".join(found.trouble)
    yield "GPUs", f"{found.gpus} ({', '.join(found.models)}), {found.free_gpus} free{', fake' if found.fake else ''}"
    yield "CPU", f"{format_milli(found.cpu_milli)} cores"
    yield "Memory", size(found.memory_bytes)
    yield "Tasks", str(found.tasks)
    yield "Isolation", found.isolation
    yield "Processes", _processes(found)
    yield "Limits", _limits(found)
    yield "Labels", ", ".join(f"{key}={value}" for key, value in found.labels.items())
    yield "Agent", " ".join(part for part in (found.version, found.address) if part)
    yield "Last seen", exact(found.last_seen_at)
    yield "Revision", str(found.revision)


def _processes(found: NodeObject) -> str:
    """Of a Kubernetes node the container runtime says it."""
    if not found.process_view:
        return ""
    if found.process_view == "isolated":
        return "a task sees its own processes only"
    return f"tasks see the command lines of all processes of the node ({found.process_note})"


def _limits(found: NodeObject) -> str:
    cores = "enforced" if found.cores_kept == "enforced" else "booked, not enforced"
    memory = "enforced" if found.memory_kept == "enforced" else "looked at every second"
    why = f" ({found.limits_note})" if found.limits_note else ""
    return f"cores are {cores}; memory is {memory}{why}"


# ------------------------------------------------------------------------------------------------------------- changes


def _changes(command: Command) -> Command:
    """The flags of commands that change machines."""
    for option in (
        form_option,
        click.option("--if-revision", type=click.IntRange(0), help="Only if it has not changed since then."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Only say what would be done."),
        click.argument("names", metavar="NODE...", nargs=-1, required=True),
    ):
        command = option(command)
    return command


def _each(
    session: Session,
    names: tuple[str, ...],
    call: Callable[[str], Call[Any]],
    *,
    verb: str,
    dry_run: bool,
    output: str | None,
    question: str = "",
) -> None:
    """One after the other; what was done is told, also where the rest could not be."""
    from gpuyard.sdk import calls

    form = session.output(output, FORMATS, "text")
    if question and not dry_run:
        ask(question)
    done: list[tuple[str, bytes | None]] = []
    try:
        for name in names:
            asked = calls.get_node(name) if dry_run else call(name)
            has_answer = asked.operation.answer is not None
            done.append((name, session.client.send(asked.verbatim()) if has_answer else session.client.send(asked)))
    finally:
        _print_done(done, form, f"would {verb} " if dry_run else "")


def _print_done(done: list[tuple[str, bytes | None]], form: str, would: str) -> None:
    from gpuyard.cli.listing import print_object, print_verbatim
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.rest import NodeObject

    raws = [raw for _, raw in done if raw is not None]
    if form != "text" and raws:
        print_object(raws[0], form) if len(done) == 1 else print_verbatim(raws, form)
        return
    for name, raw in done:
        state = decoded_json(raw, NodeObject).state if raw is not None else "removed"
        click.echo(one_line(f"{would}{name}{', which is' if would else ''} {state}"))


def _one(names: tuple[str, ...], if_revision: int | None) -> None:
    if if_revision is not None and len(names) != 1:
        raise click.UsageError(f"--if-revision is about one machine, and these are {len(names)}.")


@node.command()
@_changes
@connected
def drain(
    session: Session, names: tuple[str, ...], dry_run: bool, yes: bool, if_revision: int | None, output: str | None
) -> None:
    """Take machines out of service: nothing new starts there, and what may be stopped is, politely.

    \b
    gpuyard node drain node-3 --dry-run      who would stop, move and wait
    gpuyard node drain node-3
    """
    from gpuyard.sdk import calls

    _one(names, if_revision)
    if dry_run:
        _try_drain(session, names, output)
        return
    question = "" if yes else f"Drain {', '.join(names)}? Jobs there that may have to give way are stopped politely."
    _each(
        session,
        names,
        lambda name: calls.drain_node(name, if_revision=if_revision),
        verb="drain",
        dry_run=False,
        output=output,
        question=question,
    )


def _try_drain(session: Session, names: tuple[str, ...], output: str | None) -> None:
    """What draining all of them together would do."""
    import msgspec

    from gpuyard.cli.what_if import show_change
    from gpuyard.sdk.bodies import YamlText

    # JSON is YAML, and quotes whatever a name may be.
    change = YamlText(msgspec.json.encode({"nodes": {"drain": names}}).decode())
    form = session.output(output, FORMATS, "text")
    for name in names:
        session.client.get_node(name)
    if form == "text":
        click.echo(one_line(f"would drain {', '.join(names)}"))
    show_change(session, change, form)


@node.command()
@_changes
@connected
def resume(
    session: Session, names: tuple[str, ...], dry_run: bool, yes: bool, if_revision: int | None, output: str | None
) -> None:
    """Put drained machines into service again.

    \b
    gpuyard node resume node-3
    """
    from gpuyard.sdk import calls

    _one(names, if_revision)
    _each(
        session,
        names,
        lambda name: calls.resume_node(name, if_revision=if_revision),
        verb="resume",
        dry_run=dry_run,
        output=output,
    )


@node.command("declare-lost")
@_changes
@connected
def declare_lost(
    session: Session, names: tuple[str, ...], dry_run: bool, yes: bool, if_revision: int | None, output: str | None
) -> None:
    """Say that machines are gone for good: what ran there is restarted elsewhere at once.

    Only do so if they are off: should they still run, jobs would run twice.

    \b
    gpuyard node declare-lost node-3
    """
    from gpuyard.sdk import calls

    _one(names, if_revision)
    question = "" if yes else f"Are you certain that {', '.join(names)} no longer run? Jobs could otherwise run twice."
    _each(
        session,
        names,
        lambda name: calls.declare_lost_node(name, if_revision=if_revision),
        verb="declare lost",
        dry_run=dry_run,
        output=output,
        question=question,
    )


@node.command()
@_changes
@connected
def remove(
    session: Session, names: tuple[str, ...], dry_run: bool, yes: bool, if_revision: int | None, output: str | None
) -> None:
    """Take machines away that run nothing; to come back they must join again.

    \b
    gpuyard node remove node-3
    """
    from gpuyard.sdk import calls

    _one(names, if_revision)
    question = "" if yes else f"Take {', '.join(names)} away?"
    _each(
        session,
        names,
        lambda name: calls.remove_node(name, if_revision=if_revision),
        verb="remove",
        dry_run=dry_run,
        output=output,
        question=question,
    )


@node.command()
@click.argument("name", metavar="NODE")
@click.argument("labels", metavar="K=V... | K-...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--if-revision", type=click.IntRange(0), help="Only if it has not changed since then.")
@form_option
@connected
def label(
    session: Session,
    name: str,
    labels: tuple[str, ...],
    dry_run: bool,
    if_revision: int | None,
    output: str | None,
) -> None:
    """Set labels of a machine; a name with a dash behind it takes one away.

    \b
    gpuyard node label node-3 rack=r7 zone-
    """
    from gpuyard.cli.listing import print_object
    from gpuyard.sdk import calls
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.rest import NodeChange, NodeObject

    form = session.output(output, FORMATS, "text")
    changes = dict(_label(text) for text in labels)
    if dry_run:
        talk(f"would set labels of {name}: {' '.join(labels)}")
    call = calls.get_node(name) if dry_run else calls.change_node(name, NodeChange(changes), if_revision=if_revision)
    raw = session.client.send(call.verbatim())
    if form != "text":
        print_object(raw, form)
        return
    found: NodeObject = decoded_json(raw, NodeObject)
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
@click.option("-o", "--output", type=click.Choice((*FORMATS, "name")), help="The form; name: it alone.")
@connected
def token(session: Session, expires: str, output: str | None) -> None:
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

    form = session.output(output, (*FORMATS, "name"), "text")
    request = TokenRequest("join", scope=Scope.JOIN, expires_in_ms=duration_ms(expires))
    raw = session.client.send(calls.create_token(request).verbatim())
    if form in ("json", "yaml"):
        print_object(raw, form)
        return
    created: CreatedToken = decoded_json(raw, CreatedToken)
    if form == "name":
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
