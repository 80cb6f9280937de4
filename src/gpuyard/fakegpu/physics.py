"""How a GPU answers a load: power, clocks, performance state and temperature.

Place in the flow: engine ─load─▶ **physics** ─▶ columns of a reading. All functions take and give whole columns (one
entry per GPU). Between two changes of load the power is constant, so energy is an exact product of integers, and the
temperature follows one exponential; both can be told at any instant without stepping there.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

TIME_CONSTANT_MS: Final = 40_000.0
"""A device covers 63 % of the way to its new temperature in this time."""

PEAK_PERCENT: Final = 96
"""Of the way from idle to the default limit that full load takes."""
CONTEXT_PERCENT: Final = 5
"""Of the way to full load that an open but idle context takes."""
CLOCK_STEP_MHZ: Final = 15
TENSOR_LOAD_PERCENT: Final = 45
"""Of the time a GPU is busy its tensor cores are at work so much, where it has any."""
OLDEST_WITH_TENSOR_CORES: Final = (7, 0)
MEMORY_LOAD_PERCENT: Final = 55
"""How busy the memory is while all multiprocessors are."""
PCIE_USE_PERCENT: Final = 8
NVLINK_USE_PERCENT: Final = 10
"""Of what a link could carry that full load moves over it."""

REASON_IDLE: Final = 0x1
REASON_POWER_CAP: Final = 0x4
REASON_HW_SLOWDOWN: Final = 0x8
REASON_HW_THERMAL: Final = 0x40
"""Bits as NVML counts them."""


class Drive(NamedTuple):
    """What decides the answer of each GPU."""

    load_percent: Ints
    active: Bools
    """Somebody has a context open."""
    throttled: Bools
    present: Bools
    """On the bus: an absent device draws nothing."""


class Build(NamedTuple):
    """What is fixed about each GPU."""

    idle_mw: Ints
    default_mw: Ints
    limit_mw: Ints
    idle_sm_mhz: Ints
    max_sm_mhz: Ints
    ambient_c: Floats
    busy_c: Floats
    slowdown_c: Floats

    def of(self, gpus: Ints) -> Build:
        """The same for some of them, which are all where there are as many."""
        if len(gpus) == len(self.idle_mw):
            return self
        return Build(
            self.idle_mw[gpus],
            self.default_mw[gpus],
            self.limit_mw[gpus],
            self.idle_sm_mhz[gpus],
            self.max_sm_mhz[gpus],
            self.ambient_c[gpus],
            self.busy_c[gpus],
            self.slowdown_c[gpus],
        )


class Answer(NamedTuple):
    power_mw: Ints
    sm_mhz: Ints
    reasons: Ints
    target_c: Floats


def answer(drive: Drive, build: Build) -> Answer:
    """What a load makes of each GPU."""
    range_mw = (build.default_mw - build.idle_mw) * PEAK_PERCENT // 100
    share = np.where(drive.active, CONTEXT_PERCENT * 100 + (100 - CONTEXT_PERCENT) * drive.load_percent, 0)
    wanted_mw = range_mw * share // 10_000
    wanted_mw = np.where(drive.throttled, wanted_mw // 2, wanted_mw)
    allowed_mw = np.minimum(wanted_mw, build.limit_mw - build.idle_mw)
    capped = allowed_mw < wanted_mw
    power_mw = np.where(drive.present, build.idle_mw + allowed_mw, 0)
    return Answer(
        power_mw=power_mw,
        sm_mhz=_sm_clock(drive, build, allowed_mw, wanted_mw),
        reasons=_reasons(drive, capped),
        target_c=_target(drive, build, power_mw),
    )


def _sm_clock(drive: Drive, build: Build, allowed_mw: Ints, wanted_mw: Ints) -> Ints:
    """The highest clock while active, less as far as the power limit or heat demands."""
    slowed = drive.throttled | (allowed_mw < wanted_mw)
    busy = build.max_sm_mhz
    if slowed.any():
        held = build.max_sm_mhz * allowed_mw // np.maximum(wanted_mw, 1)
        held = np.where(drive.throttled, held // 2, held) // CLOCK_STEP_MHZ * CLOCK_STEP_MHZ
        busy = np.maximum(np.where(slowed, held, busy), build.idle_sm_mhz)
    return np.where(drive.active, busy, build.idle_sm_mhz)


def _reasons(drive: Drive, capped: Bools) -> Ints:
    idle = ~drive.active * REASON_IDLE
    hot = drive.throttled * (REASON_HW_SLOWDOWN | REASON_HW_THERMAL)
    return np.asarray(idle + hot + capped * REASON_POWER_CAP, np.int64)


def _target(drive: Drive, build: Build, power_mw: Ints) -> Floats:
    """Where the temperature tends to: in step with power, or the slowdown threshold while overheated."""
    even = build.ambient_c + (build.busy_c - build.ambient_c) * power_mw / build.default_mw
    return np.where(drive.throttled & drive.present, build.slowdown_c, even)


def temperature(start_c: Floats, target_c: Floats, elapsed_ms: Ints) -> Floats:
    """The temperature some time after a change."""
    return target_c + (start_c - target_c) * np.exp(elapsed_ms / -TIME_CONSTANT_MS)
