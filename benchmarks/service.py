"""`make bench-service`: how fast the running manager answers, from submission to a running job.

The real thing: `gpuyard up` with its agent and fake GPUs as processes on this machine, asked over HTTP. Times are
calibrated by the fixed loop, run right before and after each row; a row of a tail is the median of its own samples.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchmarks.calibration import REFERENCE_MS, calibration_loop, milliseconds
from gpuyard.sdk.async_client import AsyncClient
from gpuyard.sdk.bodies import JobRequest
from gpuyard.sdk.client import Client
from gpuyard.wire.rest import Submitted
from tests.yard import Yard, running_yard, wait_for

RATE_SECONDS: Final = 60
RATE: Final = 300
QUEUE: Final = 10_000
WATCHERS: Final = 200
RESULT: Final = Path("build/bench/service.json")


class Row(NamedTuple):
    """One figure and its limit."""

    name: str
    value: float
    limit: float
    unit: str
    raw: float

    @property
    def met(self) -> bool:
        return self.value <= self.limit


class Calibrated:
    """Runs the loop before and after a block."""

    def __enter__(self) -> Calibrated:
        self.before = milliseconds(calibration_loop)
        return self

    def __exit__(self, *_: object) -> None:
        after = milliseconds(calibration_loop)
        self.factor = REFERENCE_MS / statistics.mean((self.before, after))

    def row(self, name: str, value: float, limit: float, unit: str = "ms") -> Row:
        return Row(name, value * self.factor, limit, unit, value)


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]


# ------------------------------------------------------------------------------------------------ submit to running


async def submit_to_running(yard: Yard, seconds: int = 20, rate: int = 10) -> list[float]:
    """Milliseconds from sending the request to hearing, as a watcher, that the job runs."""
    token = (yard.home / "admin.token").read_text().strip()
    sent: dict[str, float] = {}
    heard: dict[str, float] = {}
    async with AsyncClient(yard.url, token) as client, AsyncClient(yard.url, token) as watcher:

        async def watch() -> None:
            async for event in watcher.watch(kind="attempt-began"):
                job = next((name for name in event.objects if name.startswith("job/")), "")
                heard[job.removeprefix("job/")] = time.perf_counter()

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.5)

        async def one() -> None:
            began = time.perf_counter()
            done = await client.submit_job(JobRequest(command=["sleep", "0.1"], gpus=0.5))
            sent[done.jobs[0].id] = began

        tasks = []
        for _ in range(seconds * rate):
            tasks.append(asyncio.create_task(one()))
            await asyncio.sleep(1 / rate)
        await asyncio.gather(*tasks)
        until = time.perf_counter() + 30
        while len(heard) < len(sent) and time.perf_counter() < until:
            await asyncio.sleep(0.05)
        watching.cancel()
    return [(heard[job] - began) * 1000 for job, began in sent.items() if job in heard]


# ------------------------------------------------------------------------------------------------------- many submits


class Line:
    """One kept connection that sends the same kind of request again and again, and costs next to nothing itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        self.reader, self.writer = reader, writer
        self.head = (
            "POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {token}\r\n"
        )

    async def submit(self, body: bytes, key: str) -> list[str]:
        """The ids of what was acknowledged."""
        head = f"{self.head}Idempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        size = next(int(line[15:]) for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        content = await self.reader.readexactly(size)
        if b" 201 " not in answer[:20]:
            raise AssertionError(f"not accepted: {content!r}")
        return [job.id for job in msgspec.json.decode(content, type=Submitted).jobs]


async def many_submits(yard: Yard, count: int, rate: float | None, lines: int = 32) -> tuple[list[str], float]:
    """Submit so many, evenly or as fast as they go; the ids that were acknowledged, and how long it took."""
    token = (yard.home / "admin.token").read_text().strip()
    body = msgspec.json.encode({"command": ["sleep", "600"], "gpus": 1, "name": "waits"})
    ids: list[str] = []
    numbers = iter(range(count))
    began = time.perf_counter()

    async def send_in_turn() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", yard.port)
        line = Line(reader, writer, token)
        for number in numbers:
            if rate:
                await asyncio.sleep(max(began + number / rate - time.perf_counter(), 0))
            ids.extend(await line.submit(body, f"bench-{began}-{number}"))
        writer.close()

    await asyncio.gather(*(send_in_turn() for _ in range(lines)))
    return ids, time.perf_counter() - began


def request_times(ask: object, repeats: int) -> list[float]:
    assert callable(ask)
    return [milliseconds(ask) for _ in range(repeats)]


# ----------------------------------------------------------------------------------------------------------- watchers


async def watchers(yard: Yard, count: int, jobs: int) -> tuple[int, float]:
    """How many of so many watchers heard of every job, and how long the slowest took after the last submission."""
    token = (yard.home / "admin.token").read_text().strip()
    clients = [AsyncClient(yard.url, token) for _ in range(count)]
    heard = [0] * count

    async def watch(number: int) -> None:
        async for _ in clients[number].watch(kind="job-submitted"):
            heard[number] += 1

    tasks = [asyncio.create_task(watch(number)) for number in range(count)]
    await asyncio.sleep(3)
    async with AsyncClient(yard.url, token) as client:
        for _ in range(jobs):
            await client.submit_job(JobRequest(command=["true"], gpus=1, hold=True))
    began = time.perf_counter()
    while min(heard) < jobs and time.perf_counter() - began < 30:
        await asyncio.sleep(0.01)
    took = (time.perf_counter() - began) * 1000
    for task in tasks:
        task.cancel()
    for client in clients:
        await client.close()
    return sum(one >= jobs for one in heard), took


# ---------------------------------------------------------------------------------------------------------------- all


def rows(folder: Path, quick: bool) -> list[Row]:
    found: list[Row] = []
    with running_yard(folder / "a", "--streams-per-token", str(WATCHERS)) as yard:
        yard.ready().close()
        with Calibrated() as clock:
            times = asyncio.run(submit_to_running(yard, seconds=5 if quick else 30))
        found += [
            clock.row("submit to running, p50", percentile(times, 50), 150),
            clock.row("submit to running, p99", percentile(times, 99), 500),
        ]
        with Calibrated() as clock:
            complete, took = asyncio.run(watchers(yard, WATCHERS, 20))
        found.append(
            Row(f"of {WATCHERS} watchers, without every event", WATCHERS - complete, 0, "", WATCHERS - complete)
        )
        found.append(clock.row("the slowest watcher is behind by", took, 1_000))
    with running_yard(folder / "b") as yard:
        yard.ready().close()
        seconds = 5 if quick else RATE_SECONDS
        with Calibrated() as clock:
            ids, took_s = asyncio.run(many_submits(yard, RATE * seconds, RATE))
        with yard.client() as client:
            known = {job.id for job in client.jobs()}
        found.append(Row(f"{RATE} a second for {seconds} s: lost", len(set(ids) - known), 0, "", len(set(ids) - known)))
        found.append(clock.row("the last answer is late by", max(took_s - seconds, 0) * 1000, 2_000))
    with running_yard(folder / "c") as yard:
        yard.ready().close()
        asyncio.run(many_submits(yard, QUEUE // 10 if quick else QUEUE, None))
        found += queue_rows(yard)
    return found


def queue_rows(yard: Yard) -> list[Row]:
    """Answers with a long queue, and the restart."""
    found = []
    with yard.client() as client:
        last = next(iter(client.jobs())).id
        with Calibrated() as clock:
            pages = request_times(lambda: page(client), 30)
        found.append(clock.row("a page of jobs, median", statistics.median(pages), 50))
        with Calibrated() as clock:
            explanations = request_times(lambda: client.explain_job(last), 15)
        found.append(clock.row("explain, median", statistics.median(explanations), 50))
    yard.kill_manager()
    with Calibrated() as clock:
        began = time.perf_counter()
        yard.start()
        with yard.client() as client:
            wait_for(client.status)
        took = (time.perf_counter() - began) * 1000
    found.append(clock.row("restart to serving", took, 5_000))
    return found


def page(client: Client) -> None:
    from gpuyard.sdk import calls

    client.send(calls.list_jobs(limit=100))


def main() -> int:
    quick = "--quick" in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        found = rows(Path(folder), quick)
    for row in found:
        verdict = "met" if row.met else "MISSED"
        print(f"{row.name:45} {row.value:10.1f} {row.unit:3} of {row.limit:8.0f}  (measured {row.raw:.1f})  {verdict}")
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_bytes(msgspec.json.format(msgspec.json.encode([row._asdict() for row in found])))
    return 0 if all(row.met for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
