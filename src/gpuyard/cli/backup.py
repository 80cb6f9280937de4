"""`gpuyard backup` and `gpuyard restore`: all state in one file, and back, for either database."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.output import output_option, print_data

if TYPE_CHECKING:
    from gpuyard.worlds.standalone.store.bundle import Contents
    from gpuyard.worlds.standalone.store.port import Progress

Command = Callable[..., Any]


def database_option(command: Command) -> Command:
    return click.option(
        "--database",
        metavar="URL",
        envvar="GPUYARD_DATABASE",
        help="A path, or postgresql://USER@HOST/DATABASE.  [default: that of GPUYARD_HOME]",
    )(command)


@click.command(epilog="The manager may run meanwhile. More: docs/state.md")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@database_option
@click.option("--verify", "verify_only", is_flag=True, help="Make none: check the one in FILE, to its last byte.")
@output_option
def backup(file: Path, database: str | None, verify_only: bool, output: str) -> None:
    """Copy all state into one file, or check such a file.

    \b
    gpuyard backup yard.backup
    gpuyard backup yard.backup --database postgresql://yard@db/yard
    gpuyard backup --verify yard.backup
    """
    from gpuyard.worlds.standalone.store.address import PARTS
    from gpuyard.worlds.standalone.store.bundle import backup as make
    from gpuyard.worlds.standalone.store.bundle import check

    if verify_only:
        _show(f"{file} is whole and holds", check(file, PARTS), output)
        return
    _show(f"{file} holds", make(database_of(database), file, PARTS, progress_of("backup")), output)


@click.command(epilog="Stop the manager first. More: docs/state.md")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@database_option
@click.option("--force", is_flag=True, help="Replace everything that is in the database.")
@click.option("--move", is_flag=True, help="Nothing happened after the backup: numbers of jobs go on as they were.")
@output_option
def restore(file: Path, database: str | None, force: bool, move: bool, output: str) -> None:
    """Put a backup into an empty database, of whichever kind.

    Jobs that were submitted after the backup are lost, so numbers go on beyond them, at the next million. Where the
    manager had ended before the backup was made, and has not been started since, --move keeps them going.

    \b
    gpuyard restore yard.backup
    gpuyard restore yard.backup --move --database postgresql://yard@db/yard
    """
    from gpuyard.platform.clock import wall_ms
    from gpuyard.platform.home import gpuyard_home, markers_of
    from gpuyard.service.lifetime import make_state_folder
    from gpuyard.worlds.standalone.journal import restored
    from gpuyard.worlds.standalone.store.address import PARTS, address_of
    from gpuyard.worlds.standalone.store.bundle import restore as put_back

    place = database_of(database)
    home = gpuyard_home()
    if database is None:
        make_state_folder(home)
    markers = markers_of(home) if markers_of(home).is_dir() else None
    now_ms = wall_ms()
    mark = None if move else (lambda seq: restored(seq, now_ms))
    held = put_back(file, place, PARTS, force=force, progress=progress_of("restore"), mark=mark, markers=markers)
    _show(f"{address_of(place)} now holds", held, output)


def database_of(given: str | None) -> str:
    """The one that is named, else where the manager of this home keeps its state."""
    from gpuyard.platform.home import gpuyard_home, kept_database

    return kept_database(gpuyard_home()) if given is None else given


def progress_of(verb: str) -> Progress:
    """One line that changes, for a person who waits; nothing where nobody looks."""
    is_seen = sys.stderr.isatty()

    def show(done: int, of: int) -> None:
        if is_seen:
            click.echo(f"\r{verb}: {done} of {of} entries", err=True, nl=done >= of)

    return show


def _show(what: str, held: Contents, output: str) -> None:
    if output != "text":
        print_data(held, output)
        return
    rows = f"{held.entries} entries, {held.snapshots} snapshots, {held.sums} daily sums"
    click.echo(f"{what} {rows}; the last entry is {held.last_seq}")
    for part, header in held.parts.items():
        click.echo(f"and {part}: {header.entries} entries, {header.snapshots} snapshots")
