"""`gpuyard usage`: GPU-hours, and what was wasted by which decision."""

from __future__ import annotations

from typing import Any

import click

from gpuyard.cli.listing import Look, listing_options, show_all
from gpuyard.cli.session import Session, connected

DIMENSIONS = ("team", "user", "job", "day")


class Dimensions(click.ParamType[Any]):
    """team, user, job, day with commas."""

    name = "dimensions"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        for word in value.split(","):
            if word not in DIMENSIONS:
                self.fail(f'use is not kept by "{word}"; there are: {", ".join(DIMENSIONS)}', param, ctx)
        return value


@click.command()
@click.option("--by", type=Dimensions(), default="team", show_default=True, help="team, user, job, day; with commas.")
@click.option("--since", default="30d", show_default=True, help="From then on: 30d ago, or 2026-11-01.")
@click.option("--until", default="", help="Until then.")
@connected
@listing_options
def usage(session: Session, look: Look, by: str, since: str, until: str) -> None:
    """Show GPU-hours: held, and of these owed, borrowed, lent to others, idle and wasted.

    Wasted is what was computed and lost, each with the decision that caused it (-o wide; gpuyard audit shows it).
    Use is counted by the server's monotonic clock: setting its wall clock charges nobody.

    \b
    gpuyard usage
    gpuyard usage --by team,user --since 30d -o csv > use.csv
    gpuyard usage --by job --since 7d --sort -wasted
    """
    from gpuyard.cli.usage_columns import usage_kind
    from gpuyard.sdk import calls

    show_all(session, calls.usage(by=by, since=since, until=until), usage_kind(by.split(",")), look)
