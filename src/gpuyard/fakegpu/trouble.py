"""The faults that last now, and what they make of the columns.

Place in the flow: engine ─Fault─▶ **trouble** ─health, Xid, ECC, lost memory─▶ devices. Invariant: health, last Xid and
lost memory of a GPU follow from the faults that last on it; counters only ever grow, but for volatile ECC, which the
end of a serious fault resets as the reset of a real device would.
"""

from __future__ import annotations

import msgspec

from gpuyard.fakegpu.devices import HEALTHS, Devices
from gpuyard.fakegpu.faults import Fault, FaultKind
from gpuyard.fakegpu.reading import Health


class ActiveFault(msgspec.Struct, frozen=True):
    """A fault that lasts; until it is healed, where `until_ms` is None."""

    number: int
    gpu: int
    fault: Fault
    since_ms: int
    until_ms: int | None


class Trouble:
    """All faults that last: of each GPU by number, oldest first."""

    def __init__(self) -> None:
        self._on: dict[int, dict[int, ActiveFault]] = {}
        self._gpu: dict[int, int] = {}
        self._last_number = 0

    def begin(self, gpu: int, fault: Fault, since_ms: int, until_ms: int | None, devices: Devices) -> int:
        """A fault begins; its number."""
        self._last_number += 1
        self._put(ActiveFault(self._last_number, gpu, fault, since_ms, until_ms))
        devices.xid_count[gpu] += fault.xid != 0
        for counted in (devices.ecc_volatile, devices.ecc_aggregate):
            counted[gpu] += (fault.corrected, fault.uncorrected)
        self._show(gpu, devices)
        return self._last_number

    def end(self, number: int, devices: Devices) -> int | None:
        """A fault is over; the GPU it was on, if it still lasted."""
        gpu = self._gpu.pop(number, None)
        if gpu is None:
            return None
        ended = self._on[gpu].pop(number)
        if ended.fault.health is not Health.OK:
            devices.ecc_volatile[gpu] = 0
        self._show(gpu, devices)
        return gpu

    def on(self, gpus: range) -> list[ActiveFault]:
        """What lasts on some GPUs, oldest first."""
        found = [active for gpu in gpus for active in self._on.get(gpu, {}).values()]
        return sorted(found, key=lambda active: active.number)

    def move(self, moved: dict[int, int], devices: Devices) -> None:
        """Faults follow their GPUs to other places; those of GPUs that are gone end."""
        before, self._on, self._gpu = self._on, {}, {}
        for old, faults in before.items():
            if old in moved:
                for active in faults.values():
                    self._put(msgspec.structs.replace(active, gpu=moved[old]))
                self._show(moved[old], devices)

    def _put(self, active: ActiveFault) -> None:
        self._on.setdefault(active.gpu, {})[active.number] = active
        self._gpu[active.number] = active.gpu

    def _show(self, gpu: int, devices: Devices) -> None:
        """All together: the worst health, the newest Xid, the sum of what is lost."""
        faults = [active.fault for active in self._on.get(gpu, {}).values()]
        devices.health[gpu] = max((HEALTHS.index(fault.health) for fault in faults), default=0)
        devices.throttled[gpu] = any(fault.kind is FaultKind.THROTTLE for fault in faults)
        devices.lost_bytes[gpu] = sum(fault.lost_of(devices.specs[gpu].memory_bytes) for fault in faults)
        devices.last_xid[gpu] = next((fault.xid for fault in reversed(faults) if fault.xid), 0)
