"""kill -9 of the manager and of the agent, at random moments under load: nothing acknowledged is lost, nothing twice.

What really ran is told by the job processes themselves: each appends lines to one file. Counts are small in `make test`
and full under GPUYARD_LONG.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from gpuyard.errors import GpuyardError
from gpuyard.sdk.bodies import JobRequest
from gpuyard.sdk.client import Client
from tests.conftest import LONG
from tests.yard import Yard, open_folder, running_yard, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("yard")]

GPUS = 8
JOB = """
note() {{
  who="$GPUYARD_JOB_ID $GPUYARD_TASK $GPUYARD_RESTART_COUNT"
  echo "$1 $who ${{CUDA_VISIBLE_DEVICES:-none}} ${{GPUYARD_GPU_MILLI:-1000}} $(date +%s%N)" >> {record}
}}
note start; sleep {seconds}; note end
"""


class Line(NamedTuple):
    """What a job process wrote."""

    what: str
    job: str
    task: int
    restart: int
    devices: tuple[str, ...]
    milli: int
    at_ns: int


def read_record(path: Path) -> list[Line]:
    lines = []
    for text in path.read_text().splitlines():
        what, job, task, restart, devices, milli, at = text.split()
        lines.append(Line(what, job, int(task), int(restart), tuple(devices.split(",")), int(milli), int(at)))
    return lines


class Submitter(threading.Thread):
    """Submits all the time, and remembers what was acknowledged."""

    def __init__(self, yard: Yard, record: Path, seed: int) -> None:
        super().__init__(daemon=True)
        self.yard, self.record = yard, record
        self.random = random.Random(seed)
        self.acknowledged: list[str] = []
        self.ending = threading.Event()

    def run(self) -> None:
        while not self.ending.wait(0.03):
            try:
                with self.yard.client() as client:
                    while not self.ending.wait(0.03):
                        done = client.submit_job(self.job())
                        self.acknowledged += [job.id for job in done.jobs]
            except (GpuyardError, OSError, ValueError):
                continue

    def job(self) -> JobRequest:
        text = JOB.format(record=self.record, seconds=self.random.choice((0.05, 0.2, 0.5)))
        gpus, tasks = self.random.choice(((1, 1), (1, 1), (2, 1), (0.5, 1), (1, 2)))
        return JobRequest(command=text, gpus=gpus, tasks=tasks)


def kills(database: str) -> int:
    return 200 if LONG else {"sqlite": 20, "postgres": 10}[database]


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_nothing_acknowledged_is_lost_and_nothing_starts_twice(database: str, request: pytest.FixtureRequest) -> None:
    options = []
    if database == "postgres":
        server = request.getfixturevalue("postgres_server")
        options = ["--database", server.url(server.make_database())]
    with open_folder() as folder:
        record = folder / "record"
        record.touch()
        record.chmod(0o666)
        acknowledged = kill_at_random(folder, record, kills(database), options)
        check(record, acknowledged)


def kill_at_random(folder: Path, record: Path, times: int, options: list[str]) -> list[str]:
    """Submit all the while, kill so many times, and wait for the end; what was acknowledged."""
    seed = int(os.environ.get("GPUYARD_SEED", "7"))
    chance = random.Random(seed)
    with running_yard(folder, "--fake-gpus", str(GPUS), *options) as yard:
        yard.ready().close()
        submitter = Submitter(yard, record, seed)
        submitter.start()
        for number in range(times):
            # However slow the machine: each time something is under way that was acknowledged since the last.
            before = len(submitter.acknowledged)
            wait_for(lambda count=before: len(submitter.acknowledged) > count, 120)  # type: ignore[misc]
            time.sleep(chance.uniform(0.1, 0.8))
            if chance.random() < 0.4 and number:
                yard.kill_agent()
                continue
            yard.kill_manager()
            yard.start()
        submitter.ending.set()
        submitter.join(30)
        finish(yard, submitter.acknowledged)
    return submitter.acknowledged


def finish(yard: Yard, acknowledged: list[str]) -> None:
    """Until everything that was acknowledged is over."""
    over = ("succeeded", "failed", "cancelled")
    with yard.ready() as client:

        def left() -> list[str]:
            states = {job.id: job.state for job in client.jobs()}
            return [f"{id}: {states.get(id, 'unknown')}" for id in acknowledged if states.get(id) not in over]

        wait_for(lambda: not left(), 300, lambda: f"{len(left())} not over: {left()[:10]}")
        unlucky = [job.id for job in client.jobs() if job.state != "succeeded"]
        assert unlucky == [], "\n".join(tell(client, id) for id in unlucky)


def tell(client: Client, id: str) -> str:
    """All that is known of a job."""
    return "\n".join(map(str, (client.get_job(id), *client.events(object=f"job/{id}"))))


def check(record: Path, acknowledged: list[str]) -> None:
    lines = read_record(record)
    starts = defaultdict(list)
    for line in lines:
        if line.what == "start":
            starts[line.job, line.task, line.restart].append(line)
    assert [key for key, found in starts.items() if len(found) > 1] == [], "an attempt was started twice"
    ran = {job for job, *_ in starts}
    assert [id for id in acknowledged if id not in ran] == [], "an acknowledged job never ran"
    assert len(acknowledged) >= 10, "too few to tell anything"
    assert overlaps(lines) == [], "a device was held beyond its capacity"
    assert at_once(lines) == [], "two attempts of one task ran at once"


def overlaps(lines: list[Line]) -> list[str]:
    """Devices of which more was held at once than there is."""
    ends = {(line.job, line.task, line.restart): line.at_ns for line in lines if line.what == "end"}
    moments: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for line in lines:
        end = ends.get((line.job, line.task, line.restart))
        if line.what == "start" and end is not None:
            for device in line.devices:
                moments[device] += [(line.at_ns, line.milli), (end, -line.milli)]
    return [f"{device}: {most}" for device, changes in moments.items() if (most := _most(changes)) > 1000]


def _most(changes: list[tuple[int, int]]) -> int:
    held = most = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most


def at_once(lines: list[Line]) -> list[str]:
    spans = defaultdict(list)
    ends = {(line.job, line.task, line.restart): line.at_ns for line in lines if line.what == "end"}
    for line in lines:
        if line.what == "start":
            spans[line.job, line.task].append((line.at_ns, ends.get((line.job, line.task, line.restart))))
    found = []
    for (job, task), mine in spans.items():
        mine.sort()
        for (_, end), (begin, _) in pairwise(mine):
            if end is not None and end > begin:
                found.append(f"{job}/{task}")
    return found
