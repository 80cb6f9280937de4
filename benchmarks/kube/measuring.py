"""One measurement: an order carried out by a process of its own, with what the machine did meanwhile.

Place in the flow: parts ─Order─▶ **measuring** ─▶ load, and back with the trace. Before and after it, while the testbed
has nothing to do, the calibration loop is run: its processor time tells how fast the machine's clock is. What
neighbours take of the machine is counted and told, but not calibrated away: nobody knows how much faster it would be.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter, process_time
from typing import Final

import msgspec

from benchmarks.calibration import REFERENCE_MS, calibration_loop
from benchmarks.kube.cluster import Cluster
from benchmarks.kube.contestants import TICKS, Running
from benchmarks.kube.figures import Usage
from benchmarks.kube.load import Creation, Order, Trace
from benchmarks.kube.objects import GROUPS_PATH, PODS_PATH, Object

LOOPS: Final = 5
MS: Final = 1000
LOAD: Final = (sys.executable, "-m", "benchmarks.kube.load")


class Measured(msgspec.Struct, frozen=True):
    """What was seen, and how the machine was."""

    trace: Trace
    factor: float
    """By which a time is multiplied to be that of the reference machine."""
    usage: Usage


def measure(cluster: Cluster, running: Running, order: Order) -> Measured:
    before = loop_ms()
    clock, used = perf_counter(), _used(cluster, running)
    trace = carried_out(order)
    later = _used(cluster, running)
    contestant, testbed, machine = (after - earlier for after, earlier in zip(later, used, strict=True))
    others = machine - contestant - testbed - trace.cpu_s
    usage = Usage(perf_counter() - clock, contestant, testbed, trace.cpu_s, others)
    running.check()
    cluster.settle()
    return Measured(trace, REFERENCE_MS / statistics.mean((before, loop_ms())), usage)


def carried_out(order: Order) -> Trace:
    done = subprocess.run(LOAD, input=msgspec.json.encode(order), stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=Trace)


def loop_ms() -> float:
    """Processor milliseconds of the calibration loop, at this moment."""

    def once() -> float:
        began = process_time()
        calibration_loop()
        return (process_time() - began) * MS

    return statistics.median(once() for _ in range(LOOPS))


def _used(cluster: Cluster, running: Running) -> tuple[float, float, float]:
    """Processor seconds so far: of the contestant, of the testbed, of the whole machine."""
    return running.cpu_s(), cluster.cpu_s(), machine_cpu_s()


def machine_cpu_s() -> float:
    """All that all processors have worked since the machine was started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _waiting, irq, soft, _stolen = fields
    return (user + nice + system + irq + soft) / TICKS


def load() -> float:
    """How many wanted a processor in the last minute."""
    return os.getloadavg()[0]


def pods(objects: Iterable[Object]) -> list[Creation]:
    return [_creation(PODS_PATH, each) for each in objects]


def groups(*objects: Object) -> list[Creation]:
    return [_creation(GROUPS_PATH, each) for each in objects]


def _creation(path: str, content: Object) -> Creation:
    return Creation(path, content["metadata"]["name"], msgspec.Raw(msgspec.json.encode(content)))
