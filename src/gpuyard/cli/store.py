"""`gpuyard store`: look into the database, verify it, leave entries out and take them back, without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from gpuyard.cli.backup import database_of, database_option, progress_of
from gpuyard.cli.exit_codes import FAILURE
from gpuyard.cli.output import output_option, print_data

if TYPE_CHECKING:
    from gpuyard.worlds.standalone.store.sql_store import SqlStore
    from gpuyard.worlds.standalone.store.upkeep import Inspected

MAX_SHOWN: Final = 100


@click.group()
def store() -> None:
    """The database: inspect, verify, quarantine, release, accept. More: docs/state.md

    inspect and verify may run beside a manager; the others may not.

    \b
    gpuyard store verify
    gpuyard store inspect --seq 120..140
    gpuyard store quarantine 131 --why "node n7 reported nonsense"
    gpuyard store release 131
    """


@store.command(epilog="Ends with 1 if anything is damaged, and with 2 if it cannot be looked at.")
@database_option
@output_option
def verify(database: str | None, output: str) -> None:
    """Hold every entry, snapshot and sum against its checksum, in the manager's database and in its parts.

    \b
    gpuyard store verify
    gpuyard store verify --database postgresql://yard@db/yard -o json
    """
    from gpuyard.worlds.standalone.store.address import PARTS, beside
    from gpuyard.worlds.standalone.store.opening import is_there

    place = database_of(database)
    every = {"gpuyard": place, **{part: beside(place, part) for part in PARTS if is_there(beside(place, part))}}
    found = {name: _opened(address).verify(progress_of("verify")) for name, address in every.items()}
    if output != "text":
        print_data(found, output)
    for name, one in found.items() if output == "text" else ():
        scope = "" if one.complete else "; the rest could not be looked at"
        verdict = "damaged" if one.damage else "whole"
        click.echo(f"{name}: {verdict}; {one.entries} entries were verified, the last is {one.last_seq}{scope}")
        for damage in one.damage:
            click.echo(f"  {damage.what}")
    if any(one.damage for one in found.values()):
        click.get_current_context().exit(FAILURE)


@store.command()
@click.option("--seq", "span", default="", metavar="A..B", help="From entry A to B; A, A.. and ..B are good, too.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only of this kind; may be repeated.")
@click.option("--quarantined", is_flag=True, help="Only what is in quarantine, damaged or cannot be used.")
@click.option("--limit", default=MAX_SHOWN, show_default=True, type=click.IntRange(1), help="At most so many.")
@database_option
@output_option
def inspect(
    span: str, kinds: tuple[str, ...], quarantined: bool, limit: int, database: str | None, output: str
) -> None:
    """Show entries of the log as they are kept, also those that cannot be read.

    \b
    gpuyard store inspect --seq 120..140
    gpuyard store inspect --kind node-seen -o json
    gpuyard store inspect --quarantined
    """
    from gpuyard.worlds.standalone.reading import why_unusable
    from gpuyard.worlds.standalone.store.upkeep import Wanted
    from gpuyard.worlds.standalone.store.upkeep import inspect as look

    first, last = _span(span)
    opened = _opened(database_of(database))
    judge = (lambda entry: "") if opened.place.part else why_unusable
    found = list(look(opened, Wanted(first, last, frozenset(kinds), quarantined, limit), judge))
    if output != "text":
        print_data(found, output)
        return
    for entry in found:
        _print(entry)
    if len(found) == limit:
        click.echo(f"more may follow: --seq {found[-1].seq + 1}.. or --limit", err=True)


def _print(entry: Inspected) -> None:
    from gpuyard.cli.terminal import one_line
    from gpuyard.worlds.standalone.store.damage import time_text

    state = "QUARANTINED" if entry.quarantined else "UNUSABLE" if entry.why else "ok"
    click.echo(one_line(f"{entry.seq:>8}  {time_text(entry.at_ms)}  {state:<11}  {entry.kind}  {entry.actor}".rstrip()))
    if entry.why:
        click.echo(one_line(f"{'':>8}  {entry.why}"))
    click.echo(one_line(f"{'':>8}  {entry.body}"))


@store.command()
@click.argument("seqs", metavar="SEQ...", nargs=-1, required=True, type=click.IntRange(1))
@click.option("--why", default="", metavar="TEXT", help="What is wrong with them; kept in the log.")
@database_option
@output_option
def quarantine(seqs: tuple[int, ...], why: str, database: str | None, output: str) -> None:
    """Leave entries out from the next start on. They are kept, and `release` takes that back.

    Stop the manager first. Later entries that need them are left out as well, and named at the next start.

    \b
    gpuyard store quarantine 131
    gpuyard store quarantine 131 132 --why "node n7 reported nonsense"
    """
    from gpuyard.platform.clock import wall_ms
    from gpuyard.worlds.standalone.store.upkeep import put_in_quarantine

    held = put_in_quarantine(_opened(database_of(database)), seqs, why, wall_ms(), _actor())
    if output != "text":
        print_data(held, output)
        return
    for one in held:
        click.echo(f"entry {one.seq} ({one.kind or 'missing'}) is in quarantine: {one.why}")


@store.command()
@click.argument("seqs", metavar="SEQ...", nargs=-1, required=True, type=click.IntRange(1))
@database_option
def release(seqs: tuple[int, ...], database: str | None) -> None:
    """Use entries again from the next start on. One that still cannot be used goes back into quarantine.

    \b
    gpuyard store release 131
    """
    from gpuyard.platform.clock import wall_ms
    from gpuyard.worlds.standalone.store.upkeep import release as free

    free(_opened(database_of(database)), seqs, wall_ms(), _actor())
    click.echo(f"released: {', '.join(map(str, seqs))}")


@store.command()
@database_option
def accept(database: str | None) -> None:
    """Go on with what the database holds now, although it is empty, older or another one than at the last start.

    This begins an empty cluster where a database was emptied on purpose, and goes on from a copy that was put back by
    hand: then numbers of jobs go on at the next million, as after a restore.

    \b
    gpuyard store accept
    """
    from gpuyard.platform.clock import wall_ms
    from gpuyard.worlds.standalone.journal import restored
    from gpuyard.worlds.standalone.store.upkeep import accept as take

    opened = _opened(database_of(database))
    now_ms = wall_ms()
    last_seq = take(opened, lambda seq: restored(seq, now_ms))
    click.echo(f"{opened.place} is accepted; its last entry is {last_seq}")


def _opened(address: str) -> SqlStore:
    """A store at this address, not connected yet."""
    from gpuyard.platform.home import gpuyard_home, markers_of
    from gpuyard.worlds.standalone.store.opening import open_store

    markers = markers_of(gpuyard_home())
    return open_store(address, markers if markers.is_dir() else None)


def _span(text: str) -> tuple[int, int]:
    """`17`, `17..20`, `17..`, `..20`; 0 as an end: to the end of the log."""
    first, dots, last = text.partition("..")
    try:
        begin = int(first or 1)
        end = (int(last) if last else 0) if dots else int(first or 0)
    except ValueError:
        raise click.UsageError(f'--seq "{text}" is no span of entries: write A..B') from None
    if begin < 1 or (end and end < begin):
        raise click.UsageError(f'--seq "{text}" is no span of entries: they begin with 1')
    return begin, end


def _actor() -> str:
    """Who does it, for the log: there is no server that could ask for a token."""
    import getpass

    try:
        return f"local/{getpass.getuser()}"
    except (KeyError, OSError):
        return "local"
