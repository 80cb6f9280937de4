"""Pictures of a terminal for the docs: lines in, an SVG out that looks the same without the net."""

from __future__ import annotations

import re
from collections.abc import Iterable
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


def a_command(command: str) -> Text:
    return Text.assemble(("$ ", "green bold"), (command, "bold"))


def draw_terminal(name: str, title: str, lines: Iterable[Text], columns: int) -> None:
    console = Console(record=True, width=columns, file=StringIO(), force_terminal=True)
    for line in lines:
        console.print(line)
    text = console.export_svg(title=title, theme=DIMMED_MONOKAI, unique_id=name.removesuffix(".svg"))
    # Whatever font is there will do.
    text = re.sub(r"@font-face \{.*?\}\s*", "", text, flags=re.DOTALL)
    PICTURES.mkdir(parents=True, exist_ok=True)
    (PICTURES / name).write_text(re.sub(r"[ \t]+\n", "\n", text) + "\n", encoding="utf-8")
