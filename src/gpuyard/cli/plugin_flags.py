"""What can be said about a device plugin, alone or as a part of a node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_OPTIONS = (
    click.option(
        "--plugin-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("/var/lib/kubelet/device-plugins"),
        show_default=True,
        help="Where the kubelet looks for plugins.",
    ),
    click.option(
        "--inject/--no-inject",
        default=True,
        show_default=True,
        help="Give containers nvidia-smi, the NVML library and their own GPUs; or nothing but the booking.",
    ),
    click.option("--numa", is_flag=True, help="Tell the kubelet which NUMA node a GPU is near to."),
)


def plugin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
