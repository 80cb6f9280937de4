"""The published schema of a fleet file: current, valid, and in agreement with the reader."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gpuyard.fakegpu.format import fleet_schema

HERE = Path(__file__).parent
PUBLISHED = HERE.parents[1] / "docs" / "schema" / "fleet.json"


def content(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_checked_in_schema_is_current() -> None:
    hint = "write it anew: gpuyard schema fleet > docs/schema/fleet.json"
    assert json.loads(PUBLISHED.read_text(encoding="utf-8")) == fleet_schema(), hint


@pytest.mark.parametrize("name", ["seed", "fleet"])
def test_the_schema_takes_what_the_reader_takes(name: str) -> None:
    jsonschema.validate(content(HERE / "valid" / f"{name}.yaml"), fleet_schema())


@pytest.mark.parametrize("name", ["unknown-key-top", "unknown-key-gpu", "missing-product", "mig-strategy", "bad-time"])
def test_the_schema_refuses_what_the_reader_refuses(name: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content(HERE / "malformed" / f"{name}.yaml"), fleet_schema())


def test_every_field_says_what_it_is_for() -> None:
    silent = [
        f"{owner}.{name}"
        for owner, definition in fleet_schema()["$defs"].items()
        for name, field in definition.get("properties", {}).items()
        if "description" not in field
    ]
    assert silent == []
