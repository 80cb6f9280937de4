"""Durations as people write them: `90s`, `10m`, `1h30m`, `500ms`. In milliseconds from here on."""

from __future__ import annotations

import re
from typing import Final

from gpuyard.errors import QuantityError
from gpuyard.files.place import Place
from gpuyard.model.limits import MAX_DURATION_MS

DURATION_PATTERN: Final = r"^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$"

_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_PART: Final = re.compile(r"([0-9]+)(ms|[dhms])")


def duration_ms(text: str, what: str = "duration") -> int:
    """Milliseconds of a duration that fits DURATION_PATTERN."""
    if not text or not re.fullmatch(DURATION_PATTERN, text):
        raise QuantityError(f'{what} "{text}" is not a duration', fix="write it as 90s, 10m, 2h, 1d or 1h30m")
    if len(text) > 40:
        raise QuantityError(f"{what} {text[:40]}… is absurdly long", fix="check its unit")
    total = sum(int(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text))
    if total > MAX_DURATION_MS:
        raise QuantityError(f"{what} {text} is longer than ten years", fix="check its unit")
    return total


def read_duration(text: str | None, place: Place) -> int | None:
    """The same for a field that may be left out; an error says where it stands."""
    return None if text is None else place.read(duration_ms, text, "duration")
