"""KAI and gpuyard on the same clusters, in one run on this machine: `python -m benchmarks.peers.run`.

What is measured is one scheduling cycle in memory, on both sides: building the structures from objects that are
already loaded, and the steps named. Loading files, starting processes and talking to an API server are not. KAI's
cycle is opening a session and executing its actions; every write it makes is answered at once. Calibrated and compared
is the shorter of wall time and processor time: neighbours on the machine lengthen the one, and work done beside on a
second core (KAI's garbage collection) the other. A cycle of either side that does not do what the shape is about is
marked with `!`, and has no ratio. Writes `build/bench/peers.json`.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import statistics
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final, NamedTuple

import msgspec

from benchmarks.calibration import REFERENCE_MS, calibration_loop
from benchmarks.peers.snapshot import Settings, write_zip
from benchmarks.peers.toolchain import KAI_VERSION, kai_cycle, say
from benchmarks.shapes import MOVING, PLACING, RECLAIMING, Counts, Expected, Shape, owed_too_little
from benchmarks.subjects import Cycle, counts
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import Policy, Step

OUTPUT: Final = Path("build/bench/peers.json")
WORK: Final = Path("build/bench/peers")
LIMIT_S: Final = 300
LOADING_S: Final = 30
"""What reading the snapshot may take on top; it is not counted."""
REPEATS: Final = 5
ENOUGH_S: Final = 10
"""No further cycle of the peer is begun after this time: one that takes minutes is run once."""
LOOPS: Final = 3
LOAD: Final = "load"
MS: Final = 1000


class Contest(msgspec.Struct, frozen=True):
    """A cluster both are measured on."""

    shape: Shape
    settings: Settings = Settings()
    steps: tuple[Step, ...] | None = None
    """The steps both take, where they are not those of the shape."""

    def policy(self) -> Policy:
        policy = self.shape.policy(self.shape.jobs)
        return policy if self.steps is None else msgspec.structs.replace(policy, steps=self.steps)


class Times(NamedTuple):
    """One cycle on both clocks, in milliseconds."""

    wall: float
    cpu: float

    @property
    def shorter(self) -> float:
        """The nearer to what an idle machine would show."""
        return min(self)


class Measurement(msgspec.Struct, frozen=True):
    """What one side took and did. A cycle that was stopped took longer than its times, and did nothing."""

    ms: float
    cpu_ms: float
    calibrated_ms: float
    """Of the shorter of the two."""
    did: Counts
    as_expected: bool
    stopped: bool = False


class Row(msgspec.Struct, frozen=True):
    """One line of the report."""

    shape: str
    kai: Measurement
    gpuyard: Measurement

    def ratio(self) -> float | None:
        """How many times as long the peer takes; for one that was stopped, at least."""
        if not self.gpuyard.as_expected or not (self.kai.as_expected or self.kai.stopped):
            return None
        return self.kai.calibrated_ms / self.gpuyard.calibrated_ms


# ------------------------------------------------------------------------------------------------------- contests


def resized(shape: Shape, name: str, nodes: int, jobs: int) -> Shape:
    return msgspec.structs.replace(shape, name=name, nodes=nodes, jobs=jobs)


def one_gpu_more(shape: Shape, name: str) -> Shape:
    """The twin in which the same search ends well: both sides must be able to say yes as well as no."""
    assert shape.control
    build, expect = shape.control
    return msgspec.structs.replace(shape, name=name, build=build, expect=expect, control=None)


JOBS, GANGS, *_ = PLACING
MIXED, MANY_MOVES, FEW_MOVES = MOVING
LENT, SCATTERED, TOO_LITTLE, *_ = RECLAIMING
MOVES_ONLY: Final = (Step.ALLOCATE, Step.CONSOLIDATE)
CONTESTS: Final = (
    Contest(JOBS),
    Contest(GANGS),
    Contest(MIXED),
    # With any bound, KAI looks at so many jobs picked at random, and never finds the seven that share a node.
    Contest(MANY_MOVES, Settings(max_preemptees=-1), MOVES_ONLY),
    # KAI has no budget for a cycle; two jobs of each of the four queues are the same eight jobs helped.
    Contest(FEW_MOVES, Settings(max_preemptees=-1, consolidated_per_queue=2), MOVES_ONLY),
    Contest(resized(LENT, "reclaim 50 of 100 nodes", 100, 50)),
    Contest(resized(SCATTERED, "reclaim 50 of 100 nodes from scattered gangs", 100, 50)),
    Contest(TOO_LITTLE),
    Contest(msgspec.structs.replace(TOO_LITTLE, name="owed 79 GPUs, asks for 80, 100 nodes", build=owed_too_little)),
    Contest(one_gpu_more(TOO_LITTLE, "80 of 80 GPUs to reclaim, 100 nodes")),
    Contest(LENT),
    Contest(SCATTERED),
)


# ------------------------------------------------------------------------------------------------------ measuring


def measured_row(contest: Contest, program: Path) -> Row:
    shape = contest.shape
    snapshot = shape.build(shape.nodes, shape.jobs)
    return Row(shape.name, peer(contest, snapshot, program), ours(contest, snapshot))


def ours(contest: Contest, snapshot: Snapshot) -> Measurement:
    expected = contest.shape.expect(contest.shape.nodes, contest.shape.jobs)
    cycle = Cycle(snapshot, contest.policy(), expected)
    did = counts(cycle.run())
    before = calibration()
    taken = [timed(cycle.run) for _ in range(REPEATS)]
    return measurement(taken, statistics.mean((before, calibration())), did, expected)


def peer(contest: Contest, snapshot: Snapshot, program: Path) -> Measurement:
    expected = contest.shape.expect(contest.shape.nodes, contest.shape.jobs)
    zipped = WORK / "snapshot.zip"
    write_zip(zipped, snapshot, contest.policy(), contest.settings)
    before, used = calibration(), children_cpu_ms()
    taken, did = cycles(bounded_run(program, zipped))
    loop_ms = statistics.mean((before, calibration()))
    if did is None:
        stopped = [Times(LIMIT_S * MS, children_cpu_ms() - used)]
        return msgspec.structs.replace(measurement(stopped, loop_ms, Counts(), expected), stopped=True)
    return measurement(taken, loop_ms, did, expected)


def measurement(taken: list[Times], loop_ms: float, did: Counts, expected: Expected) -> Measurement:
    wall, cpu = (statistics.median(column) for column in zip(*taken, strict=True))
    shorter = statistics.median(times.shorter for times in taken)
    return Measurement(wall, cpu, shorter * REFERENCE_MS / loop_ms, did, expected.met_by(did))


def timed(work: Callable[[], object]) -> Times:
    gc.collect()
    wall, cpu = perf_counter(), process_time()
    work()
    return Times((perf_counter() - wall) * MS, (process_time() - cpu) * MS)


def calibration() -> float:
    """Processor milliseconds of the calibration loop, at this moment."""
    return statistics.median(timed(calibration_loop).cpu for _ in range(LOOPS))


def children_cpu_ms() -> float:
    """What the processes this one has started and seen end have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * MS


def bounded_run(program: Path, zipped: Path) -> str:
    """What the program printed until it ended or its time was over."""
    command = [str(program), "-snapshot", str(zipped), "-repeats", str(REPEATS), "-enough", f"{ENOUGH_S}s"]
    output, errors = WORK / "output.json", WORK / "errors.txt"
    with output.open("w") as out, errors.open("w") as err, subprocess.Popen(command, stdout=out, stderr=err) as process:
        try:
            code = process.wait(LIMIT_S + LOADING_S)
        except subprocess.TimeoutExpired:
            code = 0
        finally:
            # Also when this program is interrupted: the peer would go on for minutes. One that has ended is left alone.
            process.kill()
    if code:
        raise SystemExit(f"the peer ended with {code}: see {errors}")
    return output.read_text()


def cycles(output: str) -> tuple[list[Times], Counts | None]:
    """The times of the whole cycles, and what the last one did; None where none was finished."""
    taken: list[Times] = []
    did: Counts | None = None
    running = Times(0, 0)
    for said in map(json.loads, output.splitlines()):
        if said.get("stage") == LOAD:
            continue
        if "stage" in said:
            running = Times(running.wall + said["ms"], running.cpu + said["cpu_ms"])
        else:
            taken.append(running)
            did, running = msgspec.convert(said, Counts), Times(0, 0)
    return taken, did


# ------------------------------------------------------------------------------------------------------ reporting

HEADER: Final = (
    f"{'':46} {'KAI':>28} {'gpuyard':>28}\n"
    f"{'shape':46} {'ms':>8} {'CPU':>8} {'calibr.':>10} {'ms':>8} {'CPU':>8} {'calibr.':>10} {'ratio':>8}  did"
)


def line(row: Row) -> str:
    mine = f"{row.gpuyard.ms:8.1f} {row.gpuyard.cpu_ms:8.1f} {row.gpuyard.calibrated_ms:10.1f}"
    what = f"{done('KAI', row.kai)}; {done('gpuyard', row.gpuyard)}"
    return f"{row.shape:46} {peer_times(row.kai)} {mine} {ratio_text(row):>8}  {what}"


def peer_times(kai: Measurement) -> str:
    wall = f"> {LIMIT_S} s" if kai.stopped else f"{kai.ms:.0f}"
    return f"{wall:>8} {kai.cpu_ms:8.0f} {kai.calibrated_ms:10.0f}"


def ratio_text(row: Row) -> str:
    ratio = row.ratio()
    if ratio is None:
        return "-"
    return f"> {ratio:.0f}x" if row.kai.stopped else f"{ratio:.0f}x"


def done(who: str, side: Measurement) -> str:
    if side.stopped:
        return f"{who}: stopped"
    parts = [f"{count} {name}" for name, count in msgspec.structs.asdict(side.did).items() if count]
    return f"{who}: {', '.join(parts) or 'nothing'}{'' if side.as_expected else '!'}"


def written(row: Row) -> dict[str, Any]:
    ratio = row.ratio()
    return {**msgspec.to_builtins(row), "ratio": None if ratio is None else round(ratio, 1)}


def report(contests: tuple[Contest, ...], output: Path) -> None:
    program = kai_cycle()
    WORK.mkdir(parents=True, exist_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    say(f"KAI {KAI_VERSION} beside gpuyard: one cycle in memory, no API server, no loading")
    say(f"{os.cpu_count()} cores, load {load:.1f} before the first measurement")
    print(HEADER)
    rows = []
    for contest in contests:
        row = measured_row(contest, program)
        print(line(row), flush=True)
        rows.append(written(row))
    output.write_text(json.dumps({"kai": KAI_VERSION, "load_before": load, "rows": rows}, indent=2) + "\n")


def main(given: list[str]) -> int:
    parser = ArgumentParser(prog="python -m benchmarks.peers.run", description="Measure KAI beside gpuyard.")
    parser.add_argument(
        "--shape", action="append", default=[], metavar="SHAPE", help="only those with this in the name"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    args = parser.parse_args(given)
    chosen = tuple(
        contest for contest in CONTESTS if not args.shape or any(s in contest.shape.name for s in args.shape)
    )
    report(chosen, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
