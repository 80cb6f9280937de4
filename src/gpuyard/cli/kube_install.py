"""`gpuyard kube install`: what the scheduler needs in a cluster before it starts."""

from __future__ import annotations

from pathlib import Path

import click

from gpuyard.cli.kube_flags import access_options


@click.command()
@click.option("--default-queues", is_flag=True, help="Also default-queue, for workloads that name no queue.")
@click.option("--dry-run", is_flag=True, help="Change nothing; print what is missing, for kubectl apply -f -.")
@click.option(
    "--namespace",
    "-n",
    envvar="POD_NAMESPACE",
    default="gpuyard-system",
    show_default=True,
    help="Where the scheduler keeps its lease; also POD_NAMESPACE.",
)
@access_options
def install(default_queues: bool, dry_run: bool, namespace: str, kubeconfig: Path | None, context: str | None) -> None:
    """Give a cluster the kinds Queue, PodGroup and Topology of KAI, and the priority classes its manifests name.

    Only what is missing is made. Where KAI is installed, or somebody else has made them, they are used as they are.

    \b
    gpuyard kube install
    gpuyard kube install --default-queues --context my-cluster
    gpuyard kube install --dry-run | kubectl apply -f -
    """
    from gpuyard.kube import install as installing

    queues = installing.default_queues() if default_queues else ()
    wanted = (installing.home(namespace), *installing.definitions(), *queues)
    if dry_run:
        _print(installing.look(wanted, kubeconfig, context))
    else:
        installing.run(wanted, kubeconfig, context, lambda line: click.echo(line, err=True))


def _print(bodies: list[dict[str, object]]) -> None:
    """Written out in full: what our files say once and refer to would be hard to follow in print."""
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

    if not bodies:
        click.echo("nothing is missing", err=True)
        return
    click.echo(yaml.dump_all(bodies, Dumper=Plain, sort_keys=False, width=120), nl=False)
