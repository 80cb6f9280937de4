"""What the terminal is and can: width, colour, questions, one line of status. Talk goes to stderr.

Invariants: no colour where nobody sees it; nothing of others can steer the terminal.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from typing import IO, Final

import click

from gpuyard.cli.exit_codes import FAILURE

PIPED_WIDTH: Final = 10_000
"""Nothing is cut where no person reads."""

CLEAR_LINE: Final = "\r\x1b[K"
CLEAR_SCREEN: Final = "\x1b[H\x1b[2J"


def on_terminal(stream: IO[str] | None = None) -> bool:
    return (stream or sys.stdout).isatty()


def in_colour(stream: IO[str] | None = None) -> bool:
    """NO_COLOR and FORCE_COLOR are the person's word; otherwise colour is for terminals that have it."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return on_terminal(stream) and os.environ.get("TERM") != "dumb"


def width() -> int:
    import shutil

    return shutil.get_terminal_size().columns if on_terminal() else PIPED_WIDTH


def height() -> int:
    import shutil

    return shutil.get_terminal_size().lines


def cells(text: str) -> int:
    """How many places of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(_cell(char) for char in text)


def _cell(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def one_line(text: str) -> str:
    """Words of others, so that they stay in their line and cannot steer the terminal."""
    return "".join(char if char.isprintable() else " " if char in "\n\t" else f"\\x{ord(char):02x}" for char in text)


def cut(text: str, room: int) -> str:
    """A text that fits, with a sign where something is missing."""
    if cells(text) <= room:
        return text
    kept = ""
    for char in text:
        if cells(kept) + _cell(char) > max(room - 1, 0):
            break
        kept += char
    return f"{kept}…"


def talk(text: str) -> None:
    """Words for the person, beside the data."""
    click.echo(text, err=True)


def ask(question: str) -> None:
    """Go on only if a person at the terminal agrees; a program is taken at its word."""
    if sys.stdin.isatty() and sys.stderr.isatty() and not click.confirm(question, err=True):
        talk("nothing was done")
        click.get_current_context().exit(FAILURE)


class StatusLine:
    """One line that changes on a terminal; a line for each change elsewhere."""

    def __init__(self) -> None:
        self._live = on_terminal(sys.stderr)
        self._shown = ""

    def show(self, phase: str, details: str = "") -> None:
        """`details` may change often; only a person's terminal shows that."""
        text = f"{phase}{f' · {details}' if details else ''}"
        if self._live:
            click.echo(f"{CLEAR_LINE}{cut(text, width_of_stderr())}", nl=False, err=True)
        elif phase != self._shown:
            click.echo(text, err=True)
        self._shown = phase

    def clear(self) -> None:
        if self._live and self._shown:
            click.echo(CLEAR_LINE, nl=False, err=True)


def width_of_stderr() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 80
