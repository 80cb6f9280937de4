"""How fast the fake GPUs are: `python -m benchmarks.fake` (or `make bench-fake`).

Each row has a limit. Times are calibrated as in `calibration.py`. The scrape is a whole one, over HTTP, from a daemon
of its own; its memory is the most that daemon ever held. A call of NVML goes through ctypes, as Python programs do it.
Writes `build/bench/fake.json`; ends with 1 if a limit was missed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import urllib.parse
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import perf_counter, perf_counter_ns, sleep
from typing import Final

import msgspec

from benchmarks.calibration import REFERENCE_MS, calibration_loop, measure, milliseconds
from benchmarks.report import Row, report
from gpuyard.fakegpu import build
from gpuyard.fakegpu.config import fleet_of
from gpuyard.fakegpu.control import Break, DaemonStatus, Heal, NotUpError, Show, Shutdown, Status, ask
from gpuyard.fakegpu.daemon import Settings, encode_settings
from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.fleet import Fleet

OUTPUT: Final = Path("build/bench/fake.json")
NODES: Final = 5000
GPUS: Final = 8
READERS: Final = 64
DAY_MS: Final = 86_400_000
VIRTUAL_STEP_MS: Final = 10_000
READ_EVERY: Final = 90
CALLS: Final = 4000
OFF_THE_BUS: Final = "DCGM_EXP_GPU_HEALTH_STATUS"
LOST: Final = 15
"""What NVML answers for a GPU that is lost."""

WORK: Final = "[{time: 20m, utilization: 70-100, memory: 60%}, {time: 5m, utilization: 0-10}]"


def busy_fleet(nodes: int) -> Fleet:
    """Every GPU has a task that changes its load all the time."""
    profile = f"{{phases: {WORK}, repeat: forever}}"
    return fleet_of(f"pools: {{a: {{nodes: {nodes}, gpus: {GPUS}, product: A100, profile: {profile}}}}}")


# ------------------------------------------------------------------------------------------------------- the model


def step_row(nodes: int, repeats: int) -> Row:
    """One step of a quarter of a second; the median of steps, of which some have loads that change."""
    engine = Engine(busy_fleet(nodes), seed=1, at_ms=0)
    engine.advance(60_000)
    taken = measure(lambda: engine.advance(engine.now_ms + 250), repeats)
    return Row(f"one step of the model, {nodes} x {GPUS} GPUs", "ms", taken.ms, taken.calibrated_ms, 100)


def worst_step_row(nodes: int) -> Row:
    """A step in which every GPU changes its load at once."""
    engine = Engine(busy_fleet(nodes), seed=1, at_ms=0)
    engine.advance(20 * 60_000 - 1)
    taken = measure(lambda: engine.advance(20 * 60_000 + 1), 1)
    return Row(
        f"the same where every GPU enters a new phase, {nodes} x {GPUS}", "ms", taken.ms, taken.calibrated_ms, 100
    )


def day_row(nodes: int, hours: int) -> Row:
    fleet = busy_fleet(nodes)
    digests = []
    taken = measure(lambda: digests.append(day_digest(fleet, hours)), 2)
    same = "the same bytes" if len(set(digests)) == 1 else "DIFFERENT BYTES"
    limit = 10 if len(set(digests)) == 1 else 0
    name = f"{hours} hours of virtual time, {nodes} nodes, {same}"
    return Row(name, "s", taken.ms / 1000, taken.calibrated_ms / 1000, limit)


def day_digest(fleet: Fleet, hours: int) -> str:
    engine = Engine(fleet, seed=7, at_ms=0)
    digest = hashlib.sha256()
    for step in range(hours * 3_600_000 // VIRTUAL_STEP_MS):
        engine.advance((step + 1) * VIRTUAL_STEP_MS)
        if step % READ_EVERY == 0:
            digest.update(msgspec.json.encode(list(engine.readings())))
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------------------ the daemon


@contextmanager
def daemon(fleet: str) -> Iterator[tuple[Path, DaemonStatus]]:
    """A daemon of its own, with the fleet of a file."""
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        home, config = Path(folder) / "home", Path(folder) / "fleet.yaml"
        config.write_text(fleet)
        settings = encode_settings(Settings(home, config=config, port=0))
        process = subprocess.Popen(
            [sys.executable, "-m", "gpuyard.fakegpu.daemon", settings], stdout=subprocess.DEVNULL
        )
        try:
            yield home, wait_for(home, process)
        finally:
            ask(home, Shutdown(), int)
            process.wait(timeout=60)


def wait_for(home: Path, process: subprocess.Popen[bytes]) -> DaemonStatus:
    while process.poll() is None:
        try:
            return ask(home, Status(limit=0), DaemonStatus)
        except NotUpError:
            sleep(0.05)
    raise SystemExit(f"the daemon ended with {process.returncode}")


def daemon_rows(nodes: int, repeats: int) -> list[Row]:
    fleet = f"pools: {{a: {{nodes: {nodes}, gpus: {GPUS}, product: A100, profile: {WORK}}}}}\n"
    with daemon(fleet) as (home, status):
        lengths: list[int] = []
        taken = measure(lambda: lengths.append(scrape(status.exporter)), repeats)
        peak_mb = memory_mb(status.pid)
        seen_ms = visible_row(home, status)
    text = f"a whole scrape, {nodes} x {GPUS} GPUs, {lengths[-1] / 1e6:.0f} MB of text"
    return [
        Row(text, "s", taken.ms / 1000, taken.calibrated_ms / 1000, 2),
        Row("the memory of that daemon at its highest", "MB", peak_mb, peak_mb, 500),
        seen_ms,
    ]


def scrape(address: str) -> int:
    """Read the whole page as fast as it comes; how many bytes it had."""
    place = urllib.parse.urlsplit(address)
    with socket.create_connection((place.hostname, place.port)) as connection:
        connection.sendall(f"GET {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
        buffer, total = bytearray(1 << 20), 0
        while count := connection.recv_into(buffer):
            total += count
    return total


def memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def visible_row(home: Path, status: DaemonStatus) -> Row:
    """From the command to the last face that shows it: the exporter's page of that machine, and NVML."""
    node = ask(home, Status(limit=1), DaemonStatus).machines[0].reading.machine
    worst = 0.0
    with closing(Nvml(ask(home, Show(node), str))) as nvml:
        for fault in ("xid:79", None, "xid:79", None):
            began = perf_counter()
            request = Break(node, 0, fault) if fault else Heal(node, 0)
            ask(home, request, type(None))
            while nvml.is_lost() != bool(fault) or exporter_says_lost(status.exporter, node) != bool(fault):
                sleep(0.002)
            worst = max(worst, perf_counter() - began)
    return Row("a change is seen on every face", "s", worst, worst, 1)


def exporter_says_lost(address: str, node: str) -> bool:
    place = urllib.parse.urlsplit(address)
    with socket.create_connection((place.hostname, place.port)) as connection:
        connection.sendall(f"GET {place.path}?node={node} HTTP/1.0\r\n\r\n".encode())
        text = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
    line = next(line for line in text.splitlines() if line.startswith(OFF_THE_BUS + '{gpu="0"'))
    return line.endswith(" 20")


# ------------------------------------------------------------------------------------------------------------ NVML


class Nvml:
    """The library, called as Python programs call it."""

    def __init__(self, state: str) -> None:
        os.environ["GPUYARD_FAKE_STATE"] = state
        self._library = ctypes.CDLL(str(build.library()))
        self._check(self._library.nvmlInitWithFlags(0))
        self._device = ctypes.c_void_p()
        self._check(self._library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._device)))

    def close(self) -> None:
        """Left open, it would show this machine to whoever else in the process asks, long after it is gone."""
        self._library.nvmlShutdown()
        os.environ.pop("GPUYARD_FAKE_STATE")

    def is_lost(self) -> bool:
        return int(self._library.nvmlDeviceGetTemperature(self._device, 0, ctypes.byref(ctypes.c_uint()))) == LOST

    def call_ns(self, calls: int) -> float:
        """The median of many calls of three kinds."""
        rates, memory, watts = (ctypes.c_uint * 2)(), (ctypes.c_ulonglong * 3)(), ctypes.c_uint()
        kinds = (
            (self._library.nvmlDeviceGetUtilizationRates, ctypes.byref(rates)),
            (self._library.nvmlDeviceGetMemoryInfo, ctypes.byref(memory)),
            (self._library.nvmlDeviceGetPowerUsage, ctypes.byref(watts)),
        )
        taken = []
        for number in range(calls):
            call, into = kinds[number % 3]
            began = perf_counter_ns()
            call(self._device, into)
            taken.append(perf_counter_ns() - began)
        return statistics.median(taken)

    def _check(self, code: int) -> None:
        if code:
            raise SystemExit(f"NVML answered {code}")


def nvml_rows(readers: tuple[int, ...], calls: int) -> Iterator[Row]:
    fleet = f"pools: {{a: {{nodes: 1, gpus: {GPUS}, product: A100, profile: {WORK}}}}}\n"
    with daemon(fleet) as (home, _):
        command = [sys.executable, "-m", "benchmarks.fake", "--calls", str(calls), ask(home, Show(), str)]
        for count in readers:
            yield nvml_row(command, count)


def nvml_row(command: list[str], readers: int) -> Row:
    before = milliseconds(calibration_loop)
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(readers)]
    medians = [float(process.communicate(timeout=300)[0]) for process in processes]
    after = milliseconds(calibration_loop)
    micros = statistics.median(medians) / 1000
    scaled = micros * REFERENCE_MS / statistics.mean((before, after))
    each = "process reads" if readers == 1 else "processes read"
    return Row(f"a call of NVML, median, while {readers} {each}", "µs", micros, scaled, 20)


# ------------------------------------------------------------------------------------------------------- reporting


def rows(quick: bool) -> Iterator[Row]:
    """All of them; a quick run is a small one, to see that it runs."""
    nodes, hours, readers = (50, 1, 2) if quick else (NODES, 24, READERS)
    yield step_row(nodes, 3 if quick else 25)
    yield worst_step_row(nodes)
    yield day_row(10 if quick else 100, hours)
    yield from daemon_rows(nodes, 1 if quick else 5)
    yield from nvml_rows((1, readers), CALLS)


def arguments(given: list[str]) -> Namespace:
    parser = ArgumentParser(prog="python -m benchmarks.fake", description="Measure the fake GPUs.")
    parser.add_argument("--quick", action="store_true", help="a small run, to see that it runs")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    parser.add_argument("--calls", type=int, help="be one reader of a state directory: print its median in ns")
    parser.add_argument("state", nargs="?", help="that state directory")
    return parser.parse_args(given)


def main(given: list[str]) -> int:
    args = arguments(given)
    if args.calls:
        print(Nvml(args.state).call_ns(args.calls))
        return 0
    return report(rows(args.quick), args.output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
