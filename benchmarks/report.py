"""Rows of figures with their limits, as a table for people and a file for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec


class Row(msgspec.Struct, frozen=True):
    """One line of the report; what is no time has nothing to calibrate."""

    name: str
    unit: str
    measured: float
    calibrated: float
    limit: float

    @property
    def missed(self) -> bool:
        return self.calibrated > self.limit


def report(found: Iterator[Row], output: Path) -> int:
    print(f"{'what':72} {'measured':>10} {'calibrated':>11} {'limit':>7}")
    done = []
    for row in found:
        done.append(row)
        numbers = f"{row.measured:10.2f} {row.calibrated:11.2f} {row.limit:7g} {row.unit}"
        print(f"{row.name:72} {numbers}{'  MISSED' if row.missed else ''}", flush=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(msgspec.to_builtins(done), indent=2) + "\n")
    missed = sum(row.missed for row in done)
    print(f"{missed} limits missed" if missed else "all limits met")
    return 1 if missed else 0
