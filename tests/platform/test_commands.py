"""Other programs, run to their end or followed line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuyard.platform.commands import follow, run


def test_a_program_that_does_not_exist_or_does_not_end_has_a_code_of_its_own() -> None:
    assert run(["no-such-program"], timeout_s=5).code == 127
    assert run(["sleep", "60"], timeout_s=0.05).code == 124


def test_a_program_is_heard_line_by_line_in_its_folder(tmp_path: Path) -> None:
    heard: list[str] = []
    code = follow(["sh", "-c", "pwd; echo $WORD >&2; exit 3"], heard.append, folder=tmp_path, env={"WORD": "hello"})
    assert (code, heard) == (3, [str(tmp_path), "hello"])


def test_a_program_that_nobody_hears_any_more_is_ended(tmp_path: Path) -> None:
    def interrupted(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(["sh", "-c", "echo begun; exec sleep 60"], interrupted, folder=tmp_path)
