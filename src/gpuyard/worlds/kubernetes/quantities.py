"""Quantities of Kubernetes as integers: `100m`, `64Gi`, `1.5`, `2e3`.

Place in the flow: objects ─text─▶ **quantities** ─integers─▶ requests, nodes. Invariant: exact down to a billionth, the
finest Kubernetes keeps (anything finer counts as one); only the last step rounds: what is asked for up, what there is
down. The same few texts come thousands of times, so answers are remembered.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

from gpuyard.errors import InputError

NANO: Final = 10**9
"""Billionths in one."""
MAX_LENGTH: Final = 64
MAX_EXPONENT: Final = 60
"""Nobody means more than 10^60, and a short text must not become a number that fills the memory."""
LARGEST_BINARY: Final = (1 << 63) - 1
"""Kubernetes lets no quantity with a binary unit become larger."""

_QUANTITY: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<rest>[0-9]*))?(?P<unit>[KMGTPE]i|[numkMGTPE]|[eE](?P<exponent>[+-]?[0-9]+))?",
    re.ASCII,
)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
_REMEMBERED: Final = 4096


@lru_cache(_REMEMBERED)
def nanos(text: str) -> int:
    """Billionths of a quantity: what sums are made of."""
    match = _QUANTITY.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if match is None or not (match["whole"] or match["rest"]):
        raise InputError(f'"{text}" is not a quantity', fix="write it as 2, 0.5, 500m, 64Gi or 1e3")
    rest = match["rest"] or ""
    digits = int((match["whole"] or "") + rest)
    unit = match["unit"] or ""
    if unit in _BINARY:
        amount = min(_scaled(digits * _BINARY[unit], 9 - len(rest)), LARGEST_BINARY * NANO)
    else:
        amount = _scaled(digits, 9 - len(rest) + _exponent(match, text))
    return -amount if match["sign"] == "-" else amount


def parse_quantity(text: str) -> Fraction | int:
    """The number itself."""
    amount = Fraction(nanos(text), NANO)
    return amount.numerator if amount.denominator == 1 else amount


def milli_up(text: str) -> int:
    """Thousandths, rounded up: CPU that is asked for."""
    return up(nanos(text), NANO // 1000)


def units_up(text: str) -> int:
    """Whole units, rounded up: bytes or devices that are asked for."""
    return up(nanos(text), NANO)


def milli_down(text: str) -> int:
    """Thousandths, rounded down: CPU there is."""
    return nanos(text) // (NANO // 1000)


def units_down(text: str) -> int:
    """Whole units, rounded down: bytes or devices there are."""
    return nanos(text) // NANO


def up(amount: int, unit: int) -> int:
    """How many units it takes to hold an amount."""
    return -(-amount // unit)


def _scaled(digits: int, exponent: int) -> int:
    """`digits` × 10^`exponent`, a rest counted as one more."""
    return digits * 10**exponent if exponent >= 0 else up(digits, 10**-exponent)


def _exponent(match: re.Match[str], text: str) -> int:
    written = match["exponent"]
    if written is None:
        return _DECIMAL.get(match["unit"] or "", 0)
    if int(written) > MAX_EXPONENT:
        raise InputError(f'"{text}" is absurdly large', fix="check the exponent; no cluster holds that much")
    # The smallest of all is reached long before.
    return max(int(written), -MAX_LENGTH - 9)
