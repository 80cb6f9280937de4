"""The benchmark of the fake GPUs itself: it runs, and writes what others read. Times are not judged here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fake import main
from benchmarks.report import Row


@pytest.mark.slow
def test_a_quick_run_writes_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "bench" / "fake.json"
    assert main(["--quick", "--output", str(output)]) in (0, 1)
    rows = json.loads(output.read_text())
    assert [row["unit"] for row in rows] == ["ms", "ms", "s", "s", "MB", "s", "µs", "µs"]
    assert all(row["measured"] > 0 for row in rows)
    assert "the same bytes" in capsys.readouterr().out


def test_a_missed_limit_is_missed_after_calibration() -> None:
    assert Row("x", "ms", measured=90, calibrated=110, limit=100).missed
    assert not Row("x", "ms", measured=110, calibrated=90, limit=100).missed
