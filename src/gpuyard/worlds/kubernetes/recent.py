"""What was asked for lately, remembered within bounds.

Place in the flow: beside constraints. Invariant: what is asked for again and again is never forgotten, and there are
never more than twice `limit` entries, however long the program lives.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Two halves: when the younger is full the older is dropped, and what is found in the older becomes young again."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._young: dict[Key, Value] = {}
        self._old: dict[Key, Value] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: Key) -> Value | None:
        value = self._young.get(key)
        if value is None:
            value = self._old.pop(key, None)
            if value is not None:
                self.keep(key, value)
        return value

    def keep(self, key: Key, value: Value) -> None:
        if len(self._young) >= self._limit:
            self._old, self._young = self._young, {}
        self._young[key] = value
