"""What changed between two readings that NVML tells its listeners about: Xids, ECC errors, performance states.

Place in the flow: publish keeps one **log** per machine and writes it beside every reading.
Invariant: an event has one number for ever; the log keeps the last `EVENTS` of them.
"""

from __future__ import annotations

import msgspec

from gpuyard.fakegpu.layout import EVENT, EVENTS, NONE
from gpuyard.fakegpu.pack import NO_ECC
from gpuyard.fakegpu.reading import DeviceReading, MachineReading

SINGLE_BIT_ECC = 0x1
DOUBLE_BIT_ECC = 0x2
PERFORMANCE_STATE = 0x4
XID = 0x8


class Seen(msgspec.Struct, frozen=True):
    """The counts of a device whose growth is an event."""

    xids: int
    corrected: int
    uncorrected: int
    performance_state: int


class NoticeLog:
    """Compares each reading with the one before it, and keeps the events as the state file's ring of records."""

    def __init__(self) -> None:
        self.count = 0
        self._ring = bytearray(EVENTS * EVENT.size)
        self._seen: dict[str, Seen] = {}

    @property
    def ring(self) -> bytes:
        return bytes(self._ring)

    def note(self, reading: MachineReading) -> None:
        """Log what happened since the reading before; a device seen for the first time has no past."""
        now = {device.uuid: seen(device) for device in reading.devices}
        for device in reading.devices:
            before = self._seen.get(device.uuid)
            if before is not None and before != now[device.uuid]:
                self._compare(device, before, now[device.uuid])
        self._seen = now

    def _compare(self, device: DeviceReading, before: Seen, now: Seen) -> None:
        # One event an error, as the driver does it, but never more than the ring holds.
        for _ in range(min(now.xids - before.xids, EVENTS)):
            self._add(device, XID, device.last_xid)
        if now.corrected > before.corrected:
            self._add(device, SINGLE_BIT_ECC, 0)
        if now.uncorrected > before.uncorrected:
            self._add(device, DOUBLE_BIT_ECC, 0)
        if now.performance_state != before.performance_state:
            self._add(device, PERFORMANCE_STATE, now.performance_state)

    def _add(self, device: DeviceReading, kind: int, data: int) -> None:
        values: dict[str, int | str] = {"type": kind, "data": data, "uuid": device.uuid}
        start = self.count % EVENTS * EVENT.size
        self._ring[start : start + EVENT.size] = EVENT.pack({**values, "gpu_instance": NONE, "compute_instance": NONE})
        self.count += 1


def seen(device: DeviceReading) -> Seen:
    ecc = device.ecc or NO_ECC
    return Seen(device.xid_count, ecc.volatile_corrected, ecc.volatile_uncorrected, device.performance_state)
