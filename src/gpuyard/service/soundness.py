"""Whether the database still holds what was written: what the start looked at, and the rest of a long log afterwards.

Place in the flow: journal ─verification─▶ **soundness** ─▶ status, doctor, the manager's log. The rest is looked at in
a thread of its own, with pauses, so that requests do not wait for it. Invariant: damage is reported, and changes
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from gpuyard.errors import StoreError
from gpuyard.platform.clock import sleep_ms
from gpuyard.service.moments import moment
from gpuyard.wire.rest import DatabaseHealth, QuarantinedEntry
from gpuyard.worlds.standalone.journal import Journal
from gpuyard.worlds.standalone.store.port import Quarantined, Store, Verification
from gpuyard.worlds.standalone.store.verify import INDEX_DAMAGE

PAUSE_MS: Final = 20
"""After each page of the log."""
MAX_TOLD: Final = 10
"""Entries in quarantine that the manager's log names; status and `gpuyard store inspect` have the others."""

MAX_SHOWN: Final = 20
"""Entries in quarantine that status names."""

_log = logging.getLogger(__name__)


def database_health(soundness: Soundness, *, detailed: bool) -> DatabaseHealth:
    """What status tells; reasons may quote what is in an entry, so not everybody sees them."""
    verification = soundness.verification
    held = soundness.in_quarantine
    first = [held[seq] for seq in sorted(held)[:MAX_SHOWN]]
    return DatabaseHealth(
        verified_at=moment(verification.at_ms) if verification else None,
        verified_entries=verification.entries if verification else 0,
        complete=verification is not None and verification.complete,
        damage=tuple(one.what for one in verification.damage) if verification and detailed else (),
        quarantined=len(held),
        quarantine=tuple(QuarantinedEntry(one.seq, one.kind, one.why if detailed else "") for one in first),
    )


class _StoppedError(Exception):
    """The manager ends."""


Write = Callable[[Callable[[], object]], Awaitable[bool]]
"""Do something with the store in the thread that writes."""


class Soundness:
    """What is known of one database."""

    def __init__(
        self, store: Store, journal: Journal, write: Callable[[Callable[[], object]], Awaitable[bool]]
    ) -> None:
        self._store = store
        self._write = write
        self._journal = journal
        self.verification = journal.verification
        self._stopped = threading.Event()

    @property
    def in_quarantine(self) -> dict[int, Quarantined]:
        return dict(self._journal.quarantine.entries)

    def tell(self) -> None:
        """Name in the manager's log what a start leaves out."""
        found = self._journal.found
        for one in found[:MAX_TOLD]:
            _log.warning("entry %d (%s) of the log cannot be used and is in quarantine: %s", one.seq, one.kind, one.why)
        if len(found) > MAX_TOLD:
            _log.warning("and %d more entries: gpuyard store inspect", len(found) - MAX_TOLD)

    async def look_at_the_rest(self) -> None:
        """Once, where the start has looked at the newest entries only."""
        if self.verification is None or self.verification.complete:
            return
        with ThreadPoolExecutor(1, "gpuyard-verify") as thread:
            try:
                self.verification = await asyncio.get_running_loop().run_in_executor(thread, self._look)
            except StoreError as error:
                _log.warning("the database could not be looked at: %s", error)
            except _StoppedError:
                return
            except asyncio.CancelledError:
                self._stopped.set()
                raise
        if any(damage.what == INDEX_DAMAGE for damage in self.verification.damage):
            await self._write(self._store.mend_index)
            left = tuple(damage for damage in self.verification.damage if damage.what != INDEX_DAMAGE)
            self.verification = msgspec.structs.replace(self.verification, damage=left)
        for damage in self.verification.damage:
            _log.warning("%s", self._store.damaged(damage.what, damage.seq))

    def _look(self) -> Verification:
        return self._store.verify(self._pause)

    def _pause(self, done: int, of: int) -> None:
        if self._stopped.is_set():
            raise _StoppedError
        sleep_ms(PAUSE_MS)
