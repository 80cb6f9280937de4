"""Parts of a process that are done again and again for one item each: one that raises stops no other.

Place in the flow: a manager's tick ─item by item─▶ **contained** ─exceptions─▶ reports. No I/O: the clock is given.
Invariant: what ends a process on purpose, a database that is lost or taken over, is not held back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuyard.errors import StoreError
from gpuyard.loop.containment import FIRST_PAUSE_MS, MAX_PAUSE_MS, Pause, Reports, Trouble, fault_of


class Contained:
    """Items that have failed, and when each is tried again."""

    def __init__(self, reports: Reports, now_ms: Callable[[], int]) -> None:
        self.failing: dict[str, Pause] = {}
        self._reports = reports
        self._now_ms = now_ms

    def run(self, item: str, work: Callable[[], object], *, pause: bool = True) -> bool:
        """Do the work of an item, and return whether it was done. One that has failed is left alone for a while.

        `pause` False: it is done each time, as for what an agent reports.
        """
        known = self.failing.get(item)
        if pause and known is not None and self._now_ms() < known.retry_ms:
            return False
        try:
            work()
        except StoreError:
            raise
        except Exception as error:
            self.failed(item, error)
            return False
        if known is not None:
            del self.failing[item]
        return True

    def now_failing(self, group: str, errors: Mapping[str, Exception]) -> None:
        """Note which items of a group fail now; the others of it do not any more."""
        for name, error in errors.items():
            self.failed(f"{group} {name}", error)
        self.keep(lambda item: not item.startswith(f"{group} ") or item.partition(" ")[2] in errors)

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Forget the failures of items that are not there any more."""
        if self.failing:
            self.failing = {item: pause for item, pause in self.failing.items() if wanted(item)}

    def failed(self, item: str, error: Exception) -> None:
        """Note that an item has failed, and report it the first time."""
        now_ms, known = self._now_ms(), self.failing.get(item)
        failures = 1 if known is None else known.failures + 1
        pause_ms = min(FIRST_PAUSE_MS << min(failures - 1, 16), MAX_PAUSE_MS)
        fault = fault_of(error, item.partition(" ")[0])
        since_ms = now_ms if known is None else known.since_ms
        self.failing[item] = Pause(fault, since_ms, failures, now_ms + pause_ms)
        self._reports.add(Trouble(fault, item=item))
