"""The benchmark of the GpuResourceManager itself: it runs, and measures what its rows say. Times are not judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.vdk import ASKED, main


@pytest.mark.slow
def test_a_quick_run_writes_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "bench" / "vdk.json"
    assert main(["--quick", "--output", str(output)]) in (0, 1)
    rows = json.loads(output.read_text())
    assert [row["name"].partition(":")[0] for row in rows] == list(ASKED)
    assert all(row["measured"] > 0 for row in rows)
    assert "jobs are deleted and moved" in capsys.readouterr().out
