"""`gpuyard schema`: the published format of the files."""

from __future__ import annotations

import click

FLEET = "fleet"
KINDS = ("cluster", "job", "change", "scenario", FLEET)
"""Spelled out here, so that the help needs no reader; a test compares them with the readers' own."""


@click.command(epilog="Editors with a YAML language server complete and check files against it.")
@click.argument("kind", type=click.Choice(KINDS))
def schema(kind: str) -> None:
    """Print the JSON Schema of a kind of file.

    \b
    gpuyard schema cluster > cluster.schema.json
    """
    import json

    from gpuyard.fakegpu.format import fleet_schema
    from gpuyard.files import json_schema

    click.echo(json.dumps(fleet_schema() if kind == FLEET else json_schema(kind), indent=2))
