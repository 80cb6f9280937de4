"""What the scheduler does, in numbers, as Prometheus reads them.

Place in the flow: scheduler ─**metrics**─text─▶ Prometheus. Names of metrics are only ever added.
Invariant: no label holds the name of a job or a pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpuyard import __version__
from gpuyard.loop.stand_ins import Kind
from gpuyard.model.quantities import MILLI

if TYPE_CHECKING:
    from gpuyard.kube.scheduler import Scheduler

Sample = tuple[dict[str, str], float]


def metrics_text(scheduler: Scheduler) -> str:
    return "\n".join((*_lines(scheduler), ""))


def _lines(scheduler: Scheduler) -> Iterator[str]:
    counts, writer = scheduler.counts, scheduler.writer
    yield from _metric("build_info", "gauge", "The version that runs.", [({"version": __version__}, 1)])
    yield from _metric("leader", "gauge", "1 where this process leads.", [({}, scheduler.leadership.holds())])
    yield from _metric("cycles_total", "counter", "Cycles planned.", [({}, scheduler.cycles)])
    yield from _metric("plan_seconds", "gauge", "How long the last plan took.", [({}, scheduler.plan_ms / 1000)])
    yield from _metric("cycle_seconds", "gauge", "How long the last cycle took.", [({}, scheduler.cycle_ms / 1000)])
    yield from _metric("binds_total", "counter", "Pods bound.", [({}, counts["bound"])])
    yield from _metric("bind_failures_total", "counter", "Pods not bound.", [({}, counts["bind_failed"])])
    evictions = [({"reason": word.removeprefix("evicted:")}, n) for word, n in counts.items() if word[:8] == "evicted:"]
    yield from _metric("evictions_total", "counter", "Pods made to give way, by rule.", evictions)
    yield from _metric("evictions_refused_total", "counter", "Evictions refused.", [({}, counts["eviction_failed"])])
    yield from _metric("requests_total", "counter", "Requests that write.", [({}, writer.written)])
    yield from _metric("writes_waiting", "gauge", "Writes that wait for their turn.", [({}, writer.waiting)])
    yield from _metric("pods", "gauge", "Pods known.", [({}, len(scheduler.picture.pods))])
    yield from _metric("nodes", "gauge", "Nodes known.", [({}, len(scheduler.picture.nodes))])
    yield from _queues(scheduler)


def _queues(scheduler: Scheduler) -> Iterator[str]:
    loop = scheduler.loop
    if loop is None:
        return
    books = loop.ledger.queues
    held = [({"queue": frame.name}, books.held[frame.at][0] / MILLI) for frame in books.frames]
    asked = [({"queue": frame.name}, books.asked[frame.at][0] / MILLI) for frame in books.frames]
    containment, paused = loop.containment, loop.containment.pause is not None
    counts = Counter(str(one.subject.kind) for one in containment.left)
    out = [({"kind": str(kind)}, counts[str(kind)]) for kind in Kind]
    yield from _metric("planning_failures_total", "counter", "Exceptions of planning.", [({}, containment.failures)])
    yield from _metric("planning_paused", "gauge", "1 while nothing can be planned.", [({}, paused)])
    yield from _metric("left_out_of_planning", "gauge", "What planning fails with, or is out of range.", out)
    waiting = sum(len(entry.jobs) for entry in loop.last.waiting)
    yield from _metric("queue_gpus_held", "gauge", "GPUs a queue holds.", held)
    yield from _metric("queue_gpus_asked", "gauge", "GPUs its waiting jobs ask for.", asked)
    yield from _metric("jobs_waiting", "gauge", "Jobs that wait.", [({}, waiting)])


def _metric(name: str, kind: str, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    full = f"gpuyard_kube_{name}"
    yield f"# HELP {full} {text}"
    yield f"# TYPE {full} {kind}"
    for labels, value in samples:
        shown = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        yield f"{full}{{{shown}}} {value:g}" if shown else f"{full} {float(value):g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
