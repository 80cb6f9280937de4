"""The schedulers that are compared, as processes of this machine.

Place in the flow: run ─▶ **contestants** ─▶ processes that talk to the testbed's API server as its admin. All of them
may ask it equally often; everything else is as their authors have set it. One is up only while it is measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import msgspec

from benchmarks.peers.toolchain import KAI_PROGRAMS, say
from gpuyard.testbed.bed import Bed
from gpuyard.testbed.golang import programs_of
from tests.ports import free_ports

QPS: Final = 1000
BURST: Final = 1000
END_S: Final = 20.0
KIB: Final = 1024
TICKS: Final = os.sysconf("SC_CLK_TCK")

KUBE: Final = "kube-scheduler"
OURS: Final = "gpuyard"
KAI: Final = "KAI"

Commands = Callable[[Bed], list[list[str]]]


class Contestant(msgspec.Struct, frozen=True):
    """One scheduler: what its pods name, and the programs it is made of."""

    name: str
    scheduler: str
    """As it stands in its pods."""
    commands: Commands
    queues: bool = True
    """Whether it knows gangs and queues, so that more than the plain rate can be asked of it."""


def kube_scheduler(bed: Bed) -> list[list[str]]:
    rate = (f"--kube-api-qps={QPS}", f"--kube-api-burst={BURST}")
    program = str(bed.record.program("kube-scheduler"))
    return [[program, f"--kubeconfig={bed.kubeconfig}", "--leader-elect=false", "--secure-port=0", *rate]]


def gpuyard(bed: Bed) -> list[list[str]]:
    rate = ("--qps", str(QPS), "--burst", str(BURST))
    program = (sys.executable, "-m", "gpuyard", "kube", "scheduler")
    return [[*program, "--kubeconfig", str(bed.kubeconfig), "--no-leader-elect", "--no-pages", *rate]]


def kai(_: Bed) -> list[list[str]]:
    """Its scheduler, its binder and what groups pods; what only writes down sums is left out, in its favour."""
    programs = programs_of(KAI_PROGRAMS, say)
    rate = (f"--qps={QPS}", f"--burst={BURST}")
    metrics, plugins = free_ports(2)
    ports = (f"--listen-address=127.0.0.1:{metrics}", f"--plugin-server-port={plugins}")
    silent = ("--metrics-bind-address=0", "--health-probe-bind-address=0")
    return [
        [str(programs["kai-scheduler"]), *rate, *ports],
        [str(programs["kai-binder"]), *rate, *silent],
        [str(programs["kai-podgrouper"]), *rate, *silent],
    ]


CONTESTANTS: Final = (
    Contestant(KUBE, "default-scheduler", kube_scheduler, queues=False),
    Contestant(OURS, "gpuyard", gpuyard),
    Contestant(KAI, "kai-scheduler", kai),
)


class Running:
    """A contestant that is up."""

    def __init__(self, contestant: Contestant, bed: Bed, logs: Path) -> None:
        self._logs: list[IO[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for command in contestant.commands(bed):
            self._logs.append((logs / f"{contestant.name}-{len(self._logs)}.log").open("ab"))
            self._processes.append(
                subprocess.Popen(command, env=bed.environment(), stdout=self._logs[-1], stderr=subprocess.STDOUT)
            )

    def check(self) -> None:
        """One that has ended will not schedule anything."""
        for process, log in zip(self._processes, self._logs, strict=True):
            if process.poll() is not None:
                raise SystemExit(f"a contestant ended with {process.returncode}: see {log.name}")

    def cpu_s(self) -> float:
        return sum(cpu_s(process.pid) for process in self._processes)

    def peak_mb(self) -> float:
        """The most memory all of it ever held."""
        return sum(peak_mb(process.pid) for process in self._processes)

    def resident_mb(self) -> float:
        return sum(_status_mb(process.pid, "VmRSS") for process in self._processes)

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def end(self) -> None:
        for process in self._processes:
            process.terminate()
        for process, log in zip(self._processes, self._logs, strict=True):
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.close()


@contextmanager
def running(contestant: Contestant, bed: Bed, logs: Path) -> Iterator[Running]:
    found = Running(contestant, bed, logs)
    try:
        yield found
    finally:
        found.end()


def cpu_s(pid: int) -> float:
    """Processor seconds of a process; none for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mb(pid: int) -> float:
    return _status_mb(pid, "VmHWM")


def _status_mb(pid: int, key: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) * KIB / 1e6
