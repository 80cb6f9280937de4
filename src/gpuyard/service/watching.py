"""What happens from some entry of the log on, for one reader.

Place in the flow: manager ─durable entries─▶ **watching** ─▶ streams of events. Invariant: a reader gets every entry
once, in order, until it closes, falls too far behind, or the manager stops.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from gpuyard.worlds.standalone.store.port import Entry


class Watching:
    """`entries_after` waits for entries after a number; None ends the watching."""

    def __init__(self, entries_after: Callable[[int], Awaitable[list[Entry] | None]], after_seq: int) -> None:
        self.last_seq = after_seq
        self._entries_after = entries_after
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[Entry]:
        while not self._closed:
            entries = await self._entries_after(self.last_seq)
            if entries is None:
                return
            for entry in entries:
                self.last_seq = entry.seq
                yield entry

    def close(self) -> None:
        self._closed = True
