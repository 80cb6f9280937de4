"""Which jobs a person means: ids, arrays, ranges, names, selectors.

Place in the flow: words ─**job_ids**─ids─▶ calls. An id is taken as it is; everything else is looked up among the jobs
the caller may see.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from gpuyard.sdk.client import Client
    from gpuyard.wire.rest import JobObject

ACTIVE: Final = "active"
MAX_NAMED: Final = 10

_ID: Final = re.compile(r"[0-9]+(_[0-9]+)?")
_RANGE: Final = re.compile(r"([0-9]+)-([0-9]+)")


def is_id(word: str) -> bool:
    return _ID.fullmatch(word) is not None


def one_job(client: Client, word: str) -> str:
    """The id of the job that is meant; of several of that name the one that is not over, else the newest."""
    word = word.removeprefix("job/")
    if is_id(word):
        return word
    named = list(client.jobs(name=word, estimate=False))
    if not named:
        raise _unknown(client, word)
    active = [job for job in named if job.ended_at is None]
    if len(active) > 1:
        ids = ", ".join(job.id for job in active[:MAX_NAMED])
        raise click.UsageError(f'{len(active)} jobs are called "{word}"; name one by its id: {ids}')
    return (active or named)[0].id


def several_jobs(client: Client, words: Sequence[str], labels: dict[str, str], team: str, user: str) -> list[str]:
    """The ids of all jobs that are meant, each once, in the order they were named."""
    found: dict[str, None] = {}
    for word in words:
        found.update(dict.fromkeys(_meant(client, word.removeprefix("job/"))))
    if not words and not (labels or team or user):
        raise click.UsageError("Name jobs: ids, names, ranges such as 12-20, or select them with -l, -t or -u.")
    if labels or team or user:
        selected = client.jobs(state=ACTIVE, labels=labels, team=team, user=user, estimate=False)
        found.update(dict.fromkeys(job.id for job in selected))
    if not found:
        raise _none(" that is not over")
    return list(found)


def _none(which: str = "") -> Exception:
    from gpuyard.errors import NotFoundError

    return NotFoundError(f"there is no such job{which}", fix="see them all: gpuyard ls -a")


def all_to_wait_for(client: Client, words: Sequence[str]) -> list[str]:
    """The ids of all jobs that are meant, over or not; an array is all its elements, a name that of the newest."""
    found: dict[str, None] = {}
    for word in (word.removeprefix("job/") for word in words):
        bounds = _RANGE.fullmatch(word)
        if bounds:
            ids = _between(client, int(bounds[1]), int(bounds[2]), word, state="")
        elif is_id(word):
            ids = elements(client, word, state="") or [word]
        else:
            ids = _named(client, word)
        found.update(dict.fromkeys(ids))
    if not found:
        raise _none()
    return list(found)


def _meant(client: Client, word: str) -> list[str]:
    if is_id(word):
        return [word]
    bounds = _RANGE.fullmatch(word)
    if bounds:
        return _between(client, int(bounds[1]), int(bounds[2]), word, ACTIVE)
    return _named(client, word)


def _named(client: Client, word: str) -> list[str]:
    """All of that name that are not over; where there is none, the newest, so that it is told what became of it."""
    return [job.id for job in client.jobs(name=word, state=ACTIVE, estimate=False)] or [one_job(client, word)]


def _between(client: Client, first: int, last: int, word: str, state: str) -> list[str]:
    if first > last:
        raise click.UsageError(f"{word} is no range: write the smaller id first, {last}-{first}.")
    found = [job for job in client.jobs(state=state, estimate=False) if first <= _number(job) <= last]
    return [job.id for job in reversed(found)]


def _number(job: JobObject) -> int:
    return int(job.id.partition("_")[0])


def elements(client: Client, array: str, state: str = ACTIVE) -> list[str]:
    """The elements of an array in that state, which is not over unless given; empty where there is no such array."""
    if "_" in array:
        return []
    return [job.id for job in client.jobs(array=array, state=state, estimate=False)][::-1]


def _unknown(client: Client, word: str) -> Exception:
    from gpuyard.errors import NotFoundError
    from gpuyard.files.suggest import did_you_mean

    names = {job.name for job in client.jobs(state=ACTIVE, estimate=False)}
    return NotFoundError(f'there is no job "{word}"{did_you_mean(word, names)}', fix="see them all: gpuyard ls -a")
