"""docs/api.md and the code agree on every limit of a request."""

from __future__ import annotations

import re
from pathlib import Path

import gpuyard.files.budget as local
from gpuyard.files.budget import Limits
from gpuyard.files.source import MAX_FILE_BYTES as MAX_LOCAL_BYTES
from gpuyard.service import limits
from gpuyard.service.turns import SHARE
from gpuyard.worlds.standalone.submitting import MAX_JOBS, MAX_SUBMITTED_TASKS, MAX_TASKS

API = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
SECTION = API.partition("<!-- limits -->")[2].partition("<!-- end -->")[0]
ROWS = {
    cells[0]: [int(number) for cell in cells[1:] if (number := cell.split()[0]).isdecimal()]
    for line in SECTION.splitlines()
    if (cells := [cell.strip() for cell in line.strip("|").split("|")])[1:]
}

OF_FILES: dict[str, str] = {
    "values, with aliases written out": "values",
    "lists and maps inside each other": "nesting",
    "keys of one map": "keys",
    "characters of one key or value": "scalar_characters",
    "characters of all text, with aliases written out": "text_characters",
    "anchors": "anchors",
    "aliases": "aliases",
}
SINGLE = {
    "bytes of any other JSON body": limits.MAX_BODY_BYTES,
    "bytes of an upload of sources": limits.MAX_UPLOAD_BYTES,
    "seconds within which a body must arrive": limits.BODY_SECONDS,
    "requests at once": limits.MAX_IN_FLIGHT,
    "bytes of bodies that are held at once": limits.MAX_BODIES_BYTES,
    "turns to read large bodies and to make long lists, at once": limits.MAX_READING,
    "turns to ask the scheduler, at once": limits.MAX_THINKING,
    "turns to search the log, at once": limits.MAX_SEARCHING,
    "requests of one user that wait for a turn of one kind": limits.MAX_QUEUED_PER_USER,
    "tasks of one submission, all elements of an array together": MAX_SUBMITTED_TASKS,
    "tasks of all jobs that are not over": MAX_TASKS,
    "jobs that are not over": MAX_JOBS,
}


def test_the_limits_of_files_are_those_of_the_table() -> None:
    assert ROWS["bytes"] == [limits.MAX_JOB_BYTES, limits.MAX_FILE_BYTES]
    for row, field in OF_FILES.items():
        assert ROWS[row] == [getattr(limits.JOB_LIMITS, field), getattr(limits.FILE_LIMITS, field)], row
    assert set(OF_FILES.values()) == set(Limits.__struct_fields__)


def test_the_other_limits_are_those_of_the_table() -> None:
    numbered = {row: numbers for row, numbers in ROWS.items() if numbers}
    assert {row: [value] for row, value in SINGLE.items()} == {
        row: numbers for row, numbers in numbered.items() if row not in OF_FILES and row != "bytes"
    }


def test_what_is_said_in_words_is_so() -> None:
    words = re.sub(r"\s+", " ", API)
    assert SHARE == 4
    assert "may hold a quarter of what is free" in words
    assert f"may be {MAX_LOCAL_BYTES >> 20} MiB and hold {local.LOCAL.values} values" in words
    least, most = limits.LEAST_JOB_BYTES >> 10, limits.MOST_JOB_BYTES >> 20
    assert f"`--max-job-body`, {least}Ki to {most}Mi" in words
