"""How much one file may hold, counted while it is read.

Place in the flow: parser ─events─▶ **budget** ─admitted─▶ tree. What an alias stands for counts each time it is
used, so a small file cannot stand for a large tree. Invariant: nothing is built of a value before the budget has
admitted it.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """The most that one file may hold. The defaults are those of files on this machine."""

    values: int = 1_000_000
    """Lists, maps and single values together, with aliases written out."""
    nesting: int = 64
    """Lists and maps inside each other."""
    keys: int = 100_000
    """Of one map."""
    scalar_characters: int = 1 << 20
    """Of one key or single value."""
    text_characters: int = 64 << 20
    """Of all keys and single values together, with aliases written out."""
    anchors: int = 10_000
    aliases: int = 10_000


LOCAL: Final = Limits()
"""Of files that the command line reads."""


class Size(msgspec.Struct, frozen=True, gc=False):
    """What a part of a file holds, with aliases written out."""

    values: int = 0
    characters: int = 0

    def without(self, other: Size) -> Size:
        return Size(self.values - other.values, self.characters - other.characters)


class Over(msgspec.Struct, frozen=True):
    """A limit that a value goes beyond: what is wrong, and what to do."""

    what: str
    fix: str


class Budget:
    """What has been read of one file so far. Each method counts one event and returns the limit it exceeds, if any."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.values = 0
        self.characters = 0
        self.anchors = 0
        self.aliases = 0

    @property
    def used(self) -> Size:
        return Size(self.values, self.characters)

    def scalar(self, characters: int, keys: int | None, *, anchor: bool) -> Over | None:
        """Count a key or a single value; `keys` says how many keys its map has already where it is a key."""
        limits = self.limits
        if characters > limits.scalar_characters:
            what = "key" if keys is not None else "value"
            return Over(f"a {what} of more than {limits.scalar_characters} characters", "put long text into a file")
        if keys is not None and keys >= limits.keys:
            return Over(f"a map of more than {limits.keys} keys", _FEWER)
        return self._add(0 if keys is not None else 1, characters) or self._anchor(anchor)

    def collection(self, depth: int, *, anchor: bool) -> Over | None:
        """Count the begin of a list or map inside `depth` others."""
        if depth >= self.limits.nesting:
            return Over(f"nested more than {self.limits.nesting} deep", "no part of the format is that deep")
        return self._add(1, 0) or self._anchor(anchor)

    def alias(self, stands_for: Size) -> Over | None:
        """Count an alias as what it stands for."""
        self.aliases += 1
        if self.aliases > self.limits.aliases:
            return Over(f"more than {self.limits.aliases} aliases", "write the values out, or use counts and ranges")
        return self._add(stands_for.values, stands_for.characters)

    def _anchor(self, anchor: bool) -> Over | None:
        self.anchors += anchor
        if self.anchors > self.limits.anchors:
            return Over(f"more than {self.limits.anchors} anchors", "name only what is used again")
        return None

    def _add(self, values: int, characters: int) -> Over | None:
        self.values += values
        self.characters += characters
        if self.values > self.limits.values:
            return Over(f"holds more than {self.limits.values} values once its aliases are written out", _FEWER)
        if self.characters > self.limits.text_characters:
            most = self.limits.text_characters
            return Over(f"holds more than {most} characters of text once its aliases are written out", _FEWER)
        return None


_FEWER: Final = "use counts and ranges such as node-[1-100]"
