"""Quantities are exact: what a person wrote is what is counted."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.errors import QuantityError
from gpuyard.model.quantities import (
    MAX_QUANTITY,
    cpu_milli,
    format_amount,
    format_bytes,
    format_milli,
    gpu_model_resource,
    memory_bytes,
    memory_mib,
    milli,
)


def test_a_tenth_and_two_tenths_fit_three_tenths() -> None:
    assert milli("0.1") + milli("0.2") == milli("0.3")
    assert milli(0.1) + milli(0.2) == milli(0.3)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("0.3", 300),
        (0.3, 300),
        (2, 2000),
        ("2", 2000),
        (" 1.5 ", 1500),
        ("1e3", 1_000_000),
        ("0.000000", 0),
        (".5", 500),
    ],
)
def test_thousandths(written: str | float, expected: int) -> None:
    assert milli(written) == expected


@given(st.integers(0, MAX_QUANTITY))
def test_every_thousandth_survives_being_written(amount: int) -> None:
    assert milli(format_milli(amount)) == amount


@given(st.integers(0, 10**9).map(lambda thousandths: thousandths / 1000))
def test_a_float_is_read_by_its_shortest_decimal(number: float) -> None:
    assert milli(number) == int(Decimal(repr(number)) * 1000)


@given(st.integers(0, 2**50))
def test_every_byte_survives_being_written(amount: int) -> None:
    assert memory_bytes(format_bytes(amount)) == amount


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("64Gi", 64 << 30),
        ("64GiB", 64 << 30),
        ("1.5G", 1_500_000_000),
        ("512MB", 512_000_000),
        ("1k", 1000),
        (4096, 4096),
        ("0.5Ki", 512),
        ("8PB", 8 * 10**15),
    ],
)
def test_bytes(written: str | int, expected: int) -> None:
    assert memory_bytes(written) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [(4096, 4096), ("4096", 4096), ("4Gi", 4096), ("80GB", 76294), ("1Ki", 1), ("4096.0", 4096)],
)
def test_gpu_memory_is_in_mib_and_rounded_up(written: str | int, expected: int) -> None:
    assert memory_mib(written) == expected


@pytest.mark.parametrize(("written", "expected"), [("500m", 500), (2, 2000), ("0.25", 250), ("0m", 0)])
def test_cores(written: str | int, expected: int) -> None:
    assert cpu_milli(written) == expected


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("0.1234", "has more than three decimals"),
        ("0.30000000000000000000001", "has more than three decimals"),
        ("0.3" + "0" * 40 + "1", "has too many digits"),
        ("1e-400", "has too many digits"),
        ("1e999999999", "is absurdly large"),
        ("99999999999999999999", "is absurdly large"),
        ("-1", "must not be negative"),
        (-0.5, "must not be negative"),
        ("nan", "must be a finite number"),
        ("Infinity", "must be a finite number"),
        (float("inf"), "must be a finite number"),
        ("two", "is not a number"),
        ("", "is not a number"),
        (True, "must be a number"),
    ],
)
def test_what_cannot_be_held_exactly_is_refused(written: str | float, complaint: str) -> None:
    with pytest.raises(QuantityError, match=complaint):
        milli(written)


@pytest.mark.parametrize("written", ["64Xi", "Gi", "0.1", "1.00000000000000000000001Ki"])
def test_bytes_that_are_none_are_refused(written: str) -> None:
    with pytest.raises(QuantityError):
        memory_bytes(written)


@pytest.mark.parametrize("written", ["1.5m", "m", "1.5"])
def test_parts_of_what_is_whole_are_refused(written: str) -> None:
    with pytest.raises(QuantityError):
        memory_mib(written) if written == "1.5" else cpu_milli(written)


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("gpu", 1500, "1.5"),
        ("gpu/H100", 4000, "4"),
        ("cpu", 500, "0.5"),
        ("memory", 64 << 30, "64Gi"),
        ("memory", 0, "0"),
        ("nic", 2, "2"),
    ],
)
def test_amounts_are_written_as_people_write_them(resource: str, amount: int, text: str) -> None:
    assert format_amount(resource, amount) == text


def test_a_gpu_model_is_rationed_under_its_own_name() -> None:
    assert gpu_model_resource("H100") == "gpu/H100"
