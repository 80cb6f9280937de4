"""Exact quantities: decimal text in, integers out.

Place in the flow: every reader of files, REST bodies and Kubernetes objects converts here, once, at the edge.
Invariant: no float takes part in accounting, so 0.1 + 0.2 fits a quota of 0.3.
"""

from __future__ import annotations

from decimal import Context, Decimal, InvalidOperation
from typing import Final

from gpuyard.errors import QuantityError

MILLI: Final = 1000
"""Thousandths in one: 1000 `gpu_milli` is one GPU, 1000 `cpu_milli` one core."""

GPU: Final = "gpu"
CPU: Final = "cpu"
MEMORY: Final = "memory"

MAX_QUANTITY: Final = 10**15
"""No single amount may exceed this (a thousand billion units): larger is a typing error, not a cluster."""

MAX_EXPONENT: Final = 20
MAX_DIGITS: Final = 24
"""Of one written number: far more than any amount has, and few enough to reckon with exactly."""

_EXACT: Final = Context(prec=64)
"""Wide enough that no product of a written number and a unit is rounded."""

_BINARY: Final = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50}
_DECIMAL: Final = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}


def gpu_model_resource(model: str) -> str:
    """The name under which a queue rations one GPU model: `gpu/H100`."""
    return f"{GPU}/{model}"


def milli(value: str | int | float, what: str = "amount") -> int:
    """Thousandths of a decimal amount, exactly; a float is read by its shortest decimal form."""
    scaled = _EXACT.multiply(_decimal(value, what), Decimal(MILLI))
    if scaled != scaled.to_integral_value():
        raise QuantityError(f"{what} {value} has more than three decimals", fix="round it to thousandths, e.g. 0.125")
    return _bounded(int(scaled), value, what)


def cpu_milli(value: str | int | float, what: str = "cpu") -> int:
    """Thousandths of a core, from `2`, `0.5` or `500m`."""
    if isinstance(value, str) and value.endswith("m"):
        return _whole(value[:-1], what)
    return milli(value, what)


def memory_bytes(value: str | int | float, what: str = "memory") -> int:
    """Bytes, from `64Gi`, `64GiB`, `1.5G`, `512MB` or a plain number of bytes."""
    number, factor = _split_unit(value)
    total = _EXACT.multiply(_decimal(number, what, fix="write it as 64Gi, 512Mi or 80GB"), Decimal(factor))
    if total != total.to_integral_value():
        raise QuantityError(f"{what} {value} is not a whole number of bytes", fix="write it with a smaller unit")
    return _bounded(int(total), value, what)


def memory_mib(value: str | int | float, what: str = "GPU memory") -> int:
    """Whole MiB, from `4096` (MiB), `4Gi` or `80GB`; a rest is rounded up, as a request must be."""
    if not isinstance(value, str) or not value.strip()[-1:].isalpha():
        return _whole(value, what)
    return -(-memory_bytes(value, what) // (1 << 20))


def format_milli(amount: int) -> str:
    """`1500` → `1.5`, `4000` → `4`."""
    return f"{Decimal(amount) / MILLI:f}" if amount % MILLI else str(amount // MILLI)


def format_bytes(amount: int) -> str:
    """The shortest exact binary form: `68719476736` → `64Gi`."""
    for unit in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        if amount and amount % _BINARY[unit] == 0:
            return f"{amount // _BINARY[unit]}{unit}"
    return str(amount)


def format_amount(resource: str, amount: int) -> str:
    """An amount of a named resource as a person writes it."""
    if resource == MEMORY:
        return format_bytes(amount)
    if resource in (CPU, GPU) or resource.startswith(f"{GPU}/"):
        return format_milli(amount)
    return str(amount)


def _decimal(value: str | int | float, what: str, fix: str = "write digits such as 2 or 0.5") -> Decimal:
    if isinstance(value, bool):
        raise QuantityError(f"{what} must be a number, not {str(value).lower()}")
    try:
        number = Decimal(repr(value) if isinstance(value, float) else str(value).strip())
    except InvalidOperation:
        raise QuantityError(f'{what} "{value}" is not a number', fix=fix) from None
    if not number.is_finite():
        raise QuantityError(f"{what} must be a finite number, not {value}", fix=fix)
    if number < 0:
        raise QuantityError(f"{what} must not be negative, got {value}", fix="write zero or more")
    # Beyond these, arithmetic on decimals would round, or turn a short text into a number that fills the memory.
    if number and number.adjusted() > MAX_EXPONENT:
        raise QuantityError(f"{what} {value} is absurdly large", fix="check the unit; no cluster holds that much")
    if len(number.as_tuple().digits) > MAX_DIGITS or (number and number.adjusted() < -MAX_EXPONENT):
        raise QuantityError(f"{what} {value} has too many digits", fix="round it to thousandths, e.g. 0.125")
    return number


def _whole(value: str | int | float, what: str) -> int:
    number = _decimal(value, what)
    if number != number.to_integral_value():
        raise QuantityError(f"{what} {value} must be a whole number", fix="round it, or write it with a smaller unit")
    return _bounded(int(number), value, what)


def _bounded(amount: int, value: object, what: str) -> int:
    if amount > MAX_QUANTITY * MILLI:
        raise QuantityError(f"{what} {value} is absurdly large", fix="check the unit; no cluster holds that much")
    return amount


def _split_unit(value: str | int | float) -> tuple[str | int | float, int]:
    if not isinstance(value, str):
        return value, 1
    text = value.strip().removesuffix("B") if value.strip()[:1].isdigit() else value.strip()
    for suffix, factor in (*_BINARY.items(), *_DECIMAL.items()):
        if text.endswith(suffix):
            return text.removesuffix(suffix), factor
    return text, 1
