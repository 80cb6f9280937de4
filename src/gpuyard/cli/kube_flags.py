"""Options of the commands that talk to a Kubernetes cluster: which one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]


def access_options(command: Command) -> Command:
    options = (
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path, dir_okay=False),
            help="How to reach the cluster.  [default: KUBECONFIG, the pod's own account, ~/.kube/config]",
        ),
        click.option("--context", help="Which context of that file.  [default: its current one]"),
    )
    for option in reversed(options):
        command = option(command)
    return command
