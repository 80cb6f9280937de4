"""What can go wrong with a GPU, and what each fault shows while it lasts.

Place in the flow: file or command ─read_fault─▶ **Fault** ─engine─▶ health, Xid, ECC, clocks and memory of a reading.
Invariant: a fault acts through the reading only, so every face shows it; when it ends the GPU is as after a reset
(health, last Xid, volatile ECC), while what a real one keeps for good (aggregate ECC, remapped rows, Xid count) stays.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from gpuyard.errors import InputError, QuantityError
from gpuyard.fakegpu.reading import Health
from gpuyard.files.suggest import did_you_mean
from gpuyard.model.quantities import memory_bytes

OFF_THE_BUS_XID: Final = 79
DOUBLE_BIT_XID: Final = 48
APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Xids that are the program's fault: the device stays healthy."""
MAX_XID: Final = 999
MAX_ECC_ERRORS: Final = 1_000_000

FORMS: Final = (
    "unhealthy, xid:79, ecc:corrected:3, ecc:uncorrected, off-the-bus, throttle, memory-loss:8GiB, "
    "plugin:crash, plugin:hang, plugin:fail-allocation, plugin:fail-registration"
)


class FaultKind(StrEnum):
    UNHEALTHY = "unhealthy"
    XID = "xid"
    ECC = "ecc"
    OFF_THE_BUS = "off-the-bus"
    THROTTLE = "throttle"
    MEMORY_LOSS = "memory-loss"
    PLUGIN = "plugin"


class PluginFailure(StrEnum):
    """What goes wrong with the device plugin; the GPUs themselves are well, and no other face shows it."""

    NONE = ""
    CRASH = "crash"
    HANG = "hang"
    FAIL_ALLOCATION = "fail-allocation"
    FAIL_REGISTRATION = "fail-registration"


class Fault(msgspec.Struct, frozen=True):
    """One fault. `xid` is what it reports, or 0; the other numbers are what it adds or takes away."""

    kind: FaultKind
    xid: int = 0
    corrected: int = 0
    uncorrected: int = 0
    lost_bytes: int = 0
    """Zero for a memory loss means half of what there is."""
    plugin: PluginFailure = PluginFailure.NONE

    @property
    def health(self) -> Health:
        if self.xid == OFF_THE_BUS_XID:
            return Health.OFF_THE_BUS
        serious = self.kind is FaultKind.UNHEALTHY or self.uncorrected or (self.xid and not self.is_of_the_program)
        return Health.UNHEALTHY if serious else Health.OK

    @property
    def is_of_the_program(self) -> bool:
        return self.xid in APPLICATION_XIDS

    def lost_of(self, installed_bytes: int) -> int:
        """How much of a GPU's memory it takes away."""
        if self.kind is not FaultKind.MEMORY_LOSS:
            return 0
        return self.lost_bytes or installed_bytes // 2

    def __str__(self) -> str:
        """The form `read_fault` reads."""
        match self.kind:
            case FaultKind.XID:
                return f"xid:{self.xid}"
            case FaultKind.ECC if self.uncorrected:
                return f"ecc:uncorrected:{self.uncorrected}"
            case FaultKind.ECC:
                return f"ecc:corrected:{self.corrected}"
            case FaultKind.MEMORY_LOSS if self.lost_bytes:
                return f"memory-loss:{_readable(self.lost_bytes)}"
            case FaultKind.PLUGIN:
                return f"plugin:{self.plugin}"
            case kind:
                return str(kind)


def _readable(amount_bytes: int) -> str:
    """In the largest unit of which it is a whole number."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if amount_bytes % size == 0:
            return f"{amount_bytes // size}{unit}"
    return str(amount_bytes)


def read_fault(text: str) -> Fault:
    """A fault as people write it: `xid:79`, `ecc:uncorrected`, `throttle`, ..."""
    word, _, rest = text.partition(":")
    match word:
        case FaultKind.UNHEALTHY | FaultKind.THROTTLE if not rest:
            return Fault(FaultKind(word))
        case FaultKind.OFF_THE_BUS if not rest:
            return Fault(FaultKind.OFF_THE_BUS, xid=OFF_THE_BUS_XID)
        case FaultKind.XID:
            return Fault(FaultKind.XID, xid=_number(rest, 1, MAX_XID, text, "an Xid such as xid:79"))
        case FaultKind.ECC:
            return _ecc(rest, text)
        case FaultKind.MEMORY_LOSS:
            return Fault(FaultKind.MEMORY_LOSS, lost_bytes=_lost(rest, text))
        case FaultKind.PLUGIN:
            return Fault(FaultKind.PLUGIN, plugin=_failure(rest, text))
    raise _unknown(text, word)


def _ecc(rest: str, text: str) -> Fault:
    which, _, count_text = rest.partition(":")
    count = _number(count_text or "1", 1, MAX_ECC_ERRORS, text, "a count such as ecc:corrected:3")
    match which:
        case "corrected" | "single":
            return Fault(FaultKind.ECC, corrected=count)
        case "uncorrected" | "double":
            return Fault(FaultKind.ECC, uncorrected=count, xid=DOUBLE_BIT_XID)
    raise QuantityError(f'fault "{text}" does not say which ECC errors', fix="ecc:corrected:3 or ecc:uncorrected:1")


def _failure(rest: str, text: str) -> PluginFailure:
    known = [str(failure) for failure in PluginFailure if failure]
    if rest not in known:
        what = f'fault "{text}" does not say what the device plugin does{did_you_mean(rest, known)}'
        raise QuantityError(what, fix="one of: " + ", ".join(f"plugin:{failure}" for failure in known))
    return PluginFailure(rest)


def _lost(rest: str, text: str) -> int:
    if not rest:
        return 0
    lost = memory_bytes(rest, f'fault "{text}": memory')
    if lost == 0:
        raise QuantityError(f'fault "{text}" loses nothing', fix="write how much: memory-loss:8GiB")
    return lost


def _number(digits: str, low: int, high: int, text: str, wanted: str) -> int:
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 9 and low <= int(digits) <= high):
        raise QuantityError(f'fault "{text}" lacks {wanted}', fix=f"a whole number from {low} to {high}")
    return int(digits)


def _unknown(text: str, word: str) -> InputError:
    kinds = [str(kind) for kind in FaultKind]
    if word in kinds:
        return QuantityError(f'fault "{text}" says too much', fix=f"one of: {FORMS}")
    return QuantityError(f'unknown fault "{text}"{did_you_mean(word, kinds)}', fix=f"one of: {FORMS}")
