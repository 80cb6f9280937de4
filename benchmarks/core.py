"""How fast the scheduling core is: `python -m benchmarks.core` (or `make bench-core`).

Each time includes building the core's structures from the snapshot and recording every reason, as in production, but
for the rows of one new job and of explaining, which are measured on a kept ledger. The garbage collector stays on.
`peak_mb` is how far the resident memory of a process of its own grows above what the snapshot takes, at its highest.
`growth` is the larger of two ratios of calibrated times: nodes doubled, waiting jobs doubled; what that means for a
shape stands with it in `shapes.py`. A row whose plan does not do what it is about counts as a missed target. Writes
`build/bench/core.json`; ends with 1 if a target was missed.
"""

from __future__ import annotations

import cProfile
import gc
import json
import pstats
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.calibration import Timing, measure
from benchmarks.shapes import SHAPES, Shape
from benchmarks.subjects import Measured, WrongBenchmarkError, control, subject

OUTPUT: Final = Path("build/bench/core.json")
MAX_GROWTH: Final = 2.3
REPEATS: Final = 5
REPEATS_OF_SHORT: Final = 25
"""A few milliseconds are measured more often, because a single hiccup weighs more."""
SHORT_MS: Final = 50
QUICK_REPEATS: Final = 1
PAGE_KIB: Final = 1024


class Row(msgspec.Struct, frozen=True):
    """One line of the report."""

    shape: str
    ms: float
    calibrated_ms: float
    target_ms: float
    peak_mb: float
    growth: float


class Growth(msgspec.Struct, frozen=True):
    """How the calibrated time grows."""

    nodes: float
    jobs: float

    @property
    def worst(self) -> float:
        return max(self.nodes, self.jobs)


# ------------------------------------------------------------------------------------------------------ measuring


def timing(shape: Shape, nodes: int, jobs: int, quick: bool) -> Timing:
    """Checked before and after: on a kept ledger the last run must still do what the first one did."""
    name = f"{shape.name} ({nodes} nodes, {jobs} waiting)"
    measured = subject(shape, nodes, jobs)
    checked(name, measured)
    if shape.control:
        checked(f"the control of {name}", control(shape, nodes, jobs))
    repeats = QUICK_REPEATS if quick else REPEATS_OF_SHORT if shape.target_ms < SHORT_MS else REPEATS
    taken = measure(measured.run, repeats, measured.between)
    checked(name, measured)
    return taken


def checked(name: str, measured: Measured) -> None:
    """A benchmark of a plan that does nothing, or does something else, measures nothing."""
    measured.between()
    complaint = measured.complaint(measured.run())
    if complaint:
        raise WrongBenchmarkError(f"{name}: {complaint}")


def growth(shape: Shape, base: Timing, quick: bool) -> Growth:
    nodes = timing(shape, 2 * shape.nodes, shape.jobs, quick)
    # A shape in which nothing waits has no jobs to double.
    jobs = timing(shape, shape.nodes, 2 * shape.jobs, quick) if shape.jobs else base
    return Growth(nodes.calibrated_ms / base.calibrated_ms, jobs.calibrated_ms / base.calibrated_ms)


def peak_mb(shape: Shape) -> float:
    """Measured in a process of its own, so that nothing freed earlier hides what is taken."""
    command = [sys.executable, "-m", "benchmarks.core", "--memory", shape.name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def memory_growth_mb(shape: Shape) -> float:
    measured = subject(shape, shape.nodes, shape.jobs)
    measured.between()
    gc.collect()
    # Writing 5 there makes the kernel start its high-water mark anew.
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_kib("VmRSS")
    made = measured.run()
    peak = memory_kib("VmHWM")
    del made
    return (peak - before) / PAGE_KIB


def memory_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


# ------------------------------------------------------------------------------------------------------ reporting


def measured_row(shape: Shape, quick: bool) -> tuple[Row, Growth]:
    base = timing(shape, shape.nodes, shape.jobs, quick)
    grown = growth(shape, base, quick)
    rounded = (round(base.ms, 2), round(base.calibrated_ms, 2), shape.target_ms, round(peak_mb(shape), 1))
    return Row(shape.name, *rounded, round(grown.worst, 2)), grown


def misses(shape: Shape, row: Row) -> list[str]:
    found = []
    if row.calibrated_ms > shape.target_ms:
        found.append(f"{shape.name}: {row.calibrated_ms} ms, target {shape.target_ms:g} ms")
    if shape.target_mb is not None and row.peak_mb > shape.target_mb:
        found.append(f"{shape.name}: {row.peak_mb} MB, target {shape.target_mb:g} MB")
    if row.growth > MAX_GROWTH:
        found.append(f"{shape.name}: twice as large takes {row.growth} times as long, target {MAX_GROWTH}")
    return found


HEADER: Final = f"{'shape':46} {'ms':>8} {'calibrated':>11} {'target':>7} {'peak MB':>8} {'2x nodes':>9} {'2x jobs':>8}"


def line(row: Row, grown: Growth) -> str:
    times = f"{row.ms:8.1f} {row.calibrated_ms:11.1f} {row.target_ms:7g} {row.peak_mb:8.1f}"
    return f"{row.shape:46} {times} {grown.nodes:9.2f} {grown.jobs:8.2f}"


def report(shapes: tuple[Shape, ...], quick: bool, output: Path) -> int:
    """Measure, print and write; how many targets were missed decides the exit code."""
    rows, missed = [], []
    print(HEADER)
    for shape in shapes:
        try:
            row, grown = measured_row(shape, quick)
        except WrongBenchmarkError as wrong:
            print(f"{shape.name:46} is another benchmark", flush=True)
            missed.append(str(wrong))
            continue
        print(line(row, grown), flush=True)
        rows.append(row)
        missed += misses(shape, row)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(msgspec.to_builtins(rows), indent=2) + "\n")
    for miss in missed:
        print(f"MISSED {miss}")
    print(f"{len(missed)} targets missed" if missed else "all targets met")
    return 1 if missed else 0


def profile(shape: Shape) -> None:
    measured = subject(shape, shape.nodes, shape.jobs)
    measured.between()
    measured.run()
    measured.between()
    profiler = cProfile.Profile()
    profiler.runcall(measured.run)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


# -------------------------------------------------------------------------------------------------------- command


def find(name: str) -> Shape:
    """A shape by its name, any part of it, or its number from 1."""
    if name.isdigit() and 1 <= int(name) <= len(SHAPES):
        return SHAPES[int(name) - 1]
    for shape in SHAPES:
        if name in shape.name:
            return shape
    known = "\n".join(f"  {at}  {shape.name}" for at, shape in enumerate(SHAPES, start=1))
    raise SystemExit(f"no shape is called {name}; there are:\n{known}")


def arguments(given: list[str]) -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks.core", description="Measure the scheduling core.")
    parser.add_argument("--quick", action="store_true", help="measure once instead of taking medians")
    parser.add_argument("--shape", action="append", default=[], metavar="SHAPE", help="only this one; may be repeated")
    parser.add_argument("--profile", metavar="SHAPE", help="where the time of one shape goes")
    parser.add_argument("--memory", metavar="SHAPE", help="print how much memory one shape takes, in MB")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    return parser.parse_args(given)


def single_questions() -> dict[str, Callable[[Shape], object]]:
    return {"profile": profile, "memory": lambda shape: print(memory_growth_mb(shape))}


def main(given: list[str]) -> int:
    args = arguments(given)
    for option, answer in single_questions().items():
        if getattr(args, option):
            answer(find(getattr(args, option)))
            return 0
    chosen = tuple(find(name) for name in args.shape) or SHAPES
    return report(chosen, args.quick, args.output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
