"""The page about fleet files: every field is on it, and what it shows is true."""

import re
from pathlib import Path

import pytest

from gpuyard.errors import InputError
from gpuyard.fakegpu.config import fleet_of
from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.faults import FaultKind
from gpuyard.fakegpu.format import fleet_schema
from gpuyard.fakegpu.products import products

PAGE = (Path(__file__).parents[2] / "docs" / "fleet-file.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_runs(text: str) -> None:
    engine = Engine(fleet_of(text))
    engine.advance(3_600_000)
    assert list(engine.readings())


def test_every_field_product_and_fault_is_documented() -> None:
    definitions = fleet_schema()["$defs"].values()
    fields = {name for definition in definitions for name in definition.get("properties", {})}
    assert sorted(name for name in fields if f"`{name}`" not in PAGE) == []
    assert [key for key in products() if f"`{key}`" not in PAGE] == []
    assert [kind for kind in FaultKind if f"`{kind}" not in PAGE] == []


def test_the_message_shown_is_the_one_that_is_given() -> None:
    malformed = Path(__file__).parent / "malformed" / "unknown-mig-profile.yaml"
    with pytest.raises(InputError) as caught:
        fleet_of(malformed.read_text(encoding="utf-8"))
    assert str(caught.value) in PAGE
