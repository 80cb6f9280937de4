"""Quantities of Kubernetes, with the numbers its own library gives."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.errors import InputError
from gpuyard.worlds.kubernetes.quantities import (
    milli_down,
    milli_up,
    nanos,
    parse_quantity,
    units_down,
    units_up,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("2", 2),
        ("+2", 2),
        ("-2", -2),
        ("007", 7),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("1.", 1),
        ("100m", Fraction(1, 10)),
        ("1n", Fraction(1, 10**9)),
        ("1u", Fraction(1, 10**6)),
        ("3k", 3_000),
        ("3M", 3 * 10**6),
        ("3G", 3 * 10**9),
        ("3T", 3 * 10**12),
        ("3P", 3 * 10**15),
        ("3E", 3 * 10**18),
        ("1Ki", 1 << 10),
        ("1Mi", 1 << 20),
        ("1Gi", 1 << 30),
        ("1Ti", 1 << 40),
        ("1Pi", 1 << 50),
        ("1Ei", 1 << 60),
        ("1.5Gi", 3 << 29),
        ("0.1Ki", Fraction(1024, 10)),
        ("1e3", 1_000),
        ("1E3", 1_000),
        ("1.5e3", 1_500),
        ("12e-3", Fraction(12, 1000)),
        ("1e+2", 100),
    ],
)
def test_every_way_to_write_a_quantity(text: str, number: Fraction | int) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize(
    "text", ["", " ", ".", "k", "e3", "1 Gi", "1KB", "1Kib", "1ki", "1K", "1mi", "٣", "1e", "x", "1.2.3"]
)
def test_what_is_no_quantity_is_named(text: str) -> None:
    with pytest.raises(InputError, match="is not a quantity"):
        parse_quantity(text)


def test_a_short_text_cannot_become_a_number_that_fills_the_memory() -> None:
    with pytest.raises(InputError, match="absurdly large"):
        parse_quantity("1e999999999")
    assert parse_quantity("1e-999999999") == Fraction(1, 10**9)
    with pytest.raises(InputError, match="is not a quantity"):
        parse_quantity("1" * 100)


def test_anything_finer_than_a_billionth_counts_as_one() -> None:
    assert nanos("0.1n") == 1
    assert nanos("0.0000000011") == 2
    assert nanos("-0.1n") == -1


def test_binary_units_end_where_64_bits_end() -> None:
    assert parse_quantity("8Ei") == (1 << 63) - 1
    assert parse_quantity("1000Ei") == (1 << 63) - 1
    assert parse_quantity("10E") == 10**19


def test_what_is_asked_for_is_rounded_up_and_what_there_is_down() -> None:
    assert (milli_up("1u"), milli_down("1u")) == (1, 0)
    assert (milli_up("1500m"), milli_down("1500m")) == (1500, 1500)
    assert (units_up("0.1Ki"), units_down("0.1Ki")) == (103, 102)
    assert (units_up("1500m"), units_down("1500m")) == (2, 1)


@given(st.integers(0, 10**9), st.sampled_from(["", "n", "u", "m", "k", "M", "Ki", "Mi", "e2", "E-4"]))
def test_rounding_brackets_the_exact_number(count: int, unit: str) -> None:
    text = f"{count}{unit}"
    assert units_down(text) <= parse_quantity(text) <= units_up(text)
    assert units_up(text) - units_down(text) <= 1
    assert milli_down(text) <= 1000 * parse_quantity(text) <= milli_up(text)
