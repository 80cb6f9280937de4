"""NVML calls stay far below their limit, also with 64 processes that read at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_US = 20.0


@pytest.mark.slow
def test_calls_are_quick_with_64_readers() -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.nvml_latency", "--json", "--readers", "64", "--calls", "500"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    medians = {row["call"]: row["median_us"] for row in json.loads(done.stdout)}
    assert {call: median for call, median in medians.items() if median >= LIMIT_US} == {}
    assert len(medians) == 4
