"""`gpuyard events` and `gpuyard audit`: what happened, and who made it so."""

from __future__ import annotations

import sys

import click

from gpuyard.cli.listing import Look, listing_options, show, show_all
from gpuyard.cli.session import Session, connected


@click.command()
@click.option("-w", "--watch", is_flag=True, help="Go on, and show what happens.")
@click.option("--after", type=click.IntRange(0), help="With -w: from after that revision on.")
@click.option("--object", "about", default="", metavar="KIND/NAME", help="About job/17, node/a, team/vision.")
@click.option("--kind", default="", help="Kinds of events, with commas.")
@click.option("--since", default="", help="From then on: 1d ago, or 2026-11-01T12:00:00Z.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="So many at most.")
@connected
@listing_options
def events(
    session: Session, look: Look, watch: bool, after: int | None, about: str, kind: str, since: str, limit: int
) -> None:
    """Show what happened to jobs, newest first; with -w what happens, as it does.

    A stream that breaks goes on where it broke.

    \b
    gpuyard events
    gpuyard events -w --object job/17
    gpuyard events -w -o jsonl
    """
    from gpuyard.cli.event_columns import EVENTS
    from gpuyard.sdk import calls

    if not watch:
        call = calls.list_events(since=since, object=about, kind=kind, limit=min(limit, calls.PAGE))
        show_all(session, call, EVENTS, look, most=limit)
        return
    if since:
        raise click.UsageError("-w begins now, or after a revision: --after 170")
    _watch(session, look, about, kind, after)


def _watch(session: Session, look: Look, about: str, kind: str, after: int | None) -> None:
    import msgspec

    from gpuyard.cli.event_columns import EVENTS

    for event in session.client.watch(object=about, kind=kind, after=after):
        show([msgspec.json.encode(event)], EVENTS, _for_stream(look))
        sys.stdout.flush()


def _for_stream(look: Look) -> Look:
    """One at a time has no headings, the moment instead of its age, and JSON is one object a line."""
    return look._replace(no_headers=True, output={"json": "jsonl", "table": "wide"}.get(look.output, look.output))


@click.command()
@click.option("--object", "about", default="", metavar="KIND/NAME", help="About job/17, node/a, team/vision, user/ann.")
@click.option("--actor", default="", help="By whom.")
@click.option("--since", default="", help="From then on: 1d ago, or 2026-11-01T12:00:00Z.")
@click.option("--until", default="", help="Until then.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="So many at most.")
@connected
@listing_options
def audit(session: Session, look: Look, about: str, actor: str, since: str, until: str, limit: int) -> None:
    """Show every change and every decision, newest first, and who or what made it.

    \b
    gpuyard audit --object job/17
    gpuyard audit --actor ann --since 1d -o csv
    """
    from gpuyard.cli.event_columns import EVENTS
    from gpuyard.sdk import calls

    call = calls.list_audit(since=since, until=until, object=about, actor=actor, limit=min(limit, calls.PAGE))
    show_all(session, call, EVENTS, look, most=limit)
