"""What the manager does for its store at every tick: close days, prune the log, and see whether it can be written.

Place in the flow: manager's tick ─▶ **upkeep** ─▶ core and store. The manager's event loop alone calls it; the thread
that writes asks the store. Invariant: a store that is away stops nothing here; a later tick does what is left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from gpuyard.errors import StoreGoneError, StoreWaitError
from gpuyard.platform.clock import monotonic_ms
from gpuyard.service.core import Core
from gpuyard.service.readiness import Readiness
from gpuyard.worlds.standalone.retention import oldest_kept, spans_of
from gpuyard.worlds.standalone.store.port import DailySum, Store

LOOK_EVERY_MS: Final = 2_000
"""How often the store is asked whether it could be written, where nothing is to be written."""
PRUNE_EVERY_MS: Final = 3_600_000


class Upkeep:
    """Of one manager that has started. `in_writing` runs something in the thread that writes."""

    def __init__(
        self, core: Core, store: Store, readiness: Readiness, in_writing: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> None:
        self._core = core
        self._store = store
        self._readiness = readiness
        self._in_writing = in_writing
        self._last_prune_ms = 0
        self._looked_ms = 0

    async def tick(self) -> None:
        await self._close_days()
        await self._prune()
        await self._look()

    async def keep(self, write: Callable[[], object]) -> bool:
        """Write what can wait. Where the database is away it does: the next append finds it again."""
        try:
            await self._in_writing(write)
        except (StoreGoneError, StoreWaitError):
            return False
        return True

    async def _look(self) -> None:
        """See whether something could be written, though nothing is to be."""
        now_ms = monotonic_ms()
        if now_ms - self._looked_ms < LOOK_EVERY_MS:
            return
        self._looked_ms = now_ms
        try:
            await self._in_writing(self._store.check_writable)
        except (StoreGoneError, StoreWaitError) as error:
            self._readiness.looked(error)
        else:
            self._readiness.looked(None)

    async def _close_days(self) -> None:
        days = self._core.days
        for day in days.to_begin():
            kept = await self._kept_sums(day) if days.was_closed(day) else []
            if kept is not None:
                days.begin(day, kept)
        sums: list[DailySum] = []
        self._core.contained.run("sums", lambda: sums.extend(days.to_close()))
        if sums and await self.keep(lambda: self._store.add_sums(sums)):
            self._core.contained.run("days", lambda: days.close(sums))

    async def _kept_sums(self, day: str) -> list[DailySum] | None:
        """None where the database is away."""
        try:
            kept: list[DailySum] = await self._in_writing(lambda: self._store.sums(day, day))
        except (StoreGoneError, StoreWaitError):
            return None
        return kept

    async def _prune(self) -> None:
        now_ms = monotonic_ms()
        if now_ms - self._last_prune_ms < PRUNE_EVERY_MS:
            return
        self._last_prune_ms = now_ms
        await self.keep(self._prune_store)

    def _prune_store(self) -> None:
        oldest = min((one.seq for one in self._store.snapshots()), default=0)
        for span in spans_of(self._core.state.jumps, self._core.recorded.now_ms(), oldest):
            self._store.prune(oldest_kept(span.now_ms), span.up_to_seq, span.after_seq)
