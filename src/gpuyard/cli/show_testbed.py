"""Tables of Kubernetes testbeds for the terminal.

Place in the flow: `gpuyard kube testbed` ─statuses─▶ **show_testbed** ─▶ the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.table import Table

from gpuyard.cli.show import console, table
from gpuyard.testbed.status import BedStatus, MachineStatus

MIB: Final = 1 << 20


def show_status(status: BedStatus) -> None:
    out = console()
    out.print(f"{status.name}: {state(status)}, {memory(status.memory_bytes)} in all")
    for problem in status.problems if status.came_up else ():
        out.print(f"  {problem}")
    out.print(f"API server {status.url}, addresses {status.network} behind {status.interface}")
    out.print(f"KUBECONFIG {status.kubeconfig}")
    if status.fake_nodes:
        out.print(f"{status.fake_nodes} nodes that KWOK pretends")
    out.print()
    out.print(machine_table(status.machines))


def machine_table(machines: Iterable[MachineStatus]) -> Table:
    """One line a machine, and one for each of its components."""
    made = table("MACHINE", "ADDRESS", "STATE", "COMPONENT", "PROCESS", "MEMORY", "RESTARTS")
    for machine in machines:
        made.add_row(machine.name, machine.address, machine_state(machine), "", "", memory(machine.memory_bytes), "")
        for component in machine.components:
            process = str(component.pid) if component.pid else "-"
            made.add_row(
                "",
                "",
                component.state,
                component.name,
                process,
                memory(component.memory_bytes),
                str(component.restarts),
            )
    return made


def show_list(statuses: Iterable[BedStatus]) -> None:
    made = table("NAME", "STATE", "NODES", "API SERVER", "MEMORY", "KUBECONFIG")
    for status in statuses:
        nodes = str(len(status.machines) - 1 + status.fake_nodes)
        made.add_row(status.name, state(status), nodes, status.url, memory(status.memory_bytes), status.kubeconfig)
    console().print(made)


def state(status: BedStatus) -> str:
    if not status.came_up:
        return "did not come up whole"
    return "healthy" if status.healthy else "not well"


def machine_state(machine: MachineStatus) -> str:
    if not machine.on:
        return "off"
    return "ready" if machine.ready else "not ready"


def memory(count_bytes: int) -> str:
    return f"{count_bytes // MIB} MiB"
