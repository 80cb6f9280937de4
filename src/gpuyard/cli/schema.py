"""`gpuyard schema`: the published format of the files, and of the REST API."""

from __future__ import annotations

from typing import Any

import click

FLEET = "fleet"
OPENAPI = "openapi"
KINDS = ("cluster", "job", "change", "work", "schedule", "teams", "team-changes", "scenario", FLEET, OPENAPI)
"""Spelled out here, so that the help needs no reader; a test compares them with the readers' own."""


@click.command(epilog="Editors with a YAML language server complete and check files against it.")
@click.argument("kind", type=click.Choice(KINDS))
def schema(kind: str) -> None:
    """Print the JSON Schema of a kind of file, or the OpenAPI description of the REST API.

    \b
    gpuyard schema work > job.schema.json
    gpuyard schema openapi > gpuyard.json
    """
    import json

    click.echo(json.dumps(_schema(kind), indent=2))


def _schema(kind: str) -> dict[str, Any]:
    """Each is made from what reads or serves it, which takes a moment to load."""
    if kind == OPENAPI:
        from gpuyard import __version__
        from gpuyard.service.openapi import openapi

        return openapi(__version__)
    if kind == FLEET:
        from gpuyard.fakegpu.format import fleet_schema

        return fleet_schema()
    from gpuyard.files.schema import json_schema

    return json_schema(kind)
