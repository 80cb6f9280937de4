"""`gpuyard kube`: everything about Kubernetes."""

from __future__ import annotations

import click

from gpuyard.cli.demo_kai import demo_kai
from gpuyard.cli.kube_commands import COMMANDS
from gpuyard.cli.kube_install import install
from gpuyard.cli.kube_node import node
from gpuyard.cli.kube_scheduler import scheduler
from gpuyard.cli.testbed import testbed


@click.group(epilog="More: docs/kube-questions.md, docs/kube-testbed.md")
def kube() -> None:
    """Kubernetes: its scheduler, questions about it, and a cluster of real parts on this machine to test on.

    \b
    gpuyard kube install                         what the scheduler reads: queues, groups, priority classes
    gpuyard kube scheduler                       be the scheduler of the cluster
    gpuyard kube explain train-0 -n vision       why a pod waits, and what would let it start
    gpuyard kube doctor -n vision                what is in order, and what is not
    gpuyard kube testbed up                      four real nodes, a minute later
    gpuyard kube testbed kubectl get nodes       ask them
    gpuyard kube testbed down                    and nothing of it is left
    """


kube.add_command(demo_kai)
kube.add_command(install)
kube.add_command(node)
kube.add_command(scheduler)
kube.add_command(testbed)
for _command in COMMANDS:
    kube.add_command(_command)
