"""Holdings as tasks of the model: containers start and stop on GPUs as they do in the cluster.

Place in the flow: Holding ─**occupy**─▶ engine ─▶ all faces. Invariants: after `settle` exactly the wanted holdings are
tasks of the machine, and what people started there by hand is untouched; a holding that has not changed goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.fleet import MachineSpec, mig_uuid
from gpuyard.fakegpu.kubernetes.holdings import Holding
from gpuyard.fakegpu.profile import Profile, steady

PREFIX: Final = "pod:"
"""What the names of our tasks begin with."""
NO_LOAD: Final = steady(0)


class Seat(msgspec.Struct, frozen=True):
    """A whole GPU, or an instance of one."""

    gpu: str
    mig: int | None = None


class Occupancy:
    """Who was put where."""

    def __init__(self) -> None:
        self._seated: dict[str, dict[Seat, Holding]] = {}

    def settle(self, engine: Engine, machine: MachineSpec, wanted: Mapping[str, Holding]) -> tuple[str, ...]:
        """Let these hold devices of a machine, and nobody else; the answer is which devices it does not have."""
        seats = seats_of(machine)
        target = {seat: holding for device, holding in wanted.items() for seat in seats.get(device, ())}
        seated = self._seated.get(machine.name, {})
        for seat, holding in list(seated.items()):
            if target.get(seat) != holding or not _is_there(engine, machine, seat, holding):
                _stop(engine, machine, seat, holding)
                del seated[seat]
        for seat in target.keys() - seated.keys():
            _start(engine, machine, seat, target[seat])
        self._seated[machine.name] = target
        for gpu in machine.gpus:
            if gpu.given is not None and not engine.running(machine.name, gpu.uuid):
                engine.clear(machine.name, gpu.uuid)
        return tuple(device for device in wanted if device not in seats)

    def forget(self, machine: str) -> None:
        """It is no longer in the fleet, and neither is anything on it."""
        self._seated.pop(machine, None)

    def moves(self, machine: str) -> bool:
        """Whether anything there changes by itself, without a pod coming or going."""
        profiles = {holding.profile for holding in self._seated.get(machine, {}).values() if holding.profile}
        return any(_varies(profile) for profile in profiles)

    def held(self, machine: str) -> frozenset[str]:
        """The GPUs somebody holds, or holds a part of."""
        return frozenset(seat.gpu for seat in self._seated.get(machine, {}))


def seats_of(machine: MachineSpec) -> dict[str, tuple[Seat, ...]]:
    """Where a task goes that holds a device of that id: a GPU that is cut but given out whole is held in all parts."""
    found: dict[str, tuple[Seat, ...]] = {}
    for gpu in machine.gpus:
        parts = tuple(Seat(gpu.uuid, index) for index in range(len(gpu.mig)))
        found[gpu.uuid] = parts if gpu.mig_enabled else (Seat(gpu.uuid),)
        found.update({mig_uuid(gpu.uuid, index): (part,) for index, part in enumerate(parts)})
    return found


def _name(seat: Seat, holding: Holding) -> str:
    """Once per GPU, also where a container holds several instances of it."""
    part = "" if seat.mig is None else f"@{seat.mig}"
    return f"{PREFIX}{holding.pod}/{holding.holder.container}{part}"


def _is_there(engine: Engine, machine: MachineSpec, seat: Seat, holding: Holding) -> bool:
    here = any(gpu.uuid == seat.gpu for gpu in machine.gpus)
    return here and _name(seat, holding) in engine.running(machine.name, seat.gpu)


def _stop(engine: Engine, machine: MachineSpec, seat: Seat, holding: Holding) -> None:
    if _is_there(engine, machine, seat, holding):
        engine.stop(machine.name, _name(seat, holding), gpu=seat.gpu)


def _start(engine: Engine, machine: MachineSpec, seat: Seat, holding: Holding) -> None:
    """One that does not run holds its GPU and does nothing on it."""
    runs = holding.profile is not None
    engine.start(
        machine.name,
        seat.gpu,
        _name(seat, holding),
        profile=holding.profile or NO_LOAD,
        memory_bytes=None if runs else 0,
        holder=holding.holder,
        mig=seat.mig,
        since_ms=holding.since_ms if runs else None,
    )


def _varies(profile: Profile) -> bool:
    phase = profile.phases[0]
    return len(profile.phases) > 1 or phase.time_ms is not None or phase.low_percent != phase.high_percent
