"""What docs/gpu-resource-manager.md shows works, both stories of the original included."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "gpu-resource-manager.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = BLOCK.findall(DOCUMENT.read_text(encoding="utf-8"))
    assert len(blocks) == 4
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), names)
    said = capsys.readouterr().out
    assert "CreateJob train on gpu-1 (DeviceShare(device=0, amount_milli=1000)" in said
    assert 'team "A" has no budget for job "one-more" of team "A", and there is nowhere free' in said
    assert 'team "B" has no budget' in said
