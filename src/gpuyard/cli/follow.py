"""Staying with a job until it is over: phases, its output, its exit code. Ctrl-C lets go of it, and never ends it.

Place in the flow: run, submit --follow, logs -f, wait ─**follow**─▶ stdout (what the job writes), stderr (where it is).
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from gpuyard.cli import terminal
from gpuyard.cli.exit_codes import (
    INTERRUPTED,
    JOB_CANCELLED,
    JOB_FAILED,
    JOB_NOT_FINISHED,
    JOB_NOT_FOUND,
    TIMED_OUT,
)
from gpuyard.cli.times import now, span, until
from gpuyard.platform.clock import monotonic_ms, sleep_ms

if TYPE_CHECKING:
    from gpuyard.sdk.client import Client
    from gpuyard.wire.rest import JobDetail

LOOK_AGAIN_MS: Final = (50, 100, 150, 250, 400, 600, 1000)
"""How soon a job is looked at again: often at first, when something is about to happen."""

PATIENCE_MS: Final = 120_000
"""How long a server that does not answer any more is waited for."""

PHASES: Final = {
    "blocked": "blocked",
    "held": "held",
    "waiting": "queued",
    "starting": "starting",
    "running": "running",
    "stopping": "stopping",
    "suspended": "suspended",
}
PLACING: Final = "placing"
LOG_MISSING: Final = "LogMissing"
"""The server's word for a log that is gone; the job may well be there."""


BYTES_A_LINE: Final = 200
"""How much is fetched for each line of --tail at first; more is fetched where lines are longer."""


class Begin(NamedTuple):
    """Where in the log of the newest attempt to begin."""

    tail: int | None = None
    """With the last lines only."""
    since: str = ""
    """With what was written from then on."""


WHOLE: Final = Begin()


class TimeIsUpError(Exception):
    """`--timeout` has passed."""


def exit_code_of(job: JobDetail) -> int:
    """The job's own code; else one that says why there is none."""
    if job.ended_at is None:
        return JOB_NOT_FINISHED
    if job.state == "cancelled":
        return JOB_CANCELLED
    if job.state == "succeeded":
        return 0
    return job.exit_code or JOB_FAILED


def stay(
    client: Client,
    id: str,
    *,
    task: int = 0,
    output: bool = True,
    timeout_ms: int | None = None,
    begin: Begin = WHOLE,
) -> int:
    """Follow a job to its end and give its exit code; on the way, or instead, what else can happen."""
    return _stay(client, id, Deadline(timeout_ms), task=task, output=output, begin=begin).code


class Stayed(NamedTuple):
    """How following a job went."""

    code: int
    let_go: bool = False
    """Somebody, or the time that was given, ended it before the job was over."""


def _stay(client: Client, id: str, deadline: Deadline, *, task: int, output: bool, begin: Begin) -> Stayed:
    from gpuyard.errors import NotAllowedError, NotFoundError, NotSignedInError

    line = terminal.StatusLine()
    try:
        job = _to_the_end(client, id, task, line, deadline, output=output, begin=begin)
    except KeyboardInterrupt:
        line.clear()
        terminal.talk(f"detached; job {id} goes on. Back to it: gpuyard logs -f {id}   End it: gpuyard cancel {id}")
        return Stayed(INTERRUPTED, let_go=True)
    except TimeIsUpError:
        line.clear()
        terminal.talk(f"time is up; job {id} goes on. Back to it: gpuyard logs -f {id}")
        return Stayed(TIMED_OUT, let_go=True)
    except NotFoundError as error:
        line.clear()
        terminal.talk(f"error: {error}")
        return Stayed(JOB_NOT_FOUND)
    except (NotSignedInError, NotAllowedError):
        line.clear()
        terminal.talk(f"job {id} cannot be followed any more; it goes on")
        raise
    line.clear()
    terminal.talk(terminal.one_line(_ended(job)))
    return Stayed(exit_code_of(job))


def stay_with_all(client: Client, ids: Sequence[str], timeout_ms: int | None) -> int:
    """Until all are over; the first code that is not 0."""
    deadline = Deadline(timeout_ms)
    codes = []
    for id in ids:
        stayed = _stay(client, id, deadline, task=0, output=False, begin=WHOLE)
        if stayed.let_go:
            return stayed.code
        codes.append(stayed.code)
    return next((code for code in codes if code), 0)


class Deadline:
    """When to give up watching; None: never."""

    def __init__(self, limit_ms: int | None) -> None:
        self._at_ms = None if limit_ms is None else monotonic_ms() + limit_ms

    def left_ms(self) -> int | None:
        """At least 1; raises once nothing is left."""
        if self._at_ms is None:
            return None
        left_ms = self._at_ms - monotonic_ms()
        if left_ms <= 0:
            raise TimeIsUpError
        return left_ms


def _to_the_end(
    client: Client,
    id: str,
    task: int,
    line: terminal.StatusLine,
    deadline: Deadline,
    *,
    output: bool,
    begin: Begin,
) -> JobDetail:
    shown, looks = 0, 0
    while True:
        job = _look(client, id, line, deadline)
        attempt = _begun(job, task)
        if output and attempt > shown:
            line.clear()
            shown = attempt
            with time_limit(deadline.left_ms()):
                _print_output(client, id, task, attempt, begin)
            begin, looks = WHOLE, 0
            continue
        if job.ended_at is not None:
            return job
        line.show(*_phase(job))
        wait_ms = LOOK_AGAIN_MS[min(looks, len(LOOK_AGAIN_MS) - 1)]
        sleep_ms(min(wait_ms, deadline.left_ms() or wait_ms))
        looks += 1


def _look(client: Client, id: str, line: terminal.StatusLine, deadline: Deadline) -> JobDetail:
    """The job as it is now. A manager that is being replaced is waited for: the job goes on meanwhile."""
    from gpuyard.errors import UnreachableError

    until_ms = monotonic_ms() + PATIENCE_MS
    while True:
        try:
            return client.get_job(id)
        except UnreachableError:
            if monotonic_ms() > until_ms:
                raise
        line.show(f"job {id}: the server does not answer", "trying again")
        sleep_ms(min(LOOK_AGAIN_MS[-1], deadline.left_ms() or LOOK_AGAIN_MS[-1]))


def _begun(job: JobDetail, task: int) -> int:
    """The newest attempt of a task that has run; 0 where none has."""
    found = next((found for found in job.task_list if found.task == task), None)
    return found.attempt if found and found.started_at else 0


def _print_output(client: Client, id: str, task: int, attempt: int, begin: Begin) -> None:
    from gpuyard.errors import NotFoundError

    try:
        _follow_log(client, id, task, attempt, begin)
    except NotFoundError as error:
        if error.reason != LOG_MISSING:
            raise
        terminal.talk(f"there is no output of attempt {attempt} any more")


def _follow_log(client: Client, id: str, task: int, attempt: int, begin: Begin) -> None:
    offset, since = 0, begin.since
    if begin.tail is not None:
        so_far = last_lines(client, id, task, attempt, begin)
        write_bytes(so_far.data)
        offset, since = so_far.offset, ""
    for piece in client.logs(id, task=task, attempt=attempt, offset=offset, since=since, follow=True):
        write_bytes(piece)


class Lines(NamedTuple):
    """The end of a log, and where in the log it ends."""

    data: bytes
    offset: int


def last_lines(client: Client, id: str, task: int, attempt: int, begin: Begin) -> Lines:
    """The last lines of a log, fetching no more of it than needed."""
    from gpuyard.sdk.transport import LogPlace

    count = begin.tail or 0
    size = max(count, 1) * BYTES_A_LINE
    while True:
        place = LogPlace()
        start = 0 if begin.since else -size
        end = b"".join(client.logs(id, task=task, attempt=attempt, offset=start, since=begin.since, place=place))
        lines = end.splitlines(keepends=True)
        if begin.since or len(lines) > count or len(end) < size:
            return Lines(b"".join(lines[len(lines) - min(count, len(lines)) :]), place.offset)
        size *= 4


def write_bytes(piece: bytes) -> None:
    """What a job has written, byte for byte."""
    stream = sys.stdout.buffer
    stream.write(piece)
    stream.flush()


def _phase(job: JobDetail) -> tuple[str, str]:
    """Where a job is, and what may be said about it besides."""
    phase = PHASES.get(job.state, job.state)
    if job.state == "waiting" and any(task.phase == "promised" for task in job.task_list):
        phase = PLACING
    words = []
    if job.state in ("waiting", "blocked") and job.starts_at:
        words.append(f"starts {until(job.starts_at, now())}")
    if job.why and job.state != "running":
        words.append(terminal.one_line(job.why[0].text))
    nodes = f" on {', '.join(job.nodes)}" if job.nodes and job.state in ("starting", "running") else ""
    return f"job {job.id} {phase}{nodes}", " · ".join(words)


def _ended(job: JobDetail) -> str:
    took = f" after {span((job.ended_at - job.started_at).total_seconds())}" if job.ended_at and job.started_at else ""
    code = f" with exit code {job.exit_code}" if job.exit_code else ""
    why = f": {job.why[0].text}" if job.why else ""
    return f"job {job.id} {job.state}{code}{took}{why}"


@contextlib.contextmanager
def time_limit(limit_ms: int | None) -> Iterator[None]:
    """Interrupt the reading of a stream, which otherwise may take for ever."""
    if limit_ms is None:
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeIsUpError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_ms / 1000)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def timeout_ms(text: str | None) -> int | None:
    if text is None:
        return None
    from gpuyard.files.durations import duration_ms

    return duration_ms(text)


def end_with(code: int) -> None:
    """The program's exit code, once everything has been said."""
    sys.stdout.flush()
    if code:
        click.get_current_context().exit(code)
