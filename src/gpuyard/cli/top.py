"""`gpuyard top`: the cluster, live."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from gpuyard.cli.session import Session, connected

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from gpuyard.sdk.client import Client
    from gpuyard.wire.rest import JobObject, Status, TeamObject

BAR: Final = 20
LEAVE: Final = "qQ\x1b"
MAX_JOBS: Final = 200
"""Fetched for one picture; the newest."""


@click.command()
@click.option("--interval", type=click.IntRange(1, 60), default=2, show_default=True, help="Seconds between looks.")
@click.option("--once", is_flag=True, help="One look only.")
@connected
def top(session: Session, interval: int, once: bool) -> None:
    """Show the cluster live: teams, GPUs and jobs. q or Ctrl-C leaves.

    \b
    gpuyard top
    gpuyard top --interval 5
    gpuyard top --once > picture.txt
    """
    from gpuyard.cli.show import console

    out = console()
    if once or not out.is_terminal:
        out.print(picture(session.client, rows=MAX_JOBS))
        return
    _live(session.client, interval)


def _live(client: Client, interval_s: int) -> None:
    from rich.live import Live

    from gpuyard.cli.show import console

    out = console()
    try:
        with _keys(), Live(console=out, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_or_trouble(client, out.height), refresh=True)
                if _pressed(interval_s) in LEAVE:
                    return
    except KeyboardInterrupt:
        return


def _or_trouble(client: Client, height: int) -> RenderableType:
    """A server that is being restarted comes back; the view waits for it."""
    from rich.text import Text

    from gpuyard.errors import ClientError, NotAllowedError, NotSignedInError

    try:
        return picture(client, rows=max(height // 2, 5))
    except (NotSignedInError, NotAllowedError):
        raise
    except ClientError as error:
        return Text(f"{error}\n\ntrying again; q leaves", style="red")


# -------------------------------------------------------------------------------------------------------------- keys


@contextmanager
def _keys() -> Iterator[None]:
    """Let single keys arrive, without showing them."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed(wait_s: int) -> str:
    """The key that is pressed while waiting; a blank for none."""
    import os
    import select

    if not sys.stdin.isatty():
        from gpuyard.platform.clock import sleep_ms

        sleep_ms(wait_s * 1000)
        return " "
    ready, _, _ = select.select([sys.stdin], [], [], wait_s)
    # Unbuffered, so that no key is held back in a buffer that select does not see.
    return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else " "


# ----------------------------------------------------------------------------------------------------------- picture


def picture(client: Client, *, rows: int) -> RenderableType:
    """Everything at one moment."""
    from itertools import islice

    from rich.console import Group
    from rich.text import Text

    from gpuyard.cli.gpu import fragments

    teams = [team for team in client.teams() if team.leaf]
    jobs = list(islice(client.jobs(state="active"), MAX_JOBS))
    devices = list(client.devices())
    return Group(
        _head(client.status()),
        Text(),
        _teams(teams),
        Text(),
        Text("\n".join(fragments(devices)[: rows + 3])),
        Text(),
        _jobs(jobs, rows),
    )


def _head(status: Status) -> RenderableType:
    from rich.text import Text

    from gpuyard.cli.terminal import one_line

    jobs = ", ".join(f"{count} {state}" for state, count in status.jobs.items() if count) or "no jobs"
    gpus = f"{status.free_gpus} of {status.gpus} GPUs free{' (FAKE)' if status.fake else ''}"
    nodes = f"{status.ready_nodes}/{status.nodes} nodes ready"
    return Text(
        one_line(f"{status.cluster}   {nodes}   {gpus}   {jobs}   cycle {status.last_cycle_ms} ms"), style="bold"
    )


def _teams(teams: list[TeamObject]) -> Table:
    from rich.text import Text

    from gpuyard.cli.show import table
    from gpuyard.cli.terminal import one_line

    made = table("TEAM", "", "HELD", "OWED", "BORROWED", "WAITING", "JOBS")
    for team in teams:
        owed = "all" if team.quota is None else team.quota
        jobs = f"{team.running_jobs} run, {team.waiting_jobs} wait"
        cells = (team.name, _bar(team), team.held, owed, team.borrowed, team.waiting, jobs)
        made.add_row(*(Text(one_line(cell)) for cell in cells))
    return made


def _bar(team: TeamObject) -> str:
    """`██████▒▒░░`: held of what is owed, borrowed, owed and free."""
    held, owed = float(team.held), float(team.quota or team.held)
    most = max(held, owed)
    if not most:
        return ""
    kept, reached = round(min(held, owed) * BAR / most), round(most * BAR / most)
    return "█" * kept + ("▒" if held > owed else "░") * (reached - kept)


def _jobs(jobs: list[JobObject], rows: int) -> RenderableType:
    """As `ls` shows them: where the line ends, only the reason is cut."""
    from rich.console import Group
    from rich.text import Text

    from gpuyard.cli.job_columns import JOBS
    from gpuyard.cli.listing import table_lines
    from gpuyard.cli.terminal import one_line, width
    from gpuyard.cli.times import now

    shown = [column for column in JOBS.columns if not column.wide]
    at = now()
    order = {"running": 0, "starting": 1, "stopping": 2}
    listed = sorted(jobs, key=lambda job: order.get(job.state, 3))[:rows]
    cells = [[one_line(column.text(job, at)) for column in shown] for job in listed]
    lines = table_lines([[column.name for column in shown], *cells], width())
    styles = ["bold", *(JOBS.colour(job) or "" for job in listed)]
    return Group(*(Text(line, style, no_wrap=True) for line, style in zip(lines, styles, strict=True)))
