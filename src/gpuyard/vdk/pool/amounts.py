"""What a caller wrote, read once at the edge: names, amounts, alternatives, portability.

Invariant: an amount is a whole number of thousandths from here on; what cannot be one has an error of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from math import gcd
from typing import Final

from gpuyard.model.quantities import MILLI
from gpuyard.vdk.errors import (
    AmountAbsurdError,
    AmountNegativeError,
    AmountNotANumberError,
    AmountNotFiniteError,
    AmountTooFineError,
    AmountZeroError,
    BadAmountError,
    BadNameError,
)
from gpuyard.vdk.model import ANY_DEVICE_TYPE, DeviceRequirements, JobUniqueIdentifier
from gpuyard.vdk.pool.arrangement import PRICE_SCALE, Prices
from gpuyard.vdk.port import Amount

MAX_NAME_CHARS: Final = 128
MAX_DEVICES: Final = 1_024
"""Of one machine, so a job that asks for more is a typing error."""
MAX_BUDGET_DEVICES: Final = 1_000_000
MAX_ALTERNATIVES: Final = 16
MAX_AMOUNT_CHARS: Final = 100
MAX_DECIMALS: Final = 3
JOINER: Final = "____"
"""Stands between team and job in a unique id, so no name may hold it."""

_EXAMPLE: Final = "write a number of devices such as 2, 0.5 or 1.25"


def check_job(job: JobUniqueIdentifier) -> None:
    if not isinstance(job, JobUniqueIdentifier):
        raise BadNameError(f"a job is a JobUniqueIdentifier, not {type(job).__name__}", field="job")
    check_name(job.team, "team")
    check_name(job.job, "job")


def check_name(name: object, what: str) -> None:
    if not isinstance(name, str):
        raise BadNameError(f"the name of a {what} must be text, not {type(name).__name__}", field=what)
    problem = _name_problem(name)
    if problem:
        raise BadNameError(
            f"a {what} cannot be called {name[:MAX_NAME_CHARS]!r}: {problem}",
            fix=f"use 1 to {MAX_NAME_CHARS} printable characters, no space at the ends, and no {JOINER}",
            field=what,
        )


def _name_problem(name: str) -> str:
    if not name:
        return "it is empty"
    if len(name) > MAX_NAME_CHARS:
        return f"it has {len(name)} characters"
    if not name.isprintable():
        return "it holds signs that cannot be seen"
    if name != name.strip():
        return "it begins or ends with a space"
    return f"it holds {JOINER}" if JOINER in name else ""


# -------------------------------------------------------------------------------------------------------------- amounts


def read_amount(value: Amount, what: str = "amount", most: int = MAX_DEVICES) -> int:
    """Thousandths of a decimal number; a float is read by its shortest decimal form."""
    number = _decimal(value, what)
    if number.is_nan():
        raise AmountNotANumberError(f"the {what} {_text(value)} is not a number", fix=_EXAMPLE, field=what)
    if number.is_infinite():
        raise AmountNotFiniteError(f"the {what} {_text(value)} is not finite", fix=_EXAMPLE, field=what)
    if number < 0:
        raise AmountNegativeError(f"the {what} {_text(value)} is negative", fix=_EXAMPLE, field=what)
    if number > most:
        raise _absurd(f"{what} {_text(value)}", what, most)
    if _decimals(number) > MAX_DECIMALS:
        raise AmountTooFineError(
            f"the {what} {_text(value)} has more than three decimals", fix="round it to thousandths: 0.125", field=what
        )
    return int(number * MILLI)


def _decimals(number: Decimal) -> int:
    """Counted digit by digit, because reckoning with a very long or very small number would round it."""
    _, digits, exponent = number.as_tuple()
    significant = "".join(map(str, digits)).rstrip("0")
    assert isinstance(exponent, int)
    return -(exponent + len(digits) - len(significant)) if significant else 0


def _decimal(value: Amount, what: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        kind = type(value).__name__
        raise AmountNotANumberError(f"the {what} must be a number, not {kind}", fix=_EXAMPLE, field=what)
    if isinstance(value, int):
        # A huge whole number has more digits than text may be made of.
        return Decimal(max(-1, min(value, MAX_BUDGET_DEVICES + 1)))
    text = repr(float(value)) if isinstance(value, float) else str(value).strip()
    try:
        if len(text) <= MAX_AMOUNT_CHARS and "_" not in text:
            return Decimal(text)
    except InvalidOperation:
        pass
    raise AmountNotANumberError(f'the {what} "{_text(value)}" is not a number', fix=_EXAMPLE, field=what)


def _text(value: Amount) -> str:
    if isinstance(value, int) and abs(value) > MAX_BUDGET_DEVICES**2:
        return "with a great many digits"
    text = str(value)
    return text if len(text) <= MAX_AMOUNT_CHARS else f"{text[:MAX_AMOUNT_CHARS]}..."


def _absurd(text: str, field: str, most: int) -> AmountAbsurdError:
    return AmountAbsurdError(f"the {text} is absurdly large", fix=f"no more than {most:,} devices", field=field)


def check_milli(amount_milli: object, what: str, most: int = MAX_DEVICES) -> int:
    """An amount that comes in thousandths already."""
    if isinstance(amount_milli, bool) or not isinstance(amount_milli, int):
        raise AmountNotANumberError(f"the {what} in thousandths must be a whole number", fix=_EXAMPLE, field=what)
    if amount_milli < 0:
        raise AmountNegativeError(f"the {what} of {amount_milli} thousandths is negative", fix=_EXAMPLE, field=what)
    if amount_milli > most * MILLI:
        raise _absurd(what, what, most)
    return amount_milli


Wanted = Amount | DeviceRequirements | Sequence[DeviceRequirements]


def read_alternatives(wanted: Wanted) -> tuple[DeviceRequirements, ...]:
    """What a request asks for, in the order of preference."""
    if isinstance(wanted, DeviceRequirements):
        return (_checked(wanted),)
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        if not 0 < len(wanted) <= MAX_ALTERNATIVES:
            raise BadAmountError(
                f"{len(wanted)} alternatives; between 1 and {MAX_ALTERNATIVES} are taken", field="amount"
            )
        return tuple(_checked(one) for one in wanted)
    return (_checked(DeviceRequirements(read_amount(wanted))),)


def _checked(wanted: DeviceRequirements) -> DeviceRequirements:
    if not isinstance(wanted, DeviceRequirements):
        raise AmountNotANumberError("an alternative must say how much of which type", fix=_EXAMPLE, field="amount")
    if wanted.device_type != ANY_DEVICE_TYPE:
        check_name(wanted.device_type, "device type")
    if check_milli(wanted.amount_milli, "amount") == 0:
        raise AmountZeroError("the amount is zero: a job without a GPU needs no place", fix=_EXAMPLE, field="amount")
    return wanted


# --------------------------------------------------------------------------------------------------------------- prices


def read_prices(job_portability: Amount) -> Prices:
    """delete : move = 1 : (1 - portability), in whole numbers."""
    portability_milli = read_amount(job_portability, "job_portability")
    if not 0 < portability_milli <= PRICE_SCALE:
        raise BadAmountError(
            f"job_portability {job_portability} is not above 0 and at most 1",
            fix="0.9 means: to delete a job costs as much as ten moves",
            field="job_portability",
        )
    # A move is never free: of two plans that delete equally the one that disturbs fewer jobs is the better.
    move = max(1, PRICE_SCALE - portability_milli)
    divisor = gcd(PRICE_SCALE, move)
    return Prices(PRICE_SCALE // divisor, move // divisor)


def check_devices(devices: object) -> None:
    if isinstance(devices, bool) or not isinstance(devices, int) or not 0 < devices <= MAX_DEVICES:
        raise BadAmountError(f"a machine has 1 to {MAX_DEVICES} devices, not {devices}", field="devices")


def check_flag(value: object, what: str) -> None:
    if not isinstance(value, bool):
        raise BadNameError(f"{what} must be true or false, not {type(value).__name__}", field=what)
