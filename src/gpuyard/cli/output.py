"""Answers for programs: the same data as JSON or YAML."""

from __future__ import annotations

import click

FORMATS = ("text", "json", "yaml")

output_option = click.option(
    "-o", "--output", type=click.Choice(FORMATS), default="text", show_default=True, help="For people or programs."
)


form_option = click.option(
    "-o", "--output", type=click.Choice(FORMATS), help="The form of the answer.  [default: text]"
)
"""The same for commands with a session, which knows the form that is wished for everywhere: `session.output`."""


def print_data(value: object, output: str) -> None:
    """A value of the model, in full."""
    import msgspec

    encoded = msgspec.json.encode(value)
    if output == "json":
        click.echo(msgspec.json.format(encoded, indent=2).decode())
        return
    import yaml

    click.echo(yaml.safe_dump(msgspec.json.decode(encoded), sort_keys=False, allow_unicode=True), nl=False)
