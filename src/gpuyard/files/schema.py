"""The published JSON Schema of each kind of file, from the declarations the readers use."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gpuyard.files.format import (
    ChangeFileSpec,
    ClusterFileSpec,
    JobListSpec,
    JobSpec,
    ScheduleFileSpec,
    TeamChangesFileSpec,
    TeamsFileSpec,
    WorkSpec,
)
from gpuyard.files.scenario_format import ScenarioFileSpec

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_SPECS: Final[dict[str, tuple[str, Any]]] = {
    "cluster": ("A cluster for gpuyard", ClusterFileSpec),
    "job": ("A job, or a list of jobs, for gpuyard plan", JobSpec | JobListSpec),
    "change": ("A change of a cluster, for gpuyard what-if", ChangeFileSpec),
    "work": ("A job for gpuyard submit", WorkSpec),
    "schedule": ("A job that comes again, for gpuyard schedule set", ScheduleFileSpec),
    "teams": ("The tree of teams, for gpuyard team set", TeamsFileSpec),
    "team-changes": ("Some teams, changed or new, for gpuyard team change", TeamChangesFileSpec),
    "scenario": ("A golden scenario for gpuyard scenario check", ScenarioFileSpec),
}

KINDS: Final = tuple(_SPECS)


def json_schema(kind: str) -> dict[str, Any]:
    """The schema of one kind of file."""
    title, spec = _SPECS[kind]
    return schema_of(title, spec.__args__ if kind == "job" else (spec,))


def schema_of(title: str, specs: tuple[Any, ...]) -> dict[str, Any]:
    """The schema of a file that holds one of these."""
    (*roots,), definitions = msgspec.json.schema_components(specs, ref_template="#/$defs/{name}")
    _close(definitions)
    body = roots[0] if len(roots) == 1 else {"anyOf": list(roots)}
    schema = {"$schema": DIALECT, "title": title, **body, "$defs": definitions}
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    return plain


def _close(definitions: dict[str, Any]) -> None:
    """The policy is a model value without a ban on unknown fields; in a file they are refused as everywhere."""
    for definition in definitions.values():
        if definition.get("type") == "object" and "properties" in definition:
            definition["additionalProperties"] = False
