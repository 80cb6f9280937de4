"""Times on a machine whose clock swings: every measurement is divided by a fixed loop run right before and after it.

The clock of a shared machine moves by a factor of two between phases, and a target in milliseconds would test the
phase. `calibrated_ms` is what the measurement would have taken on a machine that runs the loop in `REFERENCE_MS`.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Final

import msgspec

REFERENCE_MS: Final = 38.0
"""The calibration loop on the reference machine in its fast phase."""


class Timing(msgspec.Struct, frozen=True):
    """The medians of several measurements of one thing."""

    ms: float
    calibrated_ms: float


def calibration_loop() -> int:
    x = 0
    for i in range(1_000_000):
        x += i & 7
    return x


def milliseconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return (perf_counter() - start) * 1000


def measure(work: Callable[[], object], repeats: int, between: Callable[[], object] | None = None) -> Timing:
    """Time some work several times; what happens `between` belongs to no measurement."""
    raw, calibrated = [], []
    for _ in range(repeats):
        if between:
            between()
        gc.collect()
        before = milliseconds(calibration_loop)
        ms = milliseconds(work)
        after = milliseconds(calibration_loop)
        raw.append(ms)
        calibrated.append(ms * REFERENCE_MS / statistics.mean((before, after)))
    return Timing(statistics.median(raw), statistics.median(calibrated))
