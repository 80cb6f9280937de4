"""Server-sent events that were encoded for somebody, kept for all others who may see the same.

Place in the flow: streams ─key─▶ **encoded** ─bytes─▶ each watcher. With many watchers an event is encoded once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from gpuyard.service.limits import MAX_ENCODED_EVENTS


class Encoded:
    """The newest messages, by what they are and who may see them."""

    def __init__(self, limit: int = MAX_ENCODED_EVENTS) -> None:
        self._limit = limit
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()

    def message(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = make()
            if len(self._kept) > self._limit:
                self._kept.popitem(last=False)
        return found
