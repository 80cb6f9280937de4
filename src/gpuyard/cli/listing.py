"""Lists for people and programs: table, wide, json, yaml, jsonl, name, csv, from one description of columns.

Place in the flow: a command ─items as the server wrote them─▶ **listing** ─▶ stdout.
Invariants: JSON and YAML are the objects of the API verbatim; a table on a terminal is cut to its width, and elsewhere
is tab-separated, whole and without colour.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import click

from gpuyard.cli import terminal
from gpuyard.cli.session import FORMS, Session
from gpuyard.cli.times import now

if TYPE_CHECKING:
    from gpuyard.sdk.calls import Call

GAP: Final = "  "
MIN_LAST: Final = 20
"""The last column is cut to what is left of the line, but not below this."""

Item = TypeVar("Item")
Command = Callable[..., Any]


class Column(NamedTuple, Generic[Item]):
    """One column: how an item looks in it to a person, and exactly."""

    name: str
    text: Callable[[Item, datetime], str]
    exact: Callable[[Item], str] | None = None
    """For wide and csv; the same as `text` where it is missing."""
    wide: bool = False
    """Only shown in wide, in csv and where asked for."""
    key: Callable[[Item], Any] | None = None
    """What to sort by; the exact text where it is missing."""


class Look(NamedTuple):
    """How a list is to be shown."""

    output: str
    columns: str = ""
    no_headers: bool = False
    sort: str = ""


class Kind(NamedTuple, Generic[Item]):
    """A kind of objects that is listed."""

    type: Any
    columns: Sequence[Column[Item]]
    name: Callable[[Item], str]
    colour: Callable[[Item], str | None] = lambda item: None
    """The colour of a row, where there is one."""


def listing_options(command: Command) -> Command:
    """The flags of every list; the command gets them as one `look`."""

    @click.option("-o", "--output", type=click.Choice(FORMS), help="The form of the answer.  [default: table]")
    @click.option("--columns", default="", metavar="A,B", help="These columns, in this order.")
    @click.option("--no-headers", is_flag=True, help="Without the line of headings.")
    @click.option("--sort", default="", metavar="COLUMN", help="Sort by a column; -COLUMN turns the order round.")
    @functools.wraps(command)
    def with_look(
        session: Session,
        output: str | None,
        columns: str,
        no_headers: bool,
        sort: str,
        **given: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        form = session.output(output, FORMS, "table")
        return command(session, look=Look(form, columns, no_headers, sort), **given)

    return with_look


def show_all(
    session: Session, call: Call[Any], kind: Kind[Any], look: Look, *, most: int | None = None, if_empty: str = ""
) -> None:
    """Fetch a list and show it; a person who gets an empty one is told `if_empty`."""
    from itertools import islice

    _refuse_unknown_columns(kind, look)
    raws = list(islice(session.client.items(call.verbatim()), most))
    show(raws, kind, look)
    if not raws and if_empty and terminal.on_terminal():
        terminal.talk(if_empty)


def show(raws: Sequence[bytes], kind: Kind[Any], look: Look) -> None:
    """Objects as the server wrote them, in the form that was asked for."""
    if look.sort or look.output in ("table", "wide", "name", "csv"):
        _refuse_unknown_columns(kind, look)
        pairs = _sorted([(raw, _decoded(raw, kind)) for raw in raws], kind, look)
        raws, items = [raw for raw, _ in pairs], [item for _, item in pairs]
        if look.output in ("table", "wide", "name", "csv"):
            _print_rows(items, kind, look)
            return
    print_verbatim(raws, look.output)


def _decoded(raw: bytes, kind: Kind[Any]) -> Any:  # noqa: ANN401
    from gpuyard.sdk.answers import decoded_json

    return decoded_json(raw, kind.type)


def print_verbatim(raws: Sequence[bytes], output: str) -> None:
    """JSON of the server for programs: a list, one object per line, or YAML."""
    import msgspec

    if output == "jsonl":
        for raw in raws:
            click.echo(msgspec.json.format(bytes(raw), indent=-1).decode())
        return
    together = b"[" + b",".join(bytes(raw) for raw in raws) + b"]"
    print_object(together, output)


def print_object(raw: bytes, output: str) -> None:
    """One JSON text, as it is or as YAML."""
    import msgspec

    if output != "yaml":
        click.echo(msgspec.json.format(bytes(raw), indent=2 if output == "json" else -1).decode())
        return
    import yaml

    click.echo(yaml.safe_dump(msgspec.json.decode(bytes(raw)), sort_keys=False, allow_unicode=True), nl=False)


# ---------------------------------------------------------------------------------------------------------------- rows


def _print_rows(items: list[Any], kind: Kind[Any], look: Look) -> None:
    if look.output == "name":
        for item in items:
            click.echo(terminal.one_line(kind.name(item)))
        return
    columns = _chosen(kind, look)
    exactly = look.output in ("wide", "csv")
    at = now()
    rows = [[_cell(column, item, at, exactly) for column in columns] for item in items]
    headings = [] if look.no_headers else [[column.name for column in columns]]
    if look.output == "csv":
        _print_csv([*headings, *rows])
    elif terminal.on_terminal():
        _print_table(headings, rows, [kind.colour(item) for item in items], whole=look.output == "wide")
    else:
        for row in (*headings, *rows):
            click.echo("\t".join(row))


def _cell(column: Column[Any], item: Any, at: datetime, exactly: bool) -> str:  # noqa: ANN401
    text = column.exact(item) if exactly and column.exact else column.text(item, at)
    return terminal.one_line(text)


def _print_csv(rows: list[list[str]]) -> None:
    import csv
    import io

    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    click.echo(written.getvalue(), nl=False)


def _print_table(headings: list[list[str]], rows: list[list[str]], colours: list[str | None], *, whole: bool) -> None:
    lines = table_lines([*headings, *rows], terminal.PIPED_WIDTH if whole else terminal.width())
    if terminal.in_colour():
        shades = [None] * len(headings) + colours
        lines = [
            click.style(line, bold=True) if at < len(headings) else click.style(line, fg=shade) if shade else line
            for at, (line, shade) in enumerate(zip(lines, shades, strict=True))
        ]
    _paged("\n".join(lines), len(lines))


def table_lines(rows: Sequence[Sequence[str]], room: int) -> list[str]:
    """Rows in columns, cut where the line ends."""
    if not rows:
        return []
    widths = [max(terminal.cells(row[at]) for row in rows) for at in range(len(rows[0]))]
    last = max(room - sum(widths[:-1]) - len(GAP) * (len(widths) - 1), MIN_LAST)
    lines = []
    for row in rows:
        padded = [text + " " * (wide - terminal.cells(text)) for text, wide in zip(row[:-1], widths, strict=False)]
        lines.append(GAP.join([*padded, terminal.cut(row[-1], last)]).rstrip())
    return lines


def _paged(text: str, lines: int) -> None:
    """Through the person's pager, where they named one and the list does not fit."""
    import os

    if os.environ.get("PAGER") and lines > terminal.height():
        click.echo_via_pager(f"{text}\n")
    elif text:
        click.echo(text, color=terminal.in_colour())


# ------------------------------------------------------------------------------------------------------------- columns


def _chosen(kind: Kind[Any], look: Look) -> list[Column[Any]]:
    if look.columns:
        return [_column(kind, name, "--columns") for name in look.columns.split(",")]
    wide = look.output in ("wide", "csv")
    return [column for column in kind.columns if wide or not column.wide]


def _column(kind: Kind[Any], name: str, flag: str) -> Column[Any]:
    wanted = name.strip().upper()
    for column in kind.columns:
        if column.name.rstrip("≈") == wanted.rstrip("≈"):
            return column
    from gpuyard.files.suggest import did_you_mean

    known = [column.name.rstrip("≈").lower() for column in kind.columns]
    raise click.BadParameter(
        f'there is no column "{name}"{did_you_mean(name.lower(), known)}; there are: {", ".join(known)}',
        param_hint=f"'{flag}'",
    )


def _refuse_unknown_columns(kind: Kind[Any], look: Look) -> None:
    """Before anything is fetched."""
    _chosen(kind, look)
    if look.sort:
        _column(kind, look.sort.removeprefix("-"), "--sort")


def _sorted(pairs: list[tuple[bytes, Any]], kind: Kind[Any], look: Look) -> list[tuple[bytes, Any]]:
    if not look.sort:
        return pairs
    column = _column(kind, look.sort.removeprefix("-"), "--sort")
    at = now()

    def key(pair: tuple[bytes, Any]) -> Any:  # noqa: ANN401
        if column.key:
            return column.key(pair[1])
        return column.exact(pair[1]) if column.exact else column.text(pair[1], at)

    return sorted(pairs, key=key, reverse=look.sort.startswith("-"))


def lines_of(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """`Name:   value` lines for one object; what is empty is left out."""
    shown = [(f"{name}:", terminal.one_line(value)) for name, value in pairs if value]
    return table_lines(shown, terminal.PIPED_WIDTH)
