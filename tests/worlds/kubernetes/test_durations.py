"""Durations as Go writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.worlds.kubernetes.durations import duration_ms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1h30m", 5_400_000),
        ("5m", 300_000),
        ("1.5h", 5_400_000),
        ("90s", 90_000),
        ("500ms", 500),
        ("1500us", 1),
        ("1h0m0s", 3_600_000),
        ("0", 0),
        ("0s", 0),
        ("-1s", -1000),
        ("+2m", 120_000),
        (".5s", 500),
        ("1.s", 1000),
    ],
)
def test_what_go_accepts(text: str, expected: int) -> None:
    assert duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "5", "1d", "1h 30m", "m", ".s", "-", "1e3s", "9999999999h", "\uff11s"])
def test_what_go_refuses(text: str) -> None:
    assert duration_ms(text) is None


@given(st.text())
def test_no_text_is_too_odd(text: str) -> None:
    duration_ms(text)
