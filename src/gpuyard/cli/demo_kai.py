"""`gpuyard kube demo-kai`: KAI's demo, on a cluster of real parts on this machine."""

from __future__ import annotations

from pathlib import Path

import click

MODES = ("keep-whole-nodes-free", "on-demand")


@click.command("demo-kai", epilog="Needs root on Linux. What happens and why: docs/kai-demo.md")
@click.option(
    "--files",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Other files instead: 1-queues.yaml, 2-initial-state.yaml, 3-new-workloads.yaml.",
)
@click.option(
    "--consolidation", "modes", multiple=True, type=click.Choice(MODES), help="Only this act.  [default: both]"
)
@click.option("--nodes", type=click.IntRange(1, 16), default=4, show_default=True, help="How many nodes.")
@click.option("--gpus", type=click.IntRange(1, 64), default=8, show_default=True, help="How many GPUs each.")
@click.option("--keep", is_flag=True, help="Stay at the end until Ctrl-C, to look around.")
@click.option(
    "--name", default="kai-demo", show_default=True, help="The testbed it plays on; one of that name is replaced."
)
def demo_kai(files: Path | None, modes: tuple[str, ...], nodes: int, gpus: int, keep: bool, name: str) -> None:
    """Play the demo of the KAI scheduler: departments, projects, and a job that finds no place until another moves.

    Four real nodes with eight fake GPUs each, Kubeflow's training operator, and our scheduler in KAI's place. Every
    line is told from a decision the scheduler has logged. Afterwards nothing is left.

    \b
    gpuyard kube demo-kai
    gpuyard kube demo-kai --consolidation on-demand --keep
    gpuyard kube demo-kai --files my-demo --nodes 2
    """
    from gpuyard.kaidemo.files import own_folder
    from gpuyard.kaidemo.play import Show, play
    from gpuyard.kaidemo.stage import Size

    show = Show(files or own_folder(), modes or MODES, name, Size(nodes, gpus), keep)
    play(show, click.echo, lambda line: click.echo(line, err=True))
