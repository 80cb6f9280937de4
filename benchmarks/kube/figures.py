"""From what was seen to figures with limits. Pure.

Place in the flow: load ─Trace─▶ **figures** ─Row─▶ the report. What a figure counts from and to stands here, once.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final

import msgspec

from benchmarks.kube.contestants import KUBE, OURS
from benchmarks.kube.load import Kind, Trace
from benchmarks.report import Row

RATE_LIMIT: Final = 0.9
GANG_LIMIT_S: Final = 5
RECLAIM_LIMIT_S: Final = 1
REFUSAL_LIMIT_S: Final = 1
MEMORY_LIMIT_MB: Final = 400
BIND_LIMIT_MS: Final = 100


class Part(StrEnum):
    """What is measured."""

    PODS = "pods"
    GANG = "gang"
    REFUSAL = "refusal"
    RECLAIM = "reclaim"
    LARGE = "large"


class Usage(msgspec.Struct, frozen=True):
    """Processor seconds that went by during a measurement."""

    wall_s: float
    contestant_s: float
    testbed_s: float
    benchmark_s: float
    others_s: float
    """Neighbours on the machine, and the kernel for all of them."""


class Sample(msgspec.Struct, frozen=True):
    """One measurement of one contestant."""

    part: Part
    contestant: str
    round: int
    value: float
    """Pods per second for the plain rate; else seconds."""
    calibrated: float
    usage: Usage
    finished: bool = True
    """Whether all of it happened before the time was over; else it would have taken longer, or is slower."""
    notes: dict[str, str | float] = {}


class AtLeast(Row, frozen=True):
    """A line of the report where more is better."""

    @property
    def missed(self) -> bool:
        return self.calibrated < self.limit


# ---------------------------------------------------------------------------------------------------------- of traces


def pods_per_second(trace: Trace) -> float:
    """From sending the first to the last one bound, as the benchmark's own watch sees it."""
    bound = ours(trace, Kind.BOUND)
    return len(bound) / (max(bound) - min(trace.of(Kind.SENT).values()))


def creating_s(trace: Trace) -> float:
    return max(trace.of(Kind.CREATED).values()) - min(trace.of(Kind.SENT).values())


def gang_s(trace: Trace) -> float:
    """From the moment it is complete to the last of it bound."""
    return max(ours(trace, Kind.BOUND)) - complete(trace)


def refusal_s(trace: Trace) -> float:
    """From the moment the gang is complete until every pod of it says why it waits."""
    return max(ours(trace, Kind.EXPLAINED)) - complete(trace)


def reclaim_s(trace: Trace) -> float:
    """From submitting the pod to the eviction of another."""
    victims = {name: at for name, at in trace.of(Kind.EVICTED).items() if name not in trace.of(Kind.SENT)}
    return min(victims.values()) - min(trace.of(Kind.SENT).values())


def bind_s(trace: Trace) -> float:
    """From the event that tells of a new pod to the one that tells of its node, in the same watch."""
    (name,) = trace.of(Kind.SENT)
    return trace.of(Kind.PLACED)[name] - trace.of(Kind.SEEN)[name]


def complete(trace: Trace) -> float:
    return max(trace.of(Kind.CREATED).values())


def ours(trace: Trace, kind: Kind) -> list[float]:
    """The times of the objects that were created for this measurement."""
    return [at for name, at in trace.of(kind).items() if name in trace.of(Kind.SENT)]


# --------------------------------------------------------------------------------------------------------- of samples


class Median(msgspec.Struct, frozen=True):
    """Of the samples of one contestant in one part."""

    value: float
    calibrated: float
    samples: int
    finished: bool


def median(samples: Iterable[Sample], part: Part, contestant: str) -> Median | None:
    found = [one for one in samples if one.part is part and one.contestant == contestant]
    if not found:
        return None
    value = statistics.median(one.value for one in found)
    calibrated = statistics.median(one.calibrated for one in found)
    return Median(value, calibrated, len(found), all(one.finished for one in found))


LIMITS: Final = {
    Part.GANG: ("a gang of 512 pods, from complete to bound", GANG_LIMIT_S),
    Part.REFUSAL: ("an unschedulable gang of 10 x 8 GPUs, from complete to explained", REFUSAL_LIMIT_S),
    Part.RECLAIM: ("one GPU of a full cluster, from submitted to the eviction", RECLAIM_LIMIT_S),
}


def judged(samples: list[Sample]) -> Iterator[Row]:
    """What gpuyard is held to; a part that was not measured has no line."""
    ratios = rate_ratios(samples)
    if ratios:
        name = f"single-GPU pods: rate over that of kube-scheduler, median of {len(ratios)} rounds"
        ratio = statistics.median(ratios)
        # Both were measured one right after the other on the same machine: there is nothing to calibrate.
        yield AtLeast(name, "x", ratio, ratio, RATE_LIMIT)
    for part, (name, limit) in LIMITS.items():
        found = median(samples, part, OURS)
        if found:
            yield Row(f"{name}, median of {found.samples}", "s", found.value, found.calibrated, limit)


def rate_ratios(samples: Iterable[Sample]) -> list[float]:
    """Round by round: a shared machine is twice as fast in one minute as in the next."""
    rates: dict[tuple[int, str], list[float]] = {}
    for one in samples:
        if one.part is Part.PODS:
            rates.setdefault((one.round, one.contestant), []).append(one.value)
    rounds = sorted({number for number, _ in rates})
    pairs = [(rates.get((number, OURS)), rates.get((number, KUBE))) for number in rounds]
    # All pods of a round over all of its time.
    mean = statistics.harmonic_mean
    return [mean(mine) / mean(theirs) for mine, theirs in pairs if mine and theirs]


TITLES: Final = {
    Part.PODS: "single-GPU pods bound per second",
    Part.GANG: "gang of 512 pods: complete to bound, s",
    Part.REFUSAL: "unschedulable 10 x 8: complete to explained, s",
    Part.RECLAIM: "one GPU reclaimed: submit to eviction, s",
}


def table(samples: list[Sample], contestants: Iterable[str]) -> list[str]:
    """All contestants side by side: measured, and calibrated in brackets."""
    names = list(contestants)
    lines = [f"{'':48}" + "".join(f"{name:>22}" for name in names)]
    for part, title in TITLES.items():
        found = [median(samples, part, name) for name in names]
        if any(found):
            lines.append(f"{title:48}" + "".join(f"{_cell(one):>22}" for one in found))
    return lines


def _cell(found: Median | None) -> str:
    if found is None:
        return "-"
    more = "" if found.finished else "> "
    return f"{more}{found.value:.2f} ({found.calibrated:.2f})"
