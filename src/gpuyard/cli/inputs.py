"""Files that commands are told to read; `-` is whatever comes through a pipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

PIPE: Final = Path("/dev/stdin")


class InputFile(click.Path):
    """A path to read from."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, allow_dash=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        return PIPE if value == "-" else super().convert(value, param, ctx)
