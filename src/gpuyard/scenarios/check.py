"""Judges whatever scenario files and folders a person names: golden scenarios and conformance files.

Place in the flow: cli `scenario check` ─paths─▶ **check** ─▶ golden or corpus ─Verdicts─▶ shown.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gpuyard.errors import InputError, Where
from gpuyard.files.source import read_text
from gpuyard.scenarios.corpus import judge_corpus_file
from gpuyard.scenarios.golden import judge_golden_file
from gpuyard.scenarios.verdict import Verdict

GOLDEN_SUFFIXES: Final = (".yaml", ".yml")


def check_paths(paths: Iterable[Path]) -> Iterator[Verdict]:
    """A verdict for every scenario in the files, and in the YAML files of the folders."""
    for path in paths:
        for file in _files(path):
            yield from check_file(file)


def check_file(path: Path) -> Iterator[Verdict]:
    """All scenarios of one file."""
    if is_corpus(path):
        yield from judge_corpus_file(path)
    else:
        yield judge_golden_file(path)


def is_corpus(path: Path) -> bool:
    """Whether a file is a conformance file: a JSON object with `format` and either `scenarios` or `vectors`."""
    mode = _mode(path)
    if mode and not stat.S_ISREG(mode):
        # What comes through a pipe can be read only once, and is a golden scenario.
        return False
    text = read_text(path).lstrip()
    if not text.startswith("{"):
        return False
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "format" in content and bool({"scenarios", "vectors"} & content.keys())


def _mode(path: Path) -> int:
    """What kind of file it is; 0 where we may not know, so that whoever reads it says why."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


def _files(path: Path) -> list[Path]:
    if not stat.S_ISDIR(_mode(path)):
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix in GOLDEN_SUFFIXES and file.is_file())
    if not found:
        raise InputError(
            "no scenario file in this folder",
            where=Where(str(path)),
            fix=f"scenarios end in .yaml; start one with: gpuyard scenario new {path}/my-rule.yaml",
        )
    return found
