"""The records of the state file, exactly as the C header native/state.h lays them out.

Place in the flow: reading ─publish─▶ **layout** ─▶ state file ─▶ libnvidia-ml.so.1, nvidia-smi.
Invariant: every offset here equals the compiler's; tests/fakegpu/test_layout.py compiles the header and compares them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from operator import itemgetter
from typing import Final

MAGIC: Final = b"GPUYARD\0"
VERSION: Final = 2
EVENTS: Final = 64
MIG_PROFILES: Final = 24
NONE: Final = -1
PAGE: Final = 4096

TEXT: Final = "32s"
NAME: Final = "96s"


class Record:
    """One C struct: its fields in order, each with a format character of the struct module."""

    def __init__(self, name: str, fields: Mapping[str, str]) -> None:
        self.name = name
        self.fields = dict(fields)
        self.format = "".join(self.fields.values())
        # The empty item at the end pads the record as C does, so that an array of records stays aligned.
        self._struct = struct.Struct(f"@{self.format}0Q")
        self._in_order = itemgetter(*self.fields)
        self._texts = [(at, int(kind[:-1])) for at, kind in enumerate(self.fields.values()) if kind.endswith("s")]

    @property
    def size(self) -> int:
        return self._struct.size

    def offsets(self) -> dict[str, int]:
        """Where each field starts; used by the test that asks the compiler the same."""
        found: dict[str, int] = {}
        before = ""
        for name, kind in self.fields.items():
            found[name] = struct.calcsize(f"@{before}{alignment(kind)}")
            before += kind
        return found

    def pack(self, values: Mapping[str, int | str]) -> bytes:
        """The record's bytes. A text too long for its field is cut, so that it always ends with a zero byte."""
        items = list(self._in_order(values))
        for at, size in self._texts:
            items[at] = cut(items[at], size)
        return self._struct.pack(*items)


def alignment(kind: str) -> str:
    """A format that takes no room but stands where a field of this kind would."""
    return f"0{kind[-1]}"


def cut(text: str, size: int) -> bytes:
    """The text in at most `size` - 1 bytes, never in the middle of a character."""
    encoded = text.encode()
    return encoded if len(encoded) < size else encoded[: size - 1].decode(errors="ignore").encode()


def repeat(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


HEADER: Final = Record(
    "gy_header",
    {
        "magic": "8s",
        "version": "I",
        "replaced": "I",
        "published": "Q",
        "body_offset": "Q",
        "body_offset_1": "Q",
        "body_size": "Q",
        **repeat("I", "product_capacity device_capacity mig_capacity process_capacity"),
        **repeat("I", "products_at devices_at migs_at processes_at"),
    },
)

EVENT: Final = Record(
    "gy_event",
    {**repeat("Q", "type data"), **repeat("i", "gpu_instance compute_instance"), "uuid": NAME},
)

MACHINE: Final = Record(
    "gy_machine",
    {
        **repeat("Q", "taken_at_ms event_count"),
        **repeat("I", "product_count device_count mig_count process_count cuda_major cuda_minor"),
        "name": NAME,
        **repeat(TEXT, "driver_version mig_strategy"),
    },
)

MIG_PROFILE: Final = Record(
    "gy_mig_profile",
    {
        "memory_bytes": "Q",
        **repeat("I", "kind id slices instances_max multiprocessors copy_engines decoders encoders jpegs ofas"),
        "name": TEXT,
    },
)

PRODUCT: Final = Record(
    "gy_product",
    {
        "bar1_bytes": "Q",
        **repeat("I", "brand architecture compute_major compute_minor multiprocessors cuda_cores memory_bus_bits"),
        **repeat("I", "graphics_max_mhz sm_max_mhz memory_max_mhz video_max_mhz"),
        **repeat("I", "power_min_mw power_max_mw power_default_mw"),
        **repeat("I", "slowdown_c shutdown_c gpu_max_c memory_max_c pcie_generation pcie_width"),
        **repeat("I", "fans ecc mig mig_instances_max nvlinks nvlink_mb_per_s nvlink_version"),
        **repeat("I", "pci_device_id pci_subsystem_id mig_profile_count"),
        "name": NAME,
        **repeat(TEXT, "family vbios part_number"),
    },
)

DEVICE: Final = Record(
    "gy_device",
    {
        **repeat("Q", "memory_total_bytes memory_reserved_bytes memory_used_bytes memory_free_bytes"),
        **repeat("Q", "energy_mj throttle_reasons ecc_volatile_corrected ecc_volatile_uncorrected"),
        **repeat("Q", "ecc_aggregate_corrected ecc_aggregate_uncorrected xid_count"),
        **repeat("Q", "pcie_tx_bytes_per_s pcie_rx_bytes_per_s nvlink_bytes"),
        **repeat("I", "index minor product health gpu_percent memory_percent encoder_percent decoder_percent"),
        **repeat("i", "temperature_c memory_temperature_c fan_percent"),
        **repeat("I", "power_mw power_limit_mw performance_state graphics_mhz sm_mhz memory_mhz video_mhz has_ecc"),
        **repeat("I", "last_xid pcie_replays remapped_rows_corrected remapped_rows_uncorrected mig_enabled"),
        **repeat("I", "pci_domain pci_bus pci_device first_mig mig_count first_process process_count"),
        **repeat("I", "numa_node pcie_switch"),
        "uuid": NAME,
        **repeat(TEXT, "serial pci_bus_id"),
    },
)

MIG: Final = Record(
    "gy_mig",
    {
        **repeat("Q", "memory_total_bytes memory_used_bytes"),
        **repeat("I", "device index gpu_instance compute_instance slices multiprocessors"),
        "profile": "i",
        "uuid": NAME,
        "profile_name": TEXT,
    },
)

PROCESS: Final = Record(
    "gy_process",
    {
        **repeat("Q", "memory_bytes started_at_ms"),
        **repeat("I", "pid kind device"),
        **repeat("i", "mig gpu_instance compute_instance"),
        **repeat("I", "sm_percent memory_percent"),
        "name": "256s",
    },
)

# Two records hold an array of others at their end.
MACHINE_SIZE: Final = MACHINE.size + EVENTS * EVENT.size
PRODUCT_SIZE: Final = PRODUCT.size + MIG_PROFILES * MIG_PROFILE.size
RECORDS: Final = (HEADER, EVENT, MACHINE, MIG_PROFILE, PRODUCT, DEVICE, MIG, PROCESS)
