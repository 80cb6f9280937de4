"""Schedule files, and their mistakes: each with its place and the way out."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from gpuyard.errors import InputError
from gpuyard.files.jobs import Surroundings
from gpuyard.files.place import Place
from gpuyard.files.schedule import ScheduleFile, read_schedule
from gpuyard.files.tree import parse
from gpuyard.model.recurrence import Missed, Overlap, Recurrence

ROOT = Path(__file__).parents[2]
AROUND = Surroundings(("vision", "speech"), ("vision", "speech"), own=("vision",))
JOB = "job: {command: [make, report]}\n"


def read(text: str) -> ScheduleFile:
    return read_schedule(Place("schedule.yaml", parse(text, "schedule.yaml")), AROUND, "nightly")


def test_a_file_with_everything() -> None:
    file = read((Path(__file__).parent / "valid" / "schedule.yaml").read_text(encoding="utf-8"))
    assert file.recurrence == Recurrence(
        "*/15 8-17 * * MON-FRI", "Europe/Berlin", Overlap.REPLACE, Missed.SKIP, 2 * 3_600_000
    )
    assert (file.paused, file.work.name, file.work.form.queue) == (True, "report", "vision")
    assert file.work.array is not None
    written = msgspec.json.decode(file.written)
    assert (written["command"], written["gpus"]) == (["python", "report.py"], "0.5")


def test_what_a_file_does_not_say() -> None:
    file = read(f'cron: "@daily"\n{JOB}')
    assert file.recurrence == Recurrence("@daily", "UTC", Overlap.SKIP, Missed.RUN_ONCE, 24 * 3_600_000)
    assert (file.paused, file.work.name, file.work.form.queue) == (None, "nightly", "vision")


def test_the_job_of_a_file_is_read_again_from_what_is_kept_of_it() -> None:
    first = read((Path(__file__).parent / "valid" / "schedule.yaml").read_text(encoding="utf-8"))
    again = read(f'cron: "@daily"\njob: {first.written}\n')
    assert again.work == first.work
    assert again.written == first.written


@pytest.mark.parametrize(
    ("text", "place", "what", "fix"),
    [
        (f'cron: "61 3 * * *"\n{JOB}', "1:7", 'cron "61 3 * * *": "61" is no minute', "minute 0-59"),
        (f'cron: "0 3 * *"\n{JOB}', "1:7", "has 4 fields, not five", "five fields"),
        (f'cron: "0 0 31 4 *"\n{JOB}', "1:7", "no day of month", "day of month 1-31"),
        (f"cron: 5\n{JOB}", "1:7", "cron must be text", "quotes"),
        (f'cron: "@daily"\ntime_zone: Europe/Berln\n{JOB}', "2:12", 'did you mean "Europe/Berlin"?', "IANA"),
        (f'cron: "@daily"\nmissed_limit: 400d\n{JOB}', "2:15", "longer than a year", "366d"),
        (f'cron: "@daily"\noverlap: kill\n{JOB}', "2:10", 'overlap cannot be "kill"', "one of: skip, queue, replace"),
        (f'cron: "@daily"\nmissed: all\n{JOB}', "2:9", 'missed cannot be "all"', "one of: skip, run-once"),
        (f'cron: "@daily"\ntimezone: UTC\n{JOB}', "2:1", 'did you mean "time_zone"?', "fields here"),
        ('cron: "@daily"\n', "1:1", 'the file lacks "job"', "a job file"),
        (JOB, "1:1", 'the file lacks "cron"', "minute, hour"),
        ('cron: "@daily"\njob: {gpus: 1}\n', "2:6", 'job lacks "command"', "What it runs"),
        ('cron: "@daily"\njob: {command: [x], gpus: -1}\n', "2:27", "gpus", ""),
    ],
)
def test_mistakes_are_told_with_their_place_and_the_way_out(text: str, place: str, what: str, fix: str) -> None:
    with pytest.raises(InputError) as error:
        read(text)
    assert str(error.value).startswith(f"schedule.yaml:{place}: ")
    assert what in error.value.what
    assert fix in error.value.fix


def test_the_example_of_the_document_is_one() -> None:
    text = (ROOT / "docs" / "recurring-jobs.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert read(block).recurrence.overlap is Overlap.QUEUE
