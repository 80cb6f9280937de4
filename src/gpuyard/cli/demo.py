"""`gpuyard demo`: the core at work on an example, without a single GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLE = Path(__file__).parents[1] / "examples" / "cluster.yaml"


@click.command()
@click.option("--yaml", "as_yaml", is_flag=True, help="Print the cluster file of the example instead.")
def demo(as_yaml: bool) -> None:
    """Show a small cluster, what the scheduler decides about it, and why.

    \b
    gpuyard demo
    gpuyard demo --yaml > cluster.yaml      a copy to play with
    """
    if as_yaml:
        click.echo(EXAMPLE.read_text(encoding="utf-8"), nl=False)
    else:
        _show_example()


def _show_example() -> None:
    from gpuyard.cli.show import console, free_gpus, show_cluster, show_plan, show_queues
    from gpuyard.files.cluster import read_cluster
    from gpuyard.scheduler.cycle import schedule

    cluster = read_cluster(EXAMPLE)
    snapshot = cluster.snapshot
    out = console()
    free, total = free_gpus(snapshot)
    _heading(out, f"The cluster: {len(snapshot.nodes)} nodes, {free} of {total} GPUs free (·)")
    show_cluster(out, snapshot)
    _heading(out, "The queues, in GPUs")
    show_queues(out, snapshot)
    _heading(out, "What the next cycle decides, and why")
    show_plan(out, schedule(snapshot, cluster.policy), snapshot)
    _heading(out, "Try next")
    out.print(_TRY_NEXT)


_TRY_NEXT = """\
gpuyard demo --yaml > cluster.yaml      your own copy: change a quota, add a job
gpuyard plan cluster.yaml               what would happen then
gpuyard explain llm --cluster cluster.yaml   why that job waits, and what would let it start
gpuyard scenario new my-rule.yaml       write down a rule as an example ...
gpuyard scenario check my-rule.yaml     ... and have it judged"""


def _heading(out: Console, text: str) -> None:
    from rich.text import Text

    out.print()
    out.print(Text(text, style="bold underline"))
