"""The benchmark of the store itself: it runs, and writes what others read. Times are not judged here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.store import main


@pytest.mark.slow
def test_a_quick_run_writes_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "bench" / "store.json"
    assert main(["--quick", "--output", str(output)]) in (0, 1)
    rows = json.loads(output.read_text())
    assert len([row for row in rows if row["name"].startswith("SQLite")]) == 18
    assert all(row["measured"] > 0 for row in rows)
    assert "an append of 100" in capsys.readouterr().out
