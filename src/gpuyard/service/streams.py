"""Server-sent events: what happens, as it happens, to whoever may see it; resumable by revision.

Place in the flow: manager ─Subscription─▶ **streams** ─▶ the client. Each message has the revision as its id; a client
that comes back with Last-Event-ID goes on after it, from the log. Invariants: a reader that does not read is cut off by
the server's timeout on sending, and costs nobody else anything; what is told of an entry is what its reader may know
when it is told, not when the stream was opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from gpuyard.errors import RefusedError
from gpuyard.service.call import Call
from gpuyard.service.happened import Reader
from gpuyard.service.limits import HEARTBEAT_SECONDS
from gpuyard.service.problems import ProblemReason
from gpuyard.service.rights import admitted_again
from gpuyard.wire.rest import PROBLEM_EVENT, EventObject, Problem
from gpuyard.worlds.standalone.store.port import Entry

SSE_MEDIA: Final = "text/event-stream; charset=utf-8"
HEARTBEAT: Final = b": alive\n\n"
RETRY_MS: Final = 1_000


def message(event: EventObject) -> bytes:
    """One message of the stream. JSON has no bare line ends, so its data is one line."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.revision, event.kind.encode(), msgspec.json.encode(event))


def _told(reader: Reader, entry: Entry) -> bytes:
    """Empty where there is nothing to tell."""
    seen = reader.told(entry)
    return b"" if seen is None else message(seen)


def check_last_event(call: Call) -> None:
    if call.last_event is not None and call.last_event > call.state.seq:
        what = f"there is no revision {call.last_event} yet; the newest is {call.state.seq}"
        raise RefusedError(ProblemReason.REVISION_UNKNOWN, what, fix="list first, then watch from its revision")


async def watch(call: Call, reader: Reader) -> AsyncIterator[bytes]:
    """All that is for this reader, from now or from its last event on, until one side ends it."""
    watching = call.manager.subscribe(call.last_event)
    entries = aiter(watching)
    coming: asyncio.Future[Entry] = asyncio.ensure_future(anext(entries))
    try:
        yield b"retry: %d\n\n" % RETRY_MS
        while True:
            done, _ = await asyncio.wait((coming,), timeout=HEARTBEAT_SECONDS)
            if not done:
                yield HEARTBEAT
                continue
            try:
                entry = coming.result()
            except StopAsyncIteration:
                return
            # What the reader may know of this entry is asked before it is encoded, not after.
            reader.follow(admitted_again(call))
            if reader.wants(entry):
                told = call.service.encoded.message(reader.key(entry), partial(_told, reader, entry))
                if told:
                    yield told
            coming = asyncio.ensure_future(anext(entries))
    finally:
        watching.close()
        coming.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration, Exception):
            await coming


def last_words(found: Problem) -> bytes:
    """The last message of a stream whose rights are gone. It has no id: a client would come back after the same."""
    return b"event: %s\ndata: %s\n\n" % (PROBLEM_EVENT.encode(), msgspec.json.encode(found))
