"""The Kubernetes scheduler beside kube-scheduler and KAI: `python -m benchmarks.kube.run` (or `make bench-kube`).

One testbed with a real API server and 500 of KWOK's nodes with 8 GPUs each. The contestants take turns, one up at a
time, each with the same pods and the same limit on requests; rounds are interleaved, and of each figure the median
counts. Then gpuyard alone on 2 000 nodes with 20 000 pods. What each figure counts from and to stands in `figures.py`.
Writes `build/bench/kube.json`; ends with 1 if a limit was missed.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Final

import msgspec

from benchmarks.kube import large
from benchmarks.kube.cluster import Cluster, cluster, using
from benchmarks.kube.contestants import CONTESTANTS, KUBE, OURS, Contestant, running
from benchmarks.kube.figures import Part, Sample, judged, table
from benchmarks.kube.measuring import load
from benchmarks.kube.parts import Turn, fill, gang, reclaims, refusal
from benchmarks.peers.toolchain import KAI_PROGRAMS, KAI_VERSION
from benchmarks.report import Row
from gpuyard.testbed.bed import Bed
from gpuyard.testbed.golang import programs_of
from gpuyard.testbed.programs import KUBERNETES_VERSION

OUTPUT: Final = Path("build/bench/kube.json")
LOGS: Final = Path("build/bench/kube")
BED: Final = "bench-kube"
NODES: Final = 500
ROUNDS: Final = 3
COMPARED: Final = (KUBE, OURS)
ON_A_FULL_CLUSTER: Final = (Part.PODS, Part.REFUSAL, Part.RECLAIM)
ENOUGH_S: Final = 60.0
"""What takes a contestant longer than this is not asked of it again."""


def say(message: str) -> None:
    print(f"kube: {message}", flush=True)


# ------------------------------------------------------------------------------------------------------------- rounds


def with_mirror(in_turn: Sequence[Contestant]) -> Iterator[tuple[Contestant, Sequence[Part]]]:
    """Those whose rates are compared stand side by side, and fill once more the other way round: 1 2 2 1.

    The machine is faster in one minute than in the next; whatever it does evenly over the four is the same for both.
    """
    compared = [one for one in in_turn if one.name in COMPARED]
    for contestant in in_turn:
        yield contestant, ON_A_FULL_CLUSTER
        if len(compared) > 1 and contestant is compared[-1]:
            yield from ((one, (Part.PODS,)) for one in reversed(compared))


class Contest:
    """All rounds of all contestants."""

    def __init__(self, found: Cluster, contestants: Sequence[Contestant], parts: Sequence[Part], logs: Path) -> None:
        self._cluster, self._contestants, self._parts, self._logs = found, contestants, parts, logs
        self.samples: list[Sample] = []

    def run(self, rounds: int) -> None:
        for number in range(1, rounds + 1):
            # Each comes first in turn.
            in_turn = self._contestants if number % 2 else self._contestants[::-1]
            for contestant, parts in with_mirror(in_turn):
                if any(self._asked(part, contestant) for part in parts):
                    self._full_cluster(contestant, number, parts)
                    self._cluster.empty()
            for contestant in in_turn:
                if self._asked(Part.GANG, contestant):
                    with self._turn(contestant, number) as turn:
                        self._note(gang(turn))
                    self._cluster.empty()

    def _full_cluster(self, contestant: Contestant, number: int, parts: Sequence[Part]) -> None:
        """Started anew for each part: whoever is still searching for one would be late for the next."""
        with self._turn(contestant, number) as turn:
            self._note(fill(turn))
        if Part.REFUSAL in parts and self._asked(Part.REFUSAL, contestant):
            with self._turn(contestant, number) as turn:
                self._note(refusal(turn))
        if Part.RECLAIM in parts and self._asked(Part.RECLAIM, contestant):
            with self._turn(contestant, number) as turn:
                for sample in reclaims(turn):
                    self._note(sample)

    @contextmanager
    def _turn(self, contestant: Contestant, number: int) -> Iterator[Turn]:
        """The contestant, up and ready in a cluster where nothing else goes on."""
        self._cluster.settle()
        with running(contestant, self._cluster.bed, self._logs) as up:
            self._cluster.wait_ready(contestant, up)
            yield Turn(self._cluster, contestant, up, number)

    def _asked(self, part: Part, contestant: Contestant) -> bool:
        if part not in self._parts or (part is not Part.PODS and not contestant.queues):
            return False
        before = [one for one in self.samples if one.part is part and one.contestant == contestant.name]
        return part is Part.PODS or not any(one.value > ENOUGH_S for one in before)

    def _note(self, sample: Sample) -> None:
        self.samples.append(sample)
        used = sample.usage
        where = f"contestant {used.contestant_s:.1f}, testbed {used.testbed_s:.1f}, others {used.others_s:.1f}"
        end = "" if sample.finished else ", not finished"
        what = f"round {sample.round}, {sample.part} by {sample.contestant}"
        say(
            f"{what}: {sample.value:.3f} (calibrated {sample.calibrated:.3f}{end}); in {used.wall_s:.1f} s CPU: {where}"
        )


# ------------------------------------------------------------------------------------------------------------- report


def show(rows: Sequence[Row]) -> None:
    print(f"{'what':84} {'measured':>10} {'calibrated':>11} {'limit':>7}")
    for row in rows:
        numbers = f"{row.measured:10.2f} {row.calibrated:11.2f} {row.limit:7g} {row.unit}"
        print(f"{row.name:84} {numbers}{'  MISSED' if row.missed else ''}")
    missed = sum(row.missed for row in rows)
    print(f"{missed} limits missed" if missed else "all limits met")


def write(output: Path, options: Namespace, before: float, samples: Sequence[Sample], rows: Sequence[Row]) -> None:
    versions = {"kubernetes": KUBERNETES_VERSION, "kai": KAI_VERSION}
    machine = {"cores": os.cpu_count(), "load_before": before, "load_after": load()}
    content = {
        "versions": versions,
        "machine": machine,
        "nodes": options.nodes,
        "rounds": options.rounds,
        "rows": [{**msgspec.to_builtins(row), "missed": row.missed} for row in rows],
        "samples": msgspec.to_builtins(samples),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(content, indent=2) + "\n")


# --------------------------------------------------------------------------------------------------------------- all


def measured(options: Namespace) -> tuple[list[Sample], list[Row]]:
    contestants = [one for one in CONTESTANTS if one.name not in options.without]
    parts = [Part(name) for name in options.only] or list(Part)
    with chosen_cluster(options) as found:
        found.prepare()
        if any(one.queues for one in contestants):
            found.define(programs_of(KAI_PROGRAMS, say)["kai-crds"])
        found.empty()
        contest = Contest(found, contestants, parts, LOGS)
        contest.run(options.rounds if set(parts) != {Part.LARGE} else 0)
        rows = list(judged(contest.samples))
        print("\n".join(table(contest.samples, [one.name for one in contestants])))
        rows += large_part(found, contestants, parts, options.large)
        return contest.samples, rows


def chosen_cluster(options: Namespace) -> AbstractContextManager[Cluster]:
    if options.bed:
        return using(Bed.named(options.bed), options.nodes)
    return cluster(BED, options.nodes, say)


def large_part(found: Cluster, contestants: Sequence[Contestant], parts: Sequence[Part], nodes: int) -> Iterator[Row]:
    mine = [one for one in contestants if one.name == OURS]
    if Part.LARGE in parts and mine:
        yield from large.large_rows(found, mine[0], nodes, LOGS, say)


def main(arguments: list[str]) -> int:
    parser = ArgumentParser(prog="benchmarks.kube.run", description=__doc__)
    parser.add_argument("--only", action="append", default=[], choices=[*Part], metavar="PART", help=", ".join(Part))
    parser.add_argument("--without", action="append", default=[], choices=[one.name for one in CONTESTANTS])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--nodes", type=int, default=NODES, help="nodes of KWOK's")
    parser.add_argument("--large", type=int, default=large.NODES, metavar="NODES", help="how many for the last part")
    parser.add_argument("--bed", default="", metavar="NAME", help="a testbed that is up already, with these nodes")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args(arguments)
    LOGS.mkdir(parents=True, exist_ok=True)
    before, began = load(), perf_counter()
    say(f"{os.cpu_count()} cores, load {before:.1f} before the first measurement")
    samples, rows = measured(options)
    show(rows)
    write(options.output, options, before, samples, rows)
    say(f"done in {(perf_counter() - began) / 60:.0f} min; load {load():.1f}")
    return 1 if any(row.missed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
