"""`gpuyard status`: the cluster in short."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from gpuyard.cli.session import Session, connected
from gpuyard.cli.terminal import one_line, talk

if TYPE_CHECKING:
    from gpuyard.wire.rest import Status

OUTPUTS = ("text", "json", "yaml")


@click.command()
@click.option("-o", "--output", type=click.Choice(OUTPUTS), help="The form of the answer.  [default: text]")
@connected
def status(session: Session, output: str | None) -> None:
    """Show the cluster in short: machines, GPUs, jobs, and what to know about it.

    \b
    gpuyard status
    gpuyard status -o json
    """
    from gpuyard.cli.listing import lines_of, print_object
    from gpuyard.sdk import calls
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.rest import Status

    form = session.output(output, OUTPUTS, "text")
    raw = session.client.send(calls.status().verbatim())
    if form != "text":
        print_object(raw, form)
        return
    told: Status = decoded_json(raw, Status)
    for line in lines_of(_facts(told, session.settings.url)):
        click.echo(line)
    for warning in told.warnings:
        talk(f"warning: {one_line(warning)}")


def _facts(told: Status, url: str) -> Iterator[tuple[str, str]]:
    from gpuyard.cli.times import now, since

    yield "Cluster", f"{told.cluster} at {url}"
    yield "Version", f"{told.version}, up for {since(told.started_at, now())}"
    yield "Machines", f"{told.ready_nodes} of {told.nodes} ready"
    yield "GPUs", f"{told.free_gpus} of {told.gpus} free{' (fake GPUs)' if told.fake else ''}"
    yield "Jobs", ", ".join(f"{count} {state}" for state, count in told.jobs.items() if count) or "none"
    yield "Isolation", told.isolation
    yield "Database", told.database
    yield "Pool", f"{told.pool} (gRPC)" if told.pool else ""
    yield "Cycles", f"{told.cycles}, the last took {told.last_cycle_ms} ms"
    yield "Revision", str(told.revision)
