"""The benchmark itself: it runs, measures what it says, and writes what others read. Times are not judged here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from benchmarks.calibration import REFERENCE_MS, calibration_loop, measure
from benchmarks.core import Row, find, main, misses
from benchmarks.shapes import SHAPES

FIELDS: Final = {"shape", "ms", "calibrated_ms", "target_ms", "peak_mb", "growth"}


@pytest.mark.slow
def test_a_quick_run_of_the_two_small_shapes_writes_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "bench" / "core.json"
    code = main(["--quick", "--shape", "1", "--shape", "2", "--output", str(output)])
    rows = json.loads(output.read_text())
    assert code in (0, 1)
    assert [row["shape"] for row in rows] == [SHAPES[0].name, SHAPES[1].name]
    assert all(set(row) == FIELDS and row["ms"] > 0 for row in rows)
    assert SHAPES[0].name in capsys.readouterr().out


def test_every_shape_is_named_once_and_found_by_its_number() -> None:
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)
    assert [find(str(number)) for number in range(1, len(SHAPES) + 1)] == list(SHAPES)
    with pytest.raises(SystemExit, match="no shape is called nonsense"):
        find("nonsense")


def test_a_missed_target_is_told_with_its_numbers() -> None:
    shape = SHAPES[2]
    row = Row(shape.name, ms=1.0, calibrated_ms=shape.target_ms + 1, target_ms=shape.target_ms, peak_mb=999, growth=3)
    assert [miss.removeprefix(f"{shape.name}: ") for miss in misses(shape, row)] == [
        "701 ms, target 700 ms",
        "999 MB, target 200 MB",
        "twice as large takes 3 times as long, target 2.3",
    ]


def test_the_calibration_loop_takes_its_reference_time_by_definition() -> None:
    """Measured by itself it gives the reference, whatever the clock of this machine."""
    assert measure(calibration_loop, repeats=5).calibrated_ms == pytest.approx(REFERENCE_MS, rel=0.5)
