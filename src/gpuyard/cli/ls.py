"""`gpuyard ls`: jobs, why they wait, and when they are thought to start."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from gpuyard.cli.flags import labels_of
from gpuyard.cli.listing import Look, listing_options, show, show_all
from gpuyard.cli.session import Session, connected

if TYPE_CHECKING:
    from gpuyard.sdk.calls import Call

STATES: Final = (
    "active",
    "blocked",
    "held",
    "waiting",
    "starting",
    "running",
    "stopping",
    "suspended",
    "succeeded",
    "failed",
    "cancelled",
)
"""Spelled out here, so that the help needs no reader; a test compares them with the life of a job."""
REFRESH_MS: Final = 2_000


class States(click.ParamType[Any]):
    """States with commas."""

    name = "state"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        for word in value.split(","):
            if word not in STATES:
                self.fail(f'"{word}" is no state; there are: {", ".join(STATES)}', param, ctx)
        return value


@click.command()
@click.option("-a", "--all", "everything", is_flag=True, help="Those that are over, too.")
@click.option("-t", "--team", default="", help="Of one team.")
@click.option("-u", "--user", default="", help="Of one user.")
@click.option("-m", "--mine", is_flag=True, help="Your own.")
@click.option("-s", "--state", type=States(), help="In these states: waiting, running, ...")
@click.option("-l", "--label", "labels", multiple=True, metavar="K=V", help="With these labels.")
@click.option("--name", default="", help="Of that name.")
@click.option("--array", default="", metavar="ID", help="Elements of one array.")
@click.option("--limit", type=click.IntRange(1), help="So many at most.")
@click.option("-w", "--watch", is_flag=True, help="Go on, and show what changes.")
@connected
@listing_options
def ls(
    session: Session,
    look: Look,
    everything: bool,
    team: str,
    user: str,
    mine: bool,
    state: str | None,
    labels: tuple[str, ...],
    name: str,
    array: str,
    limit: int | None,
    watch: bool,
) -> None:
    """List jobs, newest first: where they are, why they wait, when they are thought to start.

    \b
    gpuyard ls
    gpuyard ls -a --team vision --state failed,cancelled
    gpuyard ls -l sweep=7 --sort -age --columns id,state,why
    gpuyard ls --watch -o jsonl            one line for each change
    """
    from gpuyard.cli.job_columns import JOBS
    from gpuyard.sdk import calls

    if mine:
        user = session.client.whoami().user
    call = calls.list_jobs(
        state=state or ("" if everything else "active"),
        team=team,
        user=user,
        name=name,
        labels=labels_of(labels),
        array=array,
        limit=min(limit or calls.PAGE, calls.PAGE),
    )
    if watch:
        _watch(session, call, look, limit)
    else:
        hint = "" if everything or state else "no such job runs or waits; those that are over: gpuyard ls -a"
        show_all(session, call, JOBS, look, most=limit, if_empty=hint)


def _watch(session: Session, call: Call[Any], look: Look, limit: int | None) -> None:
    from gpuyard.cli.terminal import on_terminal

    if on_terminal() and look.output in ("table", "wide"):
        _redraw(session, call, look, limit)
    else:
        _stream(session, call, look)


def _redraw(session: Session, call: Call[Any], look: Look, limit: int | None) -> None:
    from gpuyard.cli.job_columns import JOBS
    from gpuyard.cli.terminal import CLEAR_SCREEN, height
    from gpuyard.platform.clock import sleep_ms

    while True:
        raws = list(session.client.items(call.verbatim()))[: limit or max(height() - 2, 1)]
        click.echo(CLEAR_SCREEN, nl=False)
        show(raws, JOBS, look)
        sys.stdout.flush()
        sleep_ms(REFRESH_MS)


def _stream(session: Session, call: Call[Any], look: Look) -> None:
    """All that are there, then each again whenever something happens to it."""
    import msgspec

    from gpuyard.cli.job_columns import JOBS
    from gpuyard.errors import NotFoundError
    from gpuyard.sdk import calls
    from gpuyard.wire.rest import JobObject

    # Programs get an object a line, since a list that goes on has no end.
    look = look._replace(output={"json": "jsonl"}.get(look.output, look.output))
    page = session.client.send(call.verbatim())
    raws = list(session.client.items(call.verbatim()))
    show(raws, JOBS, look)
    sys.stdout.flush()
    seen = {msgspec.json.decode(raw, type=JobObject).id for raw in raws}
    for event in session.client.watch(after=page.revision):
        for job in (name.removeprefix("job/") for name in event.objects if name.startswith("job/")):
            try:
                raw = session.client.send(calls.get_job(job).verbatim())
            except NotFoundError:
                continue
            if job in seen or _belongs(session, call, job):
                seen.add(job)
                show([raw], JOBS, look._replace(no_headers=True))
        sys.stdout.flush()


def _belongs(session: Session, call: Call[Any], job: str) -> bool:
    """Whether a job that is new is one of those asked for."""
    newest = session.client.send(call)
    return any(item.id == job for item in newest.items)
