"""When running work ends, as far as anybody can know.

Place in the flow: `reserve` asks for the ends its starts are reckoned from, `forecast` for the ends it walks through.
A run limit is an end; an estimate is one too, until it is overrun; without either a job is taken to run for ever.
"""

from __future__ import annotations

from typing import Final

from gpuyard.model.jobs import Job, TaskState

NEVER: Final = 1 << 62
"""The end of a job about which nothing is known. Later than any moment."""

LEAST_ALLOWANCE_MS: Final = 1_000
ALLOWANCE_PART: Final = 10


def planned_ms(job: Job) -> int | None:
    """How long a job runs at most, as far as plans count on it: its limit, else its estimate, else nobody knows."""
    return job.estimate_ms if job.run_limit_ms is None else job.run_limit_ms


def is_timed(job: Job) -> bool:
    return job.run_limit_ms is not None or job.estimate_ms is not None


def started_ms(job: Job, now_ms: int) -> int:
    """When its first task that runs was started; a job of which nothing runs would start now."""
    if len(job.tasks) == 1:
        task = job.tasks[0]
        return task.started_at_ms if task.state is TaskState.RUNNING else now_ms
    return min((task.started_at_ms for task in job.tasks if task.state is TaskState.RUNNING), default=now_ms)


def freeing_ms(job: Job) -> int:
    """How long a job that is promised a place waits for it to be freed, as far as plans count on it."""
    return _allowance_ms(planned_ms(job) or 0)


def end_ms(job: Job, now_ms: int) -> int:
    """When a job that runs, or would start now, ends; `NEVER` where nobody knows."""
    length_ms = planned_ms(job)
    return NEVER if length_ms is None else end_after_ms(started_ms(job, now_ms), length_ms, now_ms)


def end_after_ms(started_at_ms: int, length_ms: int, now_ms: int) -> int:
    """The end of what was to run for so long. What runs longer is given as much time again as it is over already.

    At least a tenth of its length, and a second: so its end moves away ever faster, and whoever counts on it learns
    soon that it cannot be counted on.
    """
    end = started_at_ms + length_ms
    if end > now_ms:
        return end
    return now_ms + max(now_ms - end, _allowance_ms(length_ms))


def _allowance_ms(length_ms: int) -> int:
    return max(length_ms // ALLOWANCE_PART, LEAST_ALLOWANCE_MS)
