"""What a task has written, from the machine that has it, piece by piece; followed until its attempt ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Final

from gpuyard.errors import RefusedError
from gpuyard.service.authorise import job_for
from gpuyard.service.call import Answer, Call
from gpuyard.service.limits import LOG_WAIT_MS, MAX_LOG_BYTES
from gpuyard.service.moments import read_moment
from gpuyard.service.problems import ProblemReason
from gpuyard.service.rights import Rights
from gpuyard.wire.agents import MAX_LOG_PIECE_BYTES, AttemptId, LogPiece
from gpuyard.worlds.standalone.records import JobRecord

OFFSET_HEADER: Final = "Gpuyard-Log-Offset"
ATTEMPT_HEADER: Final = "Gpuyard-Attempt"
SMALL_PIECE_BYTES: Final = 4 << 10
SMALL_PIECE_PAUSE_S: Final = 0.02
"""After a small piece of a log: lines that come one by one are sent some at a time."""
LOG_MEDIA: Final = "text/plain; charset=utf-8"


async def read_logs(call: Call) -> Answer:
    job, follow = job_for(call), call.flag("follow")
    task, limit, since_ms = _task(call, job), _limit(call), _since(call)
    with ExitStack() as held:
        if follow:
            held.callback(call.service.traffic.open_stream(call.caller.token, call.caller.user))
        # The first piece is read before anything is answered, so that a problem is still one.
        async with Rights(call, job_for).held():
            if follow:
                await _started(call, job.id, task)
            attempt = _attempt(call, call.state.jobs.get(job.id, job), task)
            first = await _piece(call, attempt, call.number("offset"), limit, 0, since_ms)
        headers = ((OFFSET_HEADER, str(first.offset)), (ATTEMPT_HEADER, str(attempt)))
        stream = _follow(call, attempt, first) if follow else _read(call, attempt, first, limit)
        return Answer(stream=stream, headers=headers, media=LOG_MEDIA, target=job_for, release=held.pop_all().close)


def _task(call: Call, job: JobRecord) -> int:
    task = call.number("task")
    if not 0 <= task < len(job.tasks):
        what = f"job {job.id} has no task {task}"
        raise RefusedError(
            ProblemReason.LOG_MISSING, what, fix=f"it has {len(job.tasks)}, counted from 0", field="task"
        )
    return task


def _limit(call: Call) -> int:
    limit = call.number("limit")
    if limit < 0:
        fix = "0 means all there is, up to 64 MiB"
        raise RefusedError(ProblemReason.BAD_PARAMETER, "limit must not be negative", fix=fix, field="limit")
    return min(limit or MAX_LOG_BYTES, MAX_LOG_BYTES)


def _since(call: Call) -> int:
    """0 where nothing is said about it."""
    since_ms = read_moment(call.text("since"), call.manager.now_ms(), "since") or 0
    if since_ms and call.number("offset"):
        what, fix = "since and offset both say where to begin", "keep one of the two"
        raise RefusedError(ProblemReason.BAD_PARAMETER, what, fix=fix, field="since")
    return since_ms


def _attempt(call: Call, job: JobRecord, task: int) -> AttemptId:
    newest = job.tasks[task].attempt
    attempt = call.number("attempt") or newest
    if not 1 <= attempt <= newest:
        what = f"task {task} of job {job.id} has had {newest} attempts"
        fix = "it has not started yet: follow it, or look again later" if not newest else f"name one from 1 to {newest}"
        raise RefusedError(ProblemReason.LOG_MISSING, what, fix=fix, field="attempt")
    return AttemptId(job.id, task, attempt)


async def _started(call: Call, id: str, task: int) -> None:
    """Whoever follows a job that waits is patient: until it has a first attempt, or never will."""
    watching = call.manager.subscribe(None)
    try:
        if _begun(call, id, task):
            return
        async for entry in watching:
            if f"job/{id}" in entry.objects and _begun(call, id, task):
                return
    finally:
        watching.close()


def _begun(call: Call, id: str, task: int) -> bool:
    job = call.state.jobs.get(id)
    return job is None or job.over or job.tasks[task].attempt > 0


async def _piece(call: Call, attempt: AttemptId, offset: int, limit: int, wait_ms: int, since_ms: int = 0) -> LogPiece:
    piece = await call.manager.read_log(attempt, offset, min(limit, MAX_LOG_PIECE_BYTES), wait_ms, since_ms)
    if piece.problem:
        raise RefusedError(ProblemReason.LOG_MISSING, piece.problem, fix="its machine may have thrown it away")
    return piece


async def _read(call: Call, attempt: AttemptId, piece: LogPiece, limit: int) -> AsyncIterator[bytes]:
    """All there was when it was asked for, and no more."""
    end = min(piece.size, piece.offset + limit)
    while True:
        yield piece.data[: end - piece.offset]
        offset = piece.offset + len(piece.data)
        if offset >= end or not piece.data:
            return
        await _pause_after(piece)
        piece = await _piece(call, attempt, offset, end - offset, 0)


async def _pause_after(piece: LogPiece) -> None:
    """An agent that answers at once with nothing, or byte by byte, must not keep the manager busy."""
    if len(piece.data) < SMALL_PIECE_BYTES:
        await asyncio.sleep(SMALL_PIECE_PAUSE_S)


async def _follow(call: Call, attempt: AttemptId, piece: LogPiece) -> AsyncIterator[bytes]:
    while True:
        if piece.data:
            yield piece.data
        offset = piece.offset + len(piece.data)
        if piece.ended and offset >= piece.size:
            return
        await _pause_after(piece)
        piece = await _piece(call, attempt, offset, MAX_LOG_PIECE_BYTES, LOG_WAIT_MS)


HANDLERS: Final = {"read_logs": read_logs}
