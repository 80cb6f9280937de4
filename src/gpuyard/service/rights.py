"""Rights are asked again for as long as an answer takes: what a caller may no longer have ends, also in the middle.

Place in the flow: routing, streams and handlers that wait ─Call─▶ **rights** ─▶ sign-in and authorise, once more.
Nothing else decides whether a stream goes on. Invariant: within RIGHTS_SECONDS and PARTING_SECONDS after a token, a
role or a target would be refused to a new request, what is under way for it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from msgspec.structs import replace

from gpuyard.errors import RefusedError
from gpuyard.service.authorise import admit
from gpuyard.service.call import Answer, Call
from gpuyard.service.limits import RIGHTS_SECONDS
from gpuyard.service.problems import ProblemReason

QUESTIONS: Final = frozenset({"plan_job", "what_if", "quote_pool_job"})
"""Operations that change nothing although they are posted."""


def admitted_again(call: Call) -> Call:
    """Return the call with the rights its token has now; a RefusedError where it would not be admitted any more."""
    if call.operation.permission is None:
        return call
    caller = call.service.signin.still(call.caller)
    if caller == call.caller:
        return call
    admit(caller, call.operation)
    return replace(call, caller=caller)


async def answered(call: Call, handle: Callable[[Call], Awaitable[Answer]]) -> Answer:
    """Handle a call with the rights its caller has now: reading its body may have taken a while.

    A question that was long in answering is answered again if the rights of its caller have changed meanwhile.
    """
    clock = asyncio.get_running_loop().time
    began, call = clock(), admitted_again(call)
    answer = await handle(call)
    reads = not call.operation.changes or call.operation.name in QUESTIONS
    if answer.stream is not None or not reads or clock() - began < RIGHTS_SECONDS:
        return answer
    now = admitted_again(call)
    return answer if now is call else await handle(now)


class Rights:
    """The rights of one call to one target, for as long as it is answered."""

    def __init__(self, call: Call, target: Callable[[Call], object]) -> None:
        self._call = call
        self._target = target

    def check(self) -> None:
        """Authorise the call once more, as if it came now; a RefusedError where it would be, or nobody waits for it."""
        if self._call.left():
            raise RefusedError(ProblemReason.TOO_SLOW, "the connection was closed", fix="again")
        self._call = admitted_again(self._call)
        self._target(self._call)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """End what is done inside as soon as the rights are gone, wherever it waits: the refusal is raised."""
        loop = asyncio.get_running_loop()
        watch = _Watch(self, loop)
        try:
            async with asyncio.timeout(None) as bound:
                watch.begin(lambda: bound.reschedule(loop.time()))
                yield
        except TimeoutError:
            if watch.refusal is None:
                raise
            raise watch.refusal from None
        finally:
            watch.end()

    async def checked(self, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The stream, each of its pieces only while the rights last."""
        async for piece in stream:
            self.check()
            yield piece


class _Watch:
    """Asks every RIGHTS_SECONDS, and once told no, ends what it watches."""

    def __init__(self, rights: Rights, loop: asyncio.AbstractEventLoop) -> None:
        self._rights = rights
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._stop: Callable[[], None] = lambda: None
        self.refusal: RefusedError | None = None

    def begin(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._timer = self._loop.call_later(RIGHTS_SECONDS, self._ask)

    def _ask(self) -> None:
        try:
            self._rights.check()
        except RefusedError as refusal:
            self.refusal = refusal
            self._stop()
        else:
            self._timer = self._loop.call_later(RIGHTS_SECONDS, self._ask)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
