"""Words about many subjects: of each only the newest is said, and one after the other.

Place in the flow: telling, statuses ─**newest**─▶ writer. Workers write side by side: two writes about one subject
could arrive the wrong way round, and the older would stand. Invariant: what was said last about it is written last.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

Write = Callable[[], Awaitable[None]]


class Newest:
    """What is still to be said."""

    def __init__(self, say: Callable[[Write], None]) -> None:
        self._say = say
        self._wanted: dict[str, Write] = {}
        self._busy: set[str] = set()
        """Subjects whose turn is coming, or that are being written about."""

    def say(self, subject: str, write: Write) -> None:
        self._wanted[subject] = write
        if subject not in self._busy:
            self._busy.add(subject)
            self._say(lambda: self._write(subject))

    def forget(self) -> None:
        """Whoever was to write has been told to drop everything."""
        self._wanted.clear()
        self._busy.clear()

    async def _write(self, subject: str) -> None:
        write = self._wanted.pop(subject, None)
        try:
            if write is not None:
                await write()
        finally:
            self._busy.discard(subject)
            newer = self._wanted.get(subject)
            if newer is not None:
                self.say(subject, newer)
