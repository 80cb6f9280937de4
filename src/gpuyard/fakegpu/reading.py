"""What anybody can read off a machine's GPUs at one instant.

Place in the flow: file ─config─▶ model ─**reading**─▶ faces (NVML and nvidia-smi through the state directory,
exporter, labels).
Invariant: every face shows numbers of a reading and rounds nothing itself, so no two faces can disagree.
The units are the finest any face shows: bytes, milliwatts, millijoules, MHz, whole per cent, whole degrees.
"""

from enum import StrEnum

import msgspec

NOT_SUPPORTED = None  # What a product lacks (a fan, ECC, a memory sensor) reads as None and shows as "[N/A]".


class Health(StrEnum):
    """How a device answers: normally, with errors recorded, or not at all."""

    OK = "ok"
    UNHEALTHY = "unhealthy"
    OFF_THE_BUS = "off-the-bus"


class Holder(msgspec.Struct, frozen=True, gc=False):
    """The container a device is given to, as the exporter's labels name it."""

    namespace: str
    pod: str
    container: str


class ProcessReading(msgspec.Struct, frozen=True, gc=False):
    """One process on one device; `kind` is "C" (compute), "G" (graphics) or "M" (through MPS)."""

    pid: int
    name: str
    kind: str
    memory_bytes: int
    sm_percent: int
    memory_percent: int
    started_at_ms: int
    mig_instance: int | None = None


class Clocks(msgspec.Struct, frozen=True, gc=False):
    graphics_mhz: int
    sm_mhz: int
    memory_mhz: int
    video_mhz: int


class Ecc(msgspec.Struct, frozen=True, gc=False):
    """Errors counted since the driver loaded (volatile) and since the device was made (aggregate)."""

    volatile_corrected: int
    volatile_uncorrected: int
    aggregate_corrected: int
    aggregate_uncorrected: int


class MigInstance(msgspec.Struct, frozen=True, gc=False):
    """One GPU instance with its one compute instance; `profile` is the vendor's name, for example "1g.10gb"."""

    index: int
    gpu_instance: int
    compute_instance: int
    uuid: str
    profile: str
    slices: int
    multiprocessors: int
    memory_total_bytes: int
    memory_used_bytes: int
    holder: Holder | None
    gpu_percent: int = 0
    memory_percent: int = 0
    tensor_percent: int = 0


class DeviceReading(msgspec.Struct, frozen=True, gc=False):
    index: int
    minor: int
    uuid: str
    serial: str
    product: str
    pci_bus_id: str
    health: Health
    holder: Holder | None
    memory_total_bytes: int
    memory_reserved_bytes: int
    memory_used_bytes: int
    gpu_percent: int
    memory_percent: int
    encoder_percent: int
    decoder_percent: int
    temperature_c: int
    memory_temperature_c: int | None
    fan_percent: int | None
    power_mw: int
    power_limit_mw: int
    energy_mj: int
    performance_state: int
    clocks: Clocks
    throttle_reasons: int
    ecc: Ecc | None
    last_xid: int
    xid_count: int
    pcie_replays: int
    pcie_tx_bytes_per_s: int
    pcie_rx_bytes_per_s: int
    nvlink_bytes: int
    remapped_rows_corrected: int
    remapped_rows_uncorrected: int
    mig_enabled: bool
    mig: tuple[MigInstance, ...]
    processes: tuple[ProcessReading, ...]
    tensor_percent: int = 0
    """How much of the time the tensor cores are at work; the exporter alone shows it."""
    numa_node: int = 0
    pcie_switch: int = 0
    leaving: bool = False
    """It is no longer wanted, and only there until whoever holds it lets go: nobody else is to get it."""

    @property
    def memory_free_bytes(self) -> int:
        return self.memory_total_bytes - self.memory_reserved_bytes - self.memory_used_bytes


class MachineReading(msgspec.Struct, frozen=True, gc=False):
    """All devices of one machine at one instant. What never changes about a product is in `products.py`."""

    machine: str
    taken_at_ms: int
    driver_version: str
    cuda_version: str
    mig_strategy: str
    devices: tuple[DeviceReading, ...]

    @property
    def staying(self) -> "MachineReading":
        """Without the devices that are leaving: what can be offered to others."""
        if not any(device.leaving for device in self.devices):
            return self
        return msgspec.structs.replace(self, devices=tuple(device for device in self.devices if not device.leaving))
