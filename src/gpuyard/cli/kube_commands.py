"""The questions again below `gpuyard kube`, where a Kubernetes cluster is meant without being named.

Place in the flow: `gpuyard kube explain` ─**kube_commands**─▶ the command `explain` with a cluster. Invariant: each is
the very command of the same name, with fewer flags.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from gpuyard.cli.doctor import doctor
from gpuyard.cli.explain import explain
from gpuyard.cli.gpu import ls as gpu_ls
from gpuyard.cli.team import ls as team_ls
from gpuyard.cli.team import tree as team_tree
from gpuyard.cli.what_if import what_if

_SETTLED: Final[dict[str, Any]] = {"context": "", "url": "", "token_file": "", "kubernetes": True, "cluster_path": None}
"""What is not asked here: which server, which file."""


def _context() -> click.Option:
    return click.Option(
        ["--context", "kube_context"],
        default="",
        metavar="NAME",
        help="Which context of it.  [default: its current one]",
    )


def asked_of_kubernetes(command: click.Command, help: str) -> click.Command:
    """The same command, asked of a cluster."""
    settled = {name: value for name, value in _SETTLED.items() if any(one.name == name for one in command.params)}
    params: Sequence[click.Parameter] = [
        _context() if one.name == "kube_context" else one for one in command.params if one.name not in settled
    ]

    def callback(**given: Any) -> Any:  # noqa: ANN401
        assert command.callback is not None
        return command.callback(**settled, **given)

    return click.Command(
        command.name, callback=callback, params=list(params), help=help, epilog="More: docs/kube-questions.md"
    )


EXPLAIN: Final = asked_of_kubernetes(
    explain,
    """Say everything about a pod, or what its pods belong to: why it waits, its turn, the cheapest ways out.

    JOB is POD, NAMESPACE/POD, KIND/NAME or NAMESPACE/KIND/NAME. Ends with 0 if it runs or can, 10 if it waits, 11 if
    waiting alone cannot help.

    \b
    gpuyard kube explain train-0 -n vision
    gpuyard kube explain job/train -n vision -o json
    gpuyard kube explain vision/pytorchjob/llm
    """,
)

WHAT_IF: Final = asked_of_kubernetes(
    what_if,
    """Say who would start, stop, move and wait if something changed. Nothing is done.

    \b
    gpuyard kube what-if change.yaml
    echo 'queues: {vision: {limit: 16}}' | gpuyard kube what-if -
    echo 'nodes: {drain: [node-3]}' | gpuyard kube what-if -
    """,
)

DOCTOR: Final = asked_of_kubernetes(
    doctor,
    """Check the cluster, your rights, its scheduler, nodes, GPUs and queues, and every pod here that waits.

    Of each: may its namespace use the queue, does the queue exist and hold pods, is the schedulerName ours, is what it
    asks for within quota and limit, have nodes room for it, and for gangs for all of it at once.

    \b
    gpuyard kube doctor -n vision
    gpuyard kube doctor -n vision --pod train-0
    gpuyard kube doctor -o json
    """,
)


@click.group()
def team() -> None:
    """Queues: what each is owed, holds, borrows and lends.

    \b
    gpuyard kube team tree
    gpuyard kube team ls -o wide
    """


@click.group()
def gpu() -> None:
    """GPUs, and which pod has which.

    \b
    gpuyard kube gpu ls
    gpuyard kube gpu ls --node node-1 -o json
    """


team.add_command(
    asked_of_kubernetes(
        team_tree,
        """Show the tree of queues: owed, held, borrowed, lent, waiting; in GPUs.

        \b
        gpuyard kube team tree
        gpuyard kube team tree -o json
        """,
    )
)
team.add_command(
    asked_of_kubernetes(
        team_ls,
        """List the queues.

        \b
        gpuyard kube team ls
        gpuyard kube team ls -o wide
        """,
    )
)
gpu.add_command(
    asked_of_kubernetes(
        gpu_ls,
        """Show every GPU and the pod that has it: a map on a terminal, a line each elsewhere.

        \b
        gpuyard kube gpu ls
        gpuyard kube gpu ls --map --node node-1
        """,
    )
)
COMMANDS: Final = (EXPLAIN, WHAT_IF, DOCTOR, team, gpu)
