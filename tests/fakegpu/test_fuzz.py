"""Whatever is written, a reader answers with a value or with one error that says where; never with anything else."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.errors import InputError
from gpuyard.fakegpu.config import fleet_of
from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.faults import read_fault
from gpuyard.fakegpu.profile import read_profile

FILE = (Path(__file__).parent / "valid" / "fleet.yaml").read_text(encoding="utf-8")
WORDS = st.sampled_from(
    ("-1", "0", "1.5", "1e9", "x", "null", "[]", "{}", "true", "9" * 17, "10-30", "60%", "4GiB", "1h", '""', "é", "*a")
)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """The file that says everything, with one word exchanged or some characters gone."""
    if draw(st.booleans()):
        words = FILE.split(" ")
        words[draw(st.integers(0, len(words) - 1))] = draw(WORDS)
        return " ".join(words)
    start = draw(st.integers(0, len(FILE) - 1))
    return FILE[:start] + FILE[start + draw(st.integers(1, 20)) :]


def error_of(read: Callable[[str], object], text: str) -> str:
    """What is said about a text; nothing where it could be read."""
    try:
        read(text)
    except InputError as error:
        return str(error)
    return ""


def run(text: str) -> None:
    """Read a fleet and let an hour of it pass."""
    engine = Engine(fleet_of(text))
    engine.advance(3_600_000)
    list(engine.readings())


@given(damaged())
def test_a_damaged_file_is_refused_in_words_or_runs(text: str) -> None:
    said = error_of(run, text)
    assert not said or said.startswith("fleet.yaml")


@pytest.mark.parametrize("read", [fleet_of, read_profile, read_fault])
@given(text=st.text(max_size=60) | st.text("[]{}:,- \n\"'#&*%10time utilization", max_size=60))
def test_any_text_is_refused_in_words_or_read(read: Callable[[str], object], text: str) -> None:
    error_of(read, text)
