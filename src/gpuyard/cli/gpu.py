"""`gpuyard gpu`: the GPUs as a map of what is held and what is free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from gpuyard.cli.listing import Look, listing_options, show_all, table_lines
from gpuyard.cli.session import Session, connected_anywhere
from gpuyard.cli.terminal import on_terminal, one_line

if TYPE_CHECKING:
    from gpuyard.wire.rest import DeviceObject

FREE: Final = "·"
BROKEN: Final = "✗"
PARTS: Final = "▁▂▃▄▅▆▇█"
LEGEND: Final = f"{FREE} free   {PARTS[0]}{PARTS[3]}{PARTS[6]} held in part   {PARTS[-1]} held   {BROKEN} broken"
MILLI: Final = 1000


@click.group()
def gpu() -> None:
    """GPUs, and who holds which part of them.

    \b
    gpuyard gpu ls
    gpuyard gpu ls --node node-1 -o wide
    """


@gpu.command()
@click.option("--node", "name", default="", help="Of one machine.")
@click.option("--map/--list", "as_map", default=None, help="A map, or a line each.  [default: a map on a terminal]")
@connected_anywhere
@listing_options
def ls(session: Session, look: Look, name: str, as_map: bool | None) -> None:
    """Show every GPU: a map of fragments on a terminal, a line each elsewhere.

    With a Kubernetes context also which pod has which, as far as the nodes tell (gpuyard kube node).

    \b
    gpuyard gpu ls
    gpuyard gpu ls --list --sort free
    gpuyard gpu ls -o json
    gpuyard gpu ls --kubernetes --map
    """
    if session.on_kubernetes:
        from gpuyard.cli.kube_questions import show_gpus

        show_gpus(session, look, name, as_map)
        return
    from gpuyard.cli.device_columns import DEVICES
    from gpuyard.sdk import calls

    plain = look == Look("table")
    if plain and (on_terminal() if as_map is None else as_map):
        for line in fragments(list(session.client.devices(node=name))):
            click.echo(line)
        return
    show_all(session, calls.list_devices(node=name), DEVICES, look)


def fragments(devices: Sequence[DeviceObject]) -> list[str]:
    """A row per machine: one sign per GPU, how much is free in all, and how much of that in whole GPUs."""
    rows = [["NODE", "GPUS", "FREE", "WHOLE", "MODEL"]]
    nodes: dict[str, list[DeviceObject]] = {}
    for device in devices:
        nodes.setdefault(device.node, []).append(device)
    for name, held in nodes.items():
        sound = [device for device in held if device.healthy]
        whole = sum(device.free_milli == MILLI for device in sound)
        free = f"{sum(device.free_milli for device in sound) / MILLI:g}"
        models = ",".join(dict.fromkeys(device.model for device in held))
        fake = " (fake)" if any(device.fake for device in held) else ""
        signs = "".join(map(_sign, sorted(held, key=lambda device: device.index)))
        rows.append([one_line(name), signs, free, str(whole), one_line(models) + fake])
    return [*table_lines(rows, 200), "", LEGEND]


def _sign(device: DeviceObject) -> str:
    if not device.healthy:
        return BROKEN
    held = max(MILLI - device.free_milli, _memory_held(device))
    if held <= 0:
        return FREE
    return PARTS[min(held * len(PARTS) // MILLI, len(PARTS) - 1)]


def _memory_held(device: DeviceObject) -> int:
    """A part may be held by memory alone."""
    return MILLI * (device.memory_mib - device.free_memory_mib) // max(device.memory_mib, 1)
