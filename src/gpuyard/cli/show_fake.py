"""Tables of fake GPUs for the terminal.

Place in the flow: `gpuyard fake` ─readings─▶ **show_fake** ─▶ the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.table import Table

from gpuyard.cli.show import console, table
from gpuyard.fakegpu.control import DaemonStatus, FaultStatus, MachineStatus
from gpuyard.fakegpu.kubernetes.overview import ClusterView
from gpuyard.fakegpu.products import Product
from gpuyard.fakegpu.profile import Memory, Phase, Profile
from gpuyard.fakegpu.reading import DeviceReading, Health, MigInstance

MIB: Final = 1 << 20
NO_ONE: Final = "·"


def show_status(status: DaemonStatus) -> None:
    out = console()
    out.print(f"up for {duration(status.up_ms)}: {status.size()}")
    out.print(f"exporter {status.exporter}, home {status.home}, process {status.pid}")
    if status.config:
        out.print(f"fleet file {status.config}")
    if status.config_error:
        out.print(f"its newest version is not in force: {status.config_error}", style="red")
    out.print()
    out.print(status_table(status.machines))
    hidden = status.machine_count - len(status.machines)
    if hidden > 0 and len(status.machines) != 1:
        out.print(f"and {hidden} more machines: gpuyard fake status NODE, or --limit {status.machine_count}")


def show_cluster(cluster: ClusterView) -> None:
    """One line a GPU of every node."""
    out = console()
    if cluster.config_error:
        out.print(f"the newest configuration is not in force: {cluster.config_error}", style="red")
    made = table("NODE", "GPU", "PRODUCT", "UTIL", "MEMORY (MiB)", "HELD BY")
    for column in (3, 4):
        made.columns[column].justify = "right"
    for node in cluster.nodes:
        for gpu in node.gpus:
            memory = f"{gpu.memory_used_mib} / {gpu.memory_mib}" if gpu.memory_mib else str(gpu.memory_used_mib)
            made.add_row(node.name, gpu.id, gpu.product, f"{gpu.utilization_percent} %", memory, gpu.holder or NO_ONE)
    out.print(made)


def status_table(machines: Iterable[MachineStatus]) -> Table:
    """One line a GPU, and one for each instance it is cut into."""
    made = table("NODE", "GPU", "PRODUCT", "UTIL", "MEMORY (MiB)", "POWER", "TEMP", "CLOCK", "HEALTH", "USED BY")
    for column in (1, 3, 4, 5, 6, 7):
        made.columns[column].justify = "right"
    for machine in machines:
        for device in machine.reading.devices:
            faults = [fault for fault in machine.faults if fault.gpu == device.index]
            made.add_row(machine.reading.machine, *_cells(device, faults))
            for instance in device.mig:
                made.add_row("", *_instance_cells(device, instance))
    return made


def _cells(device: DeviceReading, faults: list[FaultStatus]) -> list[str]:
    lost = device.health is Health.OFF_THE_BUS
    shown = [
        f"{device.gpu_percent} %",
        f"{device.memory_used_bytes // MIB} / {device.memory_total_bytes // MIB}",
        f"{device.power_mw // 1000} W",
        f"{device.temperature_c} °C",
        f"{device.clocks.sm_mhz} MHz",
    ]
    known = ["?"] * len(shown) if lost else shown
    return [str(device.index), device.product, *known, _health(device, faults), _users(device)]


def _instance_cells(device: DeviceReading, instance: MigInstance) -> list[str]:
    memory = f"{instance.memory_used_bytes // MIB} / {instance.memory_total_bytes // MIB}"
    holder = instance.holder
    held = f"{holder.namespace}/{holder.pod}" if holder else NO_ONE
    name = f"MIG {instance.profile}"
    return [f"{device.index}.{instance.index}", name, f"{instance.gpu_percent} %", memory, "", "", "", "", held]


def _health(device: DeviceReading, faults: list[FaultStatus]) -> str:
    if not faults:
        return str(device.health)
    told = ", ".join(f"{fault.fault}{_left(fault)}" for fault in faults)
    return told if told.startswith(device.health) else f"{device.health}: {told}"


def _left(fault: FaultStatus) -> str:
    return "" if fault.left_ms is None else f" ({duration(fault.left_ms)} left)"


def _users(device: DeviceReading) -> str:
    users = [f"{process.name} ({process.pid})" for process in device.processes]
    if device.holder:
        users.insert(0, f"{device.holder.namespace}/{device.holder.pod}")
    return ", ".join(users) or NO_ONE


def duration(ms: int) -> str:
    """The two largest units of it: 2h5m, 5m10s, 10s."""
    seconds = max(ms, 0) // 1000
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    first = next((at for at, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return "".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count) or "0s"


def show_products(products: Iterable[Product]) -> None:
    made = table("PRODUCT", "NAME", "MEMORY (MiB)", "COMPUTE", "ARCHITECTURE", "POWER", "SM CLOCK", "MIG PROFILES")
    for product in products:
        major, minor = product.compute_capability
        made.add_row(
            product.key,
            product.name,
            str(product.memory_mib),
            f"{major}.{minor}",
            product.architecture,
            f"{product.power_watts.default_watts} W",
            f"{product.max_clocks.sm_mhz} MHz",
            " ".join(profile.name for profile in product.mig) or NO_ONE,
        )
    console().print(made)


def show_profile(profile: Profile) -> None:
    made = table("PHASE", "FOR", "UTILISATION", "MEMORY")
    for number, phase in enumerate(profile.phases, start=1):
        lasts = "as long as it runs" if phase.time_ms is None else duration(phase.time_ms)
        made.add_row(str(number), lasts, _percent(phase), _memory(phase.memory))
    out = console()
    out.print(made)
    rounds = "as long as the task runs" if profile.repeat is None else f"{profile.repeat} times, then idle"
    out.print("once, then idle" if profile.repeat == 1 else rounds)


def _percent(phase: Phase) -> str:
    low, high = phase.low_percent, phase.high_percent
    return f"{low} %" if low == high else f"{low}-{high} %"


def _memory(memory: Memory | None) -> str:
    if memory is None:
        return "the task's own"
    low, high = (
        f"{value / 1000:g} %" if memory.relative else f"{value // MIB} MiB" for value in (memory.low, memory.high)
    )
    return low if low == high else f"{low} to {high}"
