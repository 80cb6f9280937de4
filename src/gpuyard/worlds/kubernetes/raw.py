"""Reading fields of objects whose shape nobody has checked for us.

Place in the flow: the spec of an owner, as it came ─**raw**─▶ numbers and names. Invariant: whatever the JSON is,
nothing here raises; what is missing or of another type reads as missing.
"""

from __future__ import annotations

import re
from typing import Any, Final

MAX_COUNT: Final = 2**31 - 1
"""Counts in Kubernetes have 32 bits."""

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,10}")


def inner(value: object, *path: str) -> object:
    """What lies at a path of keys; None where a step of it is missing."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def mapping_at(value: object, *path: str) -> dict[str, Any]:
    found = inner(value, *path)
    return found if isinstance(found, dict) else {}


def items_at(value: object, *path: str) -> list[Any]:
    found = inner(value, *path)
    return found if isinstance(found, list) else []


def text_at(value: object, *path: str) -> str:
    found = inner(value, *path)
    return found if isinstance(found, str) else ""


def count_at(value: object, *path: str) -> int | None:
    """A number of things: a whole number of 32 bits, zero or more."""
    found = inner(value, *path)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= MAX_COUNT:
        return None
    return found


def whole_number(text: str) -> int | None:
    """A whole number of 32 bits as a label or an annotation has it."""
    if not _WHOLE.fullmatch(text):
        return None
    number = int(text)
    return number if abs(number) <= MAX_COUNT else None
