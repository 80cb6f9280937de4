"""`gpuyard kube`: everything about Kubernetes."""

from __future__ import annotations

import click

from gpuyard.cli.testbed import testbed


@click.group(epilog="More: docs/kube-testbed.md")
def kube() -> None:
    """Kubernetes: a cluster of real parts on this machine, to test on.

    \b
    gpuyard kube testbed up                      four real nodes, a minute later
    gpuyard kube testbed kubectl get nodes       ask them
    gpuyard kube testbed down                    and nothing of it is left
    """


kube.add_command(testbed)
