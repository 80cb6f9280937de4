"""`make bench-vdk`: how long the GpuResourceManager takes to answer on a large, crowded cluster.

1 000 machines of 8 devices and 6 000 jobs of mixed sizes, state in SQLite on disk. Each figure is the 99th percentile
of calls of one kind: there is room; jobs are moved; jobs are deleted; both; nothing makes room. A call that does
anything else is not counted, and there must be enough that do. After each call its plan is rolled back and some small
jobs end and begin elsewhere, so that the cluster stays as crowded as it was, and no two calls see the same.
`measured` is the time on the wall, the durable append included. `calibrated` is of the shorter of two clocks, that on
the wall and the process's own, since neighbours lengthen the first. Writes `build/bench/vdk.json`; ends with 1 if a
limit was missed.
"""

from __future__ import annotations

import gc
import random
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import perf_counter, process_time
from typing import Final

import msgspec

from benchmarks.calibration import REFERENCE_MS, calibration_loop
from benchmarks.report import Row, report
from gpuyard.vdk import (
    Budget,
    DeleteJob,
    GpuResourceManager,
    JobAction,
    JobUniqueIdentifier,
    Machine,
    MoveJob,
    ProvisionError,
)
from gpuyard.worlds.standalone.store.opening import open_store

OUTPUT: Final = Path("build/bench/vdk.json")
MACHINES: Final = 1_000
QUICK_MACHINES: Final = 60
DEVICES: Final = 8
TEAMS: Final = 20
SAMPLES: Final = 300
BATCH: Final = 1_000
"""Entries that are brought to the disk at once."""
CALIBRATE_EVERY: Final = 20
ROOM_LIMIT_MS: Final = 5
RESHUFFLE_LIMIT_MS: Final = 50
PERCENT: Final = 99
SIZES: Final = (
    *("0.1", "0.2", "0.25", "0.3", "0.5", "0.5", "0.7", "0.9"),
    *("1",) * 6,
    *("1.5", "2", "2", "2.5", "3", "4"),
)
SMALL_MILLI: Final = 1_000
CHURN: Final = 3
"""Small jobs that end, and that begin, between two calls."""
ROOM: Final = "there is room"
MOVED: Final = "jobs are moved"
DELETED: Final = "jobs are deleted"
BOTH: Final = "jobs are deleted and moved"
REFUSED: Final = "nothing makes room"
ASKED: Final = {
    ROOM: ("0.1", "0.5", "1"),
    MOVED: ("5", "6", "7", "8"),
    DELETED: ("0.5", "1", "2"),
    BOTH: ("5", "6", "7"),
    REFUSED: ("0.5", "2", "6"),
}
ENDING: Final = {ROOM: 0.1, MOVED: 0.1}
"""How many of the small jobs end, here and there, after the cluster was filled."""
EMPTIED: Final = 3
"""Devices that are emptied where jobs are to be deleted and moved: too few for what is asked."""


class Clocks(msgspec.Struct, frozen=True):
    """How long one thing took."""

    wall_ms: float
    own_ms: float


class Yard:
    """A crowded cluster; every ninth job has priority, and where jobs are deleted every second team is over budget."""

    def __init__(self, machines: int, kind: str) -> None:
        self.kind = kind
        self.chance = random.Random(7)
        self.manager = GpuResourceManager()
        self.numbers = 0
        self.small: list[tuple[JobUniqueIdentifier, str]] = []
        self.capacity_milli = 1_000 * DEVICES * machines
        for number in range(machines):
            self.manager.set_machine(Machine(f"gpu-{number:04}", DEVICES))
        for team in range(TEAMS):
            self.manager.set_budget(Budget(f"team-{team}", 0))
        self.manager.set_budget(Budget("asking", self.capacity_milli))
        self.fill()
        self.let_end(ENDING.get(kind, 0.0))
        if kind == BOTH:
            self.empty(EMPTIED)
        for team in range(TEAMS):
            is_over = kind in (DELETED, BOTH) and team % 2
            self.manager.set_budget(Budget(f"team-{team}", 0 if is_over else self.capacity_milli))

    def settle(self, path: Path) -> None:
        """From memory, where it was filled, to the disk."""
        store = open_store(path)
        store.open()
        with closing(store):
            while entries := self.manager._log._store.read(store.last_seq(), BATCH):
                store.append(entries)
        self.manager.close()
        self.manager = GpuResourceManager(str(path))

    def fill(self) -> None:
        """Until not even a small job finds room."""
        sizes = list(SIZES)
        while sizes:
            size = self.chance.choice(sizes)
            try:
                self.add(self.team_for(size), size, priority=self.numbers % 9 == 0)
            except ProvisionError:
                sizes = [one for one in sizes if one != size]

    def team_for(self, size: str) -> str:
        """Where jobs are to be moved, too, teams that are over their budgets have small jobs only."""
        team = self.numbers % TEAMS
        return f"team-{team - team % 2 if self.kind == BOTH and float(size) > 1 else team}"

    def empty(self, devices: int) -> None:
        """So many devices that one job has to itself."""
        alone = [view.id for view in self.manager.jobs() if view.amount_milli == SMALL_MILLI]
        for id in self.chance.sample(alone, devices):
            self.end(id)

    def let_end(self, share: float) -> None:
        for view in self.manager.jobs():
            if view.amount_milli <= SMALL_MILLI and self.chance.random() < share:
                self.end(view.id)

    def end(self, id: JobUniqueIdentifier) -> None:
        self.manager.job_ended(id)
        self.small = [one for one in self.small if one[0] != id]

    def add(self, team: str, size: str, *, priority: bool = False) -> None:
        self.numbers += 1
        id = JobUniqueIdentifier(job=f"job-{self.numbers}", team=team)
        (create,) = self.manager.try_provision_resources(id, size, priority=priority)
        self.manager.confirm(create.plan, create.number)
        if create.amount_milli <= SMALL_MILLI:
            self.small.append((id, size))

    def churn(self) -> None:
        """Small jobs end, and others of the same sizes begin, best fit, wherever there is room then."""
        leaving = self.chance.sample(self.small, CHURN)
        for id, _ in leaving:
            self.end(id)
        for id, size in leaving:
            self.add(id.team, size)

    def sample(self) -> Clocks | None:
        """Of one call; None if it was of another kind."""
        self.churn()
        self.numbers += 1
        id = JobUniqueIdentifier(job=f"job-{self.numbers}", team="asking")
        size = self.chance.choice(ASKED[self.kind])
        answer: list[JobAction] = []
        clocks = timed(lambda: answer.extend(self.ask(id, size)))
        if answer:
            self.manager.fail(answer[0].plan, 1)
        return clocks if kind_of(answer) == self.kind else None

    def ask(self, id: JobUniqueIdentifier, size: str) -> list[JobAction]:
        try:
            return self.manager.try_provision_resources(id, size)
        except ProvisionError:
            return []


def kind_of(actions: list[JobAction]) -> str:
    if not actions:
        return REFUSED
    deletes = any(isinstance(action, DeleteJob) for action in actions)
    moves = any(isinstance(action, MoveJob) for action in actions)
    match deletes, moves:
        case False, False:
            return ROOM
        case False, True:
            return MOVED
        case True, False:
            return DELETED
    return BOTH


def timed(work: Callable[[], object]) -> Clocks:
    own, wall = process_time(), perf_counter()
    work()
    return Clocks((perf_counter() - wall) * 1000, (process_time() - own) * 1000)


def sampled(yard: Yard, count: int) -> list[tuple[float, float]]:
    """Raw and calibrated milliseconds of so many calls of the yard's kind."""
    found: list[tuple[float, float]] = []
    loop = timed(calibration_loop)
    for tried in range(4 * count):
        if len(found) == count:
            break
        if tried % CALIBRATE_EVERY == 0:
            loop = timed(calibration_loop)
        call = yard.sample()
        if call is not None:
            shorter = min(call.wall_ms / loop.wall_ms, call.own_ms / loop.own_ms)
            found.append((call.wall_ms, shorter * REFERENCE_MS))
    if len(found) < count // 2:
        raise SystemExit(f"only {len(found)} of {4 * count} calls were what the row is about: {yard.kind}")
    return found


def percentile(values: list[float]) -> float:
    return sorted(values)[min(len(values) * PERCENT // 100, len(values) - 1)]


def kind_row(kind: str, machines: int, count: int) -> Row:
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        yard = Yard(machines, kind)
        yard.settle(Path(folder) / "pool.db")
        with closing(yard.manager):
            jobs = len(yard.manager.jobs())
            gc.collect()
            found = sampled(yard, count)
    limit = ROOM_LIMIT_MS if kind == ROOM else RESHUFFLE_LIMIT_MS
    name = f"{kind}: {machines} x {DEVICES}, {jobs} jobs, p{PERCENT} of {len(found)}"
    return Row(name, "ms", percentile([raw for raw, _ in found]), percentile([ms for _, ms in found]), limit)


def rows(sizes: tuple[int, ...], count: int) -> Iterator[Row]:
    for kind in ASKED:
        for machines in sizes:
            yield kind_row(kind, machines, count)


def arguments(given: list[str]) -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks.vdk", description="Measure the GpuResourceManager.")
    parser.add_argument("--quick", action="store_true", help="a small run, to see that it runs")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    return parser.parse_args(given)


def main(given: list[str]) -> int:
    options = arguments(given)
    # A quarter of the size first, to see how it grows.
    sizes, count = ((QUICK_MACHINES,), 5) if options.quick else ((MACHINES // 4, MACHINES), SAMPLES)
    return report(rows(sizes, count), options.output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
