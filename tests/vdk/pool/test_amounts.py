"""What cannot be: every amount, name and number that makes no sense has an error of its own, and changes nothing."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.vdk import Budget, DeviceRequirements, GpuResourceManager, JobUniqueIdentifier, Machine, errors
from gpuyard.vdk.errors import ProvisionError
from gpuyard.vdk.pool.amounts import MAX_DEVICES, read_amount, read_prices
from tests.vdk.driving import everything
from tests.vdk.pools import a_pool, job, start

NAN, INFINITE = float("nan"), float("inf")
AMOUNTS: dict[str, tuple[Any, ...]] = {
    "AmountNotANumber": (
        NAN,
        -NAN,
        "NaN",
        Decimal("sNaN"),
        "",
        "ten",
        "1,5",
        "0x1",
        "1_0",
        "1" * 101,
        None,
        True,
        b"1",
    ),
    "AmountNotFinite": (INFINITE, -INFINITE, "Infinity", "-inf", Decimal("Infinity")),
    "AmountZero": (0, 0.0, -0.0, "0", "0.000", "0e9", Decimal(0), DeviceRequirements(0)),
    "AmountNegative": (-1, -0.001, "-5", -(10**400), Decimal("-1e-3"), DeviceRequirements(-1)),
    "AmountTooFine": (0.0001, 5e-324, "1e-400", 0.1 + 0.2, 1.0005, Decimal("0.12345")),
    "AmountAbsurd": (MAX_DEVICES + 1, 1e6, 1e300, 10**400, "1e400", "9" * 100, DeviceRequirements(10**7)),
    "BadAmount": ([], [DeviceRequirements(1)] * 17),
    "BadName": (DeviceRequirements(1, "a____b"), DeviceRequirements(1, 7)),  # type: ignore[arg-type]
}
WRONG = [(word, amount) for word, amounts in AMOUNTS.items() for amount in amounts]
NAMES = ("", " x", "x ", "a____b", "x" * 129, "tab\t", "line\n", "\x00", "\u200b", 7, None)


def refused(pool: GpuResourceManager, call: Any, *arguments: Any, **more: Any) -> str:
    """By what word; nothing has changed."""
    before = everything(pool)
    with pytest.raises(ProvisionError) as caught:
        call(*arguments, **more)
    assert everything(pool) == before
    assert caught.value.what
    return caught.value.reason


@pytest.mark.parametrize(("word", "amount"), WRONG, ids=[f"{word}-{str(amount)[:12]}" for word, amount in WRONG])
def test_an_amount_that_makes_no_sense_is_refused_by_its_own_word(word: str, amount: Any) -> None:
    pool = a_pool(4, a=4)
    start(pool, "a/x", 1)
    for call in (pool.try_provision_resources, pool.quote):
        assert refused(pool, call, job("a/new"), amount) == word


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_makes_no_sense_is_refused(name: Any) -> None:
    pool = a_pool(1, a=1)
    for id in (JobUniqueIdentifier(job=name, team="a"), JobUniqueIdentifier(job="x", team=name)):
        for call, more in ((pool.try_provision_resources, [1]), (pool.job_ended, []), (pool.mark_job_priority, [True])):
            assert refused(pool, call, id, *more) == "BadName"
    assert refused(pool, pool.set_machine, Machine(name, 1)) == "BadName"
    assert refused(pool, pool.set_budget, Budget(name, 1)) == "BadName"


def test_what_is_no_job_and_no_flag_is_refused() -> None:
    pool = a_pool(1, a=1)
    start(pool, "a/x", 1)
    assert refused(pool, pool.try_provision_resources, "a/x", 1) == "BadName"
    assert refused(pool, pool.job_ended, ("x", "a")) == "BadName"
    assert refused(pool, pool.mark_job_priority, job("a/x"), "yes") == "BadName"
    assert refused(pool, pool.try_provision_resources, job("a/y"), 1, priority=1) == "BadName"
    assert refused(pool, pool.try_provision_resources, job("a/y"), 1, checkpointable=None) == "BadName"


def test_machines_and_budgets_that_make_no_sense_are_refused() -> None:
    pool = a_pool(1, a=1)
    for devices in (0, -1, 1.5, True, MAX_DEVICES + 1, "4"):
        assert refused(pool, pool.set_machine, Machine("m", devices)) == "BadAmount"  # type: ignore[arg-type]
    for milli, word in ((-1, "AmountNegative"), (10**12, "AmountAbsurd"), (0.5, "AmountNotANumber")):
        assert refused(pool, pool.set_budget, Budget("a", milli)) == word  # type: ignore[arg-type]
    pool.set_budget(Budget("b", 0))


def test_every_refusal_has_a_class_of_its_own() -> None:
    found = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ProvisionError)}
    words = [kind.word for kind in found - {ProvisionError}]
    assert len(words) == len(set(words)) == 22


# -------------------------------------------------------------------------------------------------------------- reading


@given(st.integers(1, MAX_DEVICES * 1000))
def test_every_number_of_thousandths_is_read_exactly_however_it_is_written(milli: int) -> None:
    exact = Decimal(milli) / 1000
    for written in (exact, str(exact), float(exact), f"  {exact}  ", f"{exact:E}", np.float64(float(exact))):
        assert read_amount(written) == milli


def test_ten_tenths_are_one() -> None:
    assert sum(read_amount(0.1) for _ in range(10)) == read_amount(1)
    assert read_amount("+1.50") == read_amount(1.5) == 1500


@pytest.mark.parametrize(
    ("portability", "delete", "move"),
    [("0.9", 10, 1), (0.7, 10, 3), ("0.1", 10, 9), (1, 1000, 1), ("0.001", 1000, 999)],
)
def test_portability_is_what_is_kept_of_a_job_that_is_moved(portability: Any, delete: int, move: int) -> None:
    prices = read_prices(portability)
    assert (prices.delete, prices.move) == (delete, move)


@pytest.mark.parametrize("portability", [0, -0.1, 1.001, 2, NAN, "much"])
def test_a_portability_that_makes_no_sense_opens_no_pool(portability: Any) -> None:
    with pytest.raises(ProvisionError):
        GpuResourceManager(job_portability=portability)
