"""How fast the store is: `python -m benchmarks.store`.

Each row has a limit. Times are calibrated as in `calibration.py`; an append waits for the disk, which no calibration
can know. PostgreSQL is the one that the tests start, but with its writes made durable; the store's rows are left out
where there is none. Writes `build/bench/store.json`; ends with 1 if a limit was missed.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from benchmarks.calibration import measure
from benchmarks.report import Row, report
from gpuyard.worlds.standalone.store.backup import backup, restore
from gpuyard.worlds.standalone.store.opening import open_store
from gpuyard.worlds.standalone.store.port import Entry
from gpuyard.worlds.standalone.store.sql_store import SqlStore
from tests.postgres import running_server

OUTPUT: Final = Path("build/bench/store.json")
BATCHES: Final = (1, 10, 100)
APPENDS: Final = 50
READ: Final = 50_000
KEPT: Final = 200_000
FILL_BATCH: Final = 5_000
PAGE: Final = 100
KINDS: Final = ("job-submitted", "plan-recorded", "task-started", "task-ended", "job-ended")
TEAMS: Final = 20
USERS: Final = 100
RARE_EVERY: Final = 40_000
BODY: Final = b'{"job":"%d","attempt":1,"tasks":[{"node":"gpu-17","devices":[0,1,2,3]}],"why":"' + b"x" * 200 + b'"}'
DURABLE: Final = ("fsync=on", "full_page_writes=on")


def an_entry(seq: int) -> Entry:
    """As the log of a busy cluster has them; one in very many is of a kind and a team that are rare."""
    rare = seq % RARE_EVERY == 0
    team = "quiet" if rare else f"team-{seq % TEAMS}"
    kind = "node-lost" if rare else KINDS[seq % len(KINDS)]
    user = f"user-{seq % USERS}"
    objects = (f"job/{seq // len(KINDS)}", f"team/{team}", f"node/gpu-{seq % 50}")
    return Entry(seq, seq * 7, kind, BODY % seq, user, team, objects)


def append(store: SqlStore, count: int) -> None:
    first = store.last_seq() + 1
    store.append([an_entry(seq) for seq in range(first, first + count)])


def fill(store: SqlStore, upto: int) -> None:
    while store.last_seq() < upto:
        append(store, min(FILL_BATCH, upto - store.last_seq()))


# -------------------------------------------------------------------------------------------------------------- rows


def append_rows(name: str, store: SqlStore, appends: int) -> Iterator[Row]:
    for size in BATCHES:

        def work(size: int = size) -> None:
            for _ in range(appends):
                append(store, size)

        taken = measure(work, 3)
        ms, calibrated = taken.ms / appends, taken.calibrated_ms / appends
        yield Row(f"{name}: an append of {size} ({1000 * size / ms:,.0f} entries a second)", "ms", ms, calibrated, 40)


def read_row(name: str, store: SqlStore, count: int) -> Row:
    taken = measure(lambda: store.read(0, count), 3)
    return Row(f"{name}: reading {count} entries", "ms", taken.ms, taken.calibrated_ms, 2_500)


def history_rows(name: str, store: SqlStore, kept: int) -> Iterator[Row]:
    searches: dict[str, Callable[[], object]] = {
        "the newest": lambda: store.history(limit=PAGE),
        "of one job": lambda: store.history(object="job/77", limit=PAGE),
        "of a node": lambda: store.history(object="node/gpu-7", limit=PAGE),
        "of two kinds, one rare": lambda: store.history(kinds=["node-lost", "job-ended"], limit=PAGE),
        "of a rare kind": lambda: store.history(kinds=["node-lost"], limit=PAGE),
        "of three teams": lambda: store.history(teams=["team-3", "quiet", ""], limit=PAGE),
        "of a user": lambda: store.history(actor="user-5", limit=PAGE),
        "of an hour long ago": lambda: store.history(since_ms=70_000, until_ms=100_000, limit=PAGE),
        "of a team's kind": lambda: store.history(teams=["team-1"], kinds=["task-started"], limit=PAGE),
    }
    for what, work in searches.items():
        taken = measure(work, 5)
        yield Row(f"{name}: a page of history {what}, of {kept}", "ms", taken.ms, taken.calibrated_ms, 50)


def backup_rows(name: str, address: str | Path, target: Path, kept: int) -> Iterator[Row]:
    taken = measure(lambda: backup(address, target), 1)
    size_mb = target.stat().st_size / 1e6
    yield Row(f"{name}: a backup of {kept} entries ({size_mb:.0f} MB)", "ms", taken.ms, taken.calibrated_ms, 60_000)
    taken = measure(lambda: restore(target, address, force=True), 1)
    yield Row(f"{name}: restoring them", "ms", taken.ms, taken.calibrated_ms, 120_000)


def store_rows(name: str, address: str | Path, folder: Path, *, quick: bool) -> Iterator[Row]:
    """All rows of one database; a quick run is a small one, to see that it runs."""
    read, kept, appends = (500, 2_000, 3) if quick else (READ, KEPT, APPENDS)
    with closing(open_store(address)) as store:
        store.open()
        yield from append_rows(name, store, appends)
        fill(store, kept)
        yield read_row(name, store, read)
        yield from history_rows(name, store, kept)
        yield from append_rows(f"{name} with {kept} entries", store, appends)
    yield from backup_rows(name, address, folder / f"{name}.backup", kept)


def sqlite_rows(*, quick: bool) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as name:
        yield from store_rows("SQLite", Path(name) / "gpuyard.db", Path(name), quick=quick)


def postgres_rows(*, quick: bool) -> Iterator[Row]:
    try:
        with running_server(settings=DURABLE) as server, tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as name:
            yield from store_rows("PostgreSQL", server.url(server.make_database()), Path(name), quick=quick)
    except pytest.skip.Exception as skipped:
        print(skipped)


# --------------------------------------------------------------------------------------------------------- reporting


def arguments(given: list[str]) -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks.store", description="Measure the store.")
    parser.add_argument("--quick", action="store_true", help="a small run, to see that it runs")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    return parser.parse_args(given)


def main(given: list[str]) -> int:
    args = arguments(given)
    return report(chain(sqlite_rows(quick=args.quick), postgres_rows(quick=args.quick)), args.output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
