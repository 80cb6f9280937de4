"""What the scheduler did, in the words of KAI's demo: every line follows from decisions in the log, none is made up.

Place in the flow: decision log ─Decision─▶ **lines** ─▶ terminal, docs. Pure. Invariants: the same log gives the same
lines; a sentence of the demo that is not true of a log does not appear, what is true instead does.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from gpuyard.kaidemo.decisions import Amount, Decision, Roomiest

CROWDED: Final = frozenset({"NotEnough", "Fragmented"})
"""Reasons to wait that say: no node has as many GPUs free as are asked for."""

ALLOCATE: Final = "allocate"
PHASES: Final = {
    ALLOCATE: "allocation",
    "consolidate": "consolidation",
    "reclaim": "reclaim",
    "preempt": "preemption",
}
INITIATING: Final = {
    "consolidate": "Initiating resource consolidation",
    "reclaim": "Initiating reclaim of what its queue is owed",
    "preempt": "Initiating preemption",
}
_PLANNED: Final = frozenset({"phase", "bind", "move", "evict", "promise", "waits"})
"""What a cycle decides, all at once; everything else happens in its own time."""


class Kind(enum.Enum):
    """What a line tells."""

    SUBMITTED = enum.auto()
    PHASE = enum.auto()
    ATTEMPT = enum.auto()
    DETAIL = enum.auto()
    ALLOCATION = enum.auto()
    OUTCOME = enum.auto()


class Line(msgspec.Struct, frozen=True):
    kind: Kind
    text: str


def lines_of(decisions: Iterable[Decision]) -> Iterator[str]:
    """Everything that happened, in paragraphs."""
    telling, paragraphs = Telling(), Paragraphs()
    for decision in decisions:
        yield from paragraphs.of(telling.hear(decision))
    yield from paragraphs.of(telling.rest())


def allocations_of(decisions: Iterable[Decision]) -> Iterator[str]:
    """Only who got how many GPUs where."""
    telling = Telling()
    for decision in decisions:
        yield from allocations(telling.hear(decision))
    yield from allocations(telling.rest())


def allocations(lines: Iterable[Line]) -> list[str]:
    return [line.text for line in lines if line.kind is Kind.ALLOCATION]


class Paragraphs:
    """Puts an empty line where something new begins."""

    def __init__(self) -> None:
        self._last: Kind | None = None

    def of(self, lines: Iterable[Line]) -> Iterator[str]:
        for line in lines:
            if self._begins(line.kind):
                yield ""
            self._last = line.kind
            yield line.text

    def _begins(self, kind: Kind) -> bool:
        match kind:
            case Kind.SUBMITTED | Kind.PHASE:
                return self._last not in (None, kind)
            case Kind.ATTEMPT:
                return self._last not in (None, Kind.PHASE)
            case _:
                return False


# -------------------------------------------------------------------------------------------------------------- telling


class Telling:
    """Hears one decision after the other. Those of one cycle are told together, because a gang has many pods."""

    def __init__(self) -> None:
        self._gpus: dict[str, Amount] = {}
        """By job, what it asks for in all."""
        self._promised_to: set[str] = set()
        """Jobs that were promised a place and have not got it yet."""
        self._moving: set[str] = set()
        """Jobs that are on their way from one node to another; their pods go and come again."""
        self._said: dict[str, str] = {}
        """By waiting job, why; the same is not told again in every cycle."""
        self._binding: dict[str, Binding] = {}
        self._cycle: list[Decision] = []

    def hear(self, decision: Decision) -> list[Line]:
        """What can be told now; the cycle the decision belongs to may not be complete yet."""
        if decision.event not in _PLANNED:
            return [*self.rest(), *self._happened(decision)]
        told = self.rest() if self._cycle and self._cycle[0].cycle != decision.cycle else []
        self._cycle.append(decision)
        return told

    def rest(self) -> list[Line]:
        """What was held back, because more of the same cycle might have come."""
        cycle, self._cycle = self._cycle, []
        return list(self._decided(Page.of(cycle)))

    @property
    def under_way(self) -> bool:
        """Whether somebody has been given a place and has not come there yet."""
        return bool(self._promised_to or self._moving or self._binding)

    # ------------------------------------------------------------------------------------------------ what has happened

    def _happened(self, decision: Decision) -> Iterator[Line]:
        match decision.event:
            case "submitted" if decision.job not in self._moving:
                self._gpus[decision.job] = decision.gpus
                rank = "" if decision.queue_priority is None else f", Priority {decision.queue_priority}"
                about = f"{decision.queue_name or decision.queue}{rank}"
                yield Line(Kind.SUBMITTED, f"New workload submitted: {name(decision.job)} ({about})")
            case "bound":
                yield from self._bound(decision)
            case "failed":
                self._binding.pop(decision.job, None)
                yield Line(Kind.OUTCOME, f"{name(decision.job)} does not start on {decision.node}: {decision.why}")
            case "gone":
                self._forget(decision.job)

    def _bound(self, decision: Decision) -> Iterator[Line]:
        """A job is told of once, when the last of its pods has its place."""
        binding = self._binding.get(decision.job)
        if binding is None:
            return
        binding.tasks.discard(decision.task)
        if not binding.tasks:
            del self._binding[decision.job]
            places = " and ".join(title(node) for node in binding.nodes)
            yield Line(Kind.OUTCOME, f"{self._titled(decision.job)} scheduled on {places}")

    def _forget(self, job: str) -> None:
        if job not in self._moving:
            for known in (self._gpus, self._said, self._binding):
                known.pop(job, None)
        self._promised_to.discard(job)

    # --------------------------------------------------------------------------------------------- what a cycle decided

    def _decided(self, page: Page) -> Iterator[Line]:
        tried = [*self._placed(page), *self._kept_waiting(page), *self._promised(page), *self._made_to_wait(page)]
        if any(line.kind is Kind.ATTEMPT for line in tried):
            yield heading(ALLOCATE)
        yield from tried
        for phase, decisions in page.later:
            yield heading(phase)
            yield from self._made_room(decisions)

    def _placed(self, page: Page) -> Iterator[Line]:
        """Jobs that got a place as things are."""
        for job, binds in by_job(page.binds).items():
            if not self._is_expected(job):
                yield self._attempt(job, binds)
                yield Line(Kind.DETAIL, found(binds))
            self._said.pop(job, None)
            self._promised_to.discard(job)
            self._moving.discard(job)
            self._binding[job] = Binding({bind.task for bind in binds}, list(on_nodes(binds)))
            for node, there in on_nodes(binds).items():
                yield Line(Kind.ALLOCATION, f"Allocating {gpus(total(there))} to {name(job)} on node {node}")

    def _kept_waiting(self, page: Page) -> Iterator[Line]:
        """Jobs for which nothing could be done."""
        for waits in page.waits:
            if self._is_expected(waits.job) or self._said.get(waits.job) == waits.text:
                continue
            self._said[waits.job] = waits.text
            yield self._attempt(waits.job, [waits])
            crowded = bool(waits.reasons) and all(reason.token in CROWDED for reason in waits.reasons)
            if crowded:
                yield Line(Kind.DETAIL, "Insufficient contiguous GPUs on any node")
            why = "insufficient resources" if crowded else waits.text
            yield Line(Kind.OUTCOME, f"{self._titled(waits.job)} pending - {why}")

    def _promised(self, page: Page) -> Iterator[Line]:
        """Jobs that get a place of somebody who is leaving anyway."""
        for job, promises in by_job(page.promises).items():
            if self._is_expected(job):
                continue
            self._promised_to.add(job)
            yield self._attempt(job, promises)
            for node, there in on_nodes(promises).items():
                yield Line(Kind.DETAIL, f"Holding {gpus(total(there))} for {name(job)} on {node}, once they are free")

    def _made_to_wait(self, page: Page) -> Iterator[Line]:
        """Jobs for which others had to go or move first."""
        for phase, decisions in page.later:
            for job, places in by_job(placements(decisions)).items():
                need, roomiest = total(places), places[0].roomiest
                yield self._attempt(job, places)
                yield Line(Kind.DETAIL, no_room(need, roomiest))
                yield Line(Kind.OUTCOME, f"{self._titled(job)} pending - {why_pending(need, roomiest)}")
                yield Line(Kind.DETAIL, INITIATING.get(phase, f"Initiating {phase}"))

    def _made_room(self, decisions: Sequence[Decision]) -> Iterator[Line]:
        served = by_job(placements(decisions))
        for job, places in served.items():
            made = [one for one in decisions if one.beneficiary == job and one.event in ("move", "evict")]
            yield from self._left(made)
            for node, there in on_nodes(places).items():
                yield from created(node, there, made)
                yield Line(Kind.DETAIL, f"Scheduling {name(job)} ({gpus(total(there))}) on {node}")
            self._promised_to.add(job)
        yield from self._left(
            [one for one in decisions if one.event in ("move", "evict") and one.beneficiary not in served]
        )

    def _left(self, decisions: Sequence[Decision]) -> Iterator[Line]:
        for job, moves in by_job([one for one in decisions if one.event == "move"]).items():
            self._moving.add(job)
            for (source, node), there in along(moves).items():
                yield Line(Kind.DETAIL, f"Moving {name(job)} ({gpus(total(there))}) from {source} to {node}")
        for job, evictions in by_job([one for one in decisions if one.event == "evict"]).items():
            for node, there in on_nodes(evictions).items():
                yield Line(Kind.DETAIL, f"Evicting {name(job)} ({gpus(total(there))}) from {node}{because(there[0])}")

    # ------------------------------------------------------------------------------------------------------------ words

    def _attempt(self, job: str, decisions: Sequence[Decision]) -> Line:
        # Of a gang not all pods were there when it was first seen.
        self._gpus[job] = max(self._gpus.get(job, 0), total(decisions))
        return Line(Kind.ATTEMPT, f"Attempting to schedule {name(job)} ({gpus(self._gpus[job])})")

    def _is_expected(self, job: str) -> bool:
        return job in self._promised_to or job in self._moving

    def _titled(self, job: str) -> str:
        return f"{title(name(job))} ({gpus(self._gpus.get(job, 0))})"


class Binding:
    """Pods of a job that are on their way to nodes."""

    def __init__(self, tasks: set[str], nodes: list[str]) -> None:
        self.tasks = tasks
        self.nodes = nodes


class Page(msgspec.Struct, frozen=True):
    """What one cycle decided, sorted: who got a place as things are, who waits, and what was done for whom."""

    binds: tuple[Decision, ...]
    promises: tuple[Decision, ...]
    waits: tuple[Decision, ...]
    later: tuple[tuple[str, tuple[Decision, ...]], ...]

    @classmethod
    def of(cls, cycle: Sequence[Decision]) -> Page:
        """A place that others had to leave belongs to the phase in which they had to."""
        gave, phase = {}, ALLOCATE
        phases: dict[str, list[Decision]] = {}
        plain: list[Decision] = []
        for decision in cycle:
            if decision.event == "phase":
                phase = decision.phase
            elif decision.event in ("move", "evict"):
                gave[decision.beneficiary] = phase
                phases.setdefault(phase, []).append(decision)
        for decision in placements(cycle):
            phases[gave[decision.job]].append(decision) if decision.job in gave else plain.append(decision)
        return cls(
            tuple(one for one in plain if one.event == "bind"),
            tuple(one for one in plain if one.event == "promise"),
            tuple(one for one in cycle if one.event == "waits"),
            tuple((phase, tuple(found)) for phase, found in phases.items()),
        )


def heading(phase: str) -> Line:
    return Line(Kind.PHASE, f"Starting {PHASES.get(phase, phase)} phase")


def found(binds: Sequence[Decision]) -> str:
    """Where there was room, and how much of it."""
    places = {node: there[0].free_before for node, there in on_nodes(binds).items()}
    rooms = [node if free is None else f"{node} ({gpus(free)} available)" for node, free in places.items()]
    return f"Found suitable node{'s' if len(rooms) > 1 else ''}: {', '.join(rooms)}"


def created(node: str, places: Sequence[Decision], made: Sequence[Decision]) -> Iterator[Line]:
    """What is free on a node once everybody who must leave it has left."""
    leaving = total([one for one in made if node in (one.source, one.node) and node != one.to])
    free = places[0].free_before
    if leaving and free is not None:
        yield Line(Kind.DETAIL, f"Creating {number(free + leaving)} contiguous GPUs on {node}")


def no_room(need: Amount, roomiest: Roomiest | None) -> str:
    if roomiest is None:
        return "No place as things are"
    if roomiest.free < need:
        return "Insufficient contiguous GPUs on any node"
    if roomiest.free == roomiest.gpus:
        return f"{roomiest.node} is empty ({gpus(roomiest.free)} available), but whole nodes are kept free"
    return f"{roomiest.node} has {gpus(roomiest.free)} available, but cannot be had"


def why_pending(need: Amount, roomiest: Roomiest | None) -> str:
    if roomiest is None or roomiest.free < need:
        return "insufficient resources"
    return f"{title(roomiest.node)} {'is kept free' if roomiest.free == roomiest.gpus else 'cannot be had'}"


def because(eviction: Decision) -> str:
    if eviction.beneficiary:
        return f" for {name(eviction.beneficiary)}"
    return f": {eviction.text}" if eviction.text else ""


# ------------------------------------------------------------------------------------------------------------- grouping


def placements(decisions: Sequence[Decision]) -> list[Decision]:
    return [one for one in decisions if one.event in ("promise", "bind")]


def by_job(decisions: Sequence[Decision]) -> dict[str, list[Decision]]:
    grouped: dict[str, list[Decision]] = {}
    for one in decisions:
        grouped.setdefault(one.job, []).append(one)
    return grouped


def on_nodes(decisions: Sequence[Decision]) -> dict[str, list[Decision]]:
    grouped: dict[str, list[Decision]] = {}
    for one in decisions:
        grouped.setdefault(one.node, []).append(one)
    return grouped


def along(moves: Sequence[Decision]) -> dict[tuple[str, str], list[Decision]]:
    grouped: dict[tuple[str, str], list[Decision]] = {}
    for one in moves:
        grouped.setdefault((one.source, one.to), []).append(one)
    return grouped


def total(decisions: Sequence[Decision]) -> Amount:
    return sum(one.gpus for one in decisions)


# ---------------------------------------------------------------------------------------------------------------- words


def name(job: str) -> str:
    """`project-a/job/training-job-1` is called training-job-1."""
    return job.rpartition("/")[2]


def title(text: str) -> str:
    """`training-job-b` is Training Job B, `node-3` is Node 3."""
    return " ".join(word[:1].upper() + word[1:] for word in text.split("-"))


def gpus(amount: Amount) -> str:
    return f"{number(amount)} GPU{'' if amount == 1 else 's'}"


def number(amount: Amount) -> str:
    return f"{amount:g}"
