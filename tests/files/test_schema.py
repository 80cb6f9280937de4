"""The published schema: current, valid, and in agreement with the readers and the documentation."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from gpuyard.files.schema import KINDS, json_schema

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
VALID = Path(__file__).parent / "valid"
EXAMPLES = ROOT / "src" / "gpuyard" / "examples"
DOCUMENTS = {
    "work": ("job-file.md",),
    "schedule": ("recurring-jobs.md", "job-file.md"),
    "teams": ("teams-file.md",),
    "team-changes": ("teams-file.md",),
}
"""Where a kind of file is described; cluster-file.md describes all others."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_checked_in_schema_is_current(kind: str) -> None:
    path = ROOT / "docs" / "schema" / f"{kind}.json"
    hint = f"write it anew: gpuyard schema {kind} > docs/schema/{kind}.json"
    assert json.loads(path.read_text(encoding="utf-8")) == json_schema(kind), hint


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_one(kind: str) -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema(kind))


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("cluster", VALID / "cluster.yaml"),
        ("cluster", EXAMPLES / "cluster.yaml"),
        ("cluster", ROOT / "examples" / "busy-cluster.yaml"),
        ("job", VALID / "job.yaml"),
        ("change", VALID / "change.yaml"),
        ("job", VALID / "jobs.yaml"),
        ("work", VALID / "work.yaml"),
        ("schedule", VALID / "schedule.yaml"),
        ("teams", VALID / "teams.yaml"),
        ("team-changes", VALID / "team-changes.yaml"),
        ("scenario", VALID / "scenario.yaml"),
        ("scenario", EXAMPLES / "scenario.yaml"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.parent.name}/{value.name}",
)
def test_examples_fit_the_schema(kind: str, path: Path) -> None:
    jsonschema.validate(content(path), json_schema(kind))


def content(path: Path) -> object:
    """As an editor sees it. YAML 1.1 reads the key `on` as true; JSON Schema is about text keys."""
    return with_text_keys(yaml.safe_load(path.read_text(encoding="utf-8")))


def with_text_keys(value: object) -> object:
    if isinstance(value, dict):
        return {"on" if key is True else key: with_text_keys(below) for key, below in value.items()}
    return [with_text_keys(below) for below in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", ["unknown-field", "unknown-queue-field", "cordoned-is-text", "policy-word-unknown"])
def test_the_schema_refuses_what_the_reader_refuses(name: str) -> None:
    malformed = Path(__file__).parent / "malformed" / "cluster" / f"{name}.yaml"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content(malformed), json_schema("cluster"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_says_what_it_is_for(kind: str) -> None:
    definitions = json_schema(kind)["$defs"]
    silent = [
        f"{owner}.{name}"
        for owner, definition in definitions.items()
        for name, field in definition.get("properties", {}).items()
        if owner.endswith("Spec") and "description" not in field
    ]
    assert silent == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_documented(kind: str) -> None:
    documents = DOCUMENTS.get(kind, ("cluster-file.md",))
    text = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in documents)
    definitions = json_schema(kind)["$defs"]
    fields = {name for definition in definitions.values() for name in definition.get("properties", {})}
    assert sorted(name for name in fields if f"`{name}`" not in text) == []
