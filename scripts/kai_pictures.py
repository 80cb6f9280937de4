"""The pictures of docs/kai-demo.md, made from what the demo really says: `python -m scripts.kai_pictures` (as root)."""

from __future__ import annotations

import re

from rich.text import Text

from gpuyard.kaidemo.files import own_folder
from gpuyard.kaidemo.play import MODES, Show, play
from scripts.terminal import a_command, draw_terminal

COLUMNS = 112
STYLES = (
    (r"^Act .*", "bold cyan"),
    (r"^Starting .* phase$", "bold"),
    (r"^(Moving|Creating|Scheduling|Initiating) .*", "yellow"),
    (r"^Allocating .*", "green"),
    (r"■+", "green"),
    (r"·+", "bright_black"),
)


def main() -> None:
    lines: list[str] = []
    play(Show(own_folder(), name="kai-pictures"), lambda text: lines.extend(text.split("\n")), print)
    begins = [at for at, line in enumerate(lines) if line.startswith("Act ")]
    for mode, start, end in zip(MODES, begins, [*begins[1:], len(lines)], strict=True):
        draw_terminal(f"kai-demo-{mode}.svg", "make demo-kai", map(styled, without_ends(lines[start:end])), COLUMNS)


def styled(line: str) -> Text:
    if line.startswith("$ "):
        return a_command(line.removeprefix("$ "))
    text = Text(line)
    for pattern, style in STYLES:
        for found in re.finditer(pattern, line):
            text.stylize(style, *found.span())
    return text


def without_ends(lines: list[str]) -> list[str]:
    """Without empty lines at the beginning and the end."""
    said = [at for at, line in enumerate(lines) if line]
    return lines[said[0] : said[-1] + 1]


if __name__ == "__main__":
    main()
