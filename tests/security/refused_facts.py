"""Facts of a node that are refused, each with words of the reason."""

from __future__ import annotations

from msgspec.structs import replace

from gpuyard.model.nodes import Device, MigSlices
from gpuyard.wire.agents import Isolation, MachineFacts

HUGE = (1 << 64) - 1
GOOD = MachineFacts(
    devices=tuple(Device("A100", 80_000, f"GPU-{index}") for index in range(4)),
    cpu_milli=64_000,
    memory_bytes=1 << 40,
    isolation=Isolation.USERS,
)

OUT_OF_RANGE = [
    (replace(GOOD, devices=tuple(Device(id=str(index)) for index in range(64))), "64 GPUs"),
    (replace(GOOD, cpu_milli=HUGE), str(HUGE)),
    (replace(GOOD, memory_bytes=HUGE), str(HUGE)),
    (replace(GOOD, cpu_milli=-1), "-1"),
    (replace(GOOD, devices=(Device(memory_mib=1 << 63),)), "GPU with"),
    (replace(GOOD, devices=(Device(memory_mib=-5),)), "GPU with"),
    (replace(GOOD, devices=(Device(id="a"), Device(id="a"))), 'two GPUs with the id "a"'),
    (replace(GOOD, devices=(Device("A100\x1b[2J"),)), "cannot be printed"),
    (replace(GOOD, devices=(Device("m" * 300),)), "more than 253"),
    (replace(GOOD, devices=(Device(numa=1 << 62),)), "NUMA"),
    (replace(GOOD, devices=(Device(mig=(MigSlices("9" * 200 + "g", 1 << 60),)),)), "MIG slices"),
    (replace(GOOD, devices=(Device(mig=(MigSlices("8g.80gb", 1),)),)), "MIG slices"),
    (replace(GOOD, labels={"gpuyard:job": "7"}), "gpuyard:job"),
    (replace(GOOD, labels={"hostname": "m1"}), "hostname"),
    (replace(GOOD, labels={"": "x"}), "label"),
    (replace(GOOD, labels={"a": "two\nlines"}), "cannot be printed"),
    (replace(GOOD, labels={str(index): "" for index in range(1_000)}), "1000 labels"),
    (replace(GOOD, address="$(reboot)"), "neither an IP address nor a host name"),
    (replace(GOOD, address="fe80::1%a;b"), "neither"),
    (replace(GOOD, manager_address="a b"), "manager_address"),
]
