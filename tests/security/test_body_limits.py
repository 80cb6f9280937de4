"""What one member may send: named limits for what a body holds, and a share of what there is for everybody."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gpuyard.service.limits import JOB_LIMITS, MAX_IN_FLIGHT, MAX_JOB_BYTES
from tests.service.yard import Yard

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("yard")) as running:
        yield running


def refused(yard: Yard, content: str, media: str = "application/yaml", path: str = "/v1/jobs") -> dict[str, Any]:
    response = yard.ask("max", "POST", path, content=content, headers={"Content-Type": media})
    assert 400 <= response.status_code < 500, response.text
    found: dict[str, Any] = response.json()
    return found


def filled(head: str, piece: str, tail: str) -> str:
    return head + piece * ((MAX_JOB_BYTES - 100 - len(head)) // len(piece)) + tail


BODIES = {
    "values": (filled("command: [", "x,", "x]"), f"more than {JOB_LIMITS.values} values"),
    "empty lists": (filled("a: [", "[],", "[]]"), f"more than {JOB_LIMITS.values} values"),
    "empty maps in json": (filled('{"a": [', "{},", "{}]}"), f"more than {JOB_LIMITS.values} values"),
    "keys": ("env:\n" + "".join(f" k{n}: 1\n" for n in range(60_000)), f"more than {JOB_LIMITS.keys} keys"),
    "keys of many maps": (filled("a: [", "{a: 1, b: 2},", "1]"), f"more than {JOB_LIMITS.values} values"),
    "nesting": (filled("", "[", ""), f"nested more than {JOB_LIMITS.nesting} deep"),
    "nesting of maps": (filled("", "{a: ", ""), f"nested more than {JOB_LIMITS.nesting} deep"),
    "a scalar": (filled("command: ", "x", ""), f"more than {JOB_LIMITS.scalar_characters} characters"),
    "a block scalar": (filled("command: |\n", "  x\n", ""), f"more than {JOB_LIMITS.scalar_characters} characters"),
    "aliases": (filled("a: [&a x,", "*a,", "x]"), f"more than {JOB_LIMITS.aliases} aliases"),
    "anchors": (filled("a: [", "&a x,", "x]"), f"more than {JOB_LIMITS.anchors} anchors"),
    "text by aliases": (
        "a: [&a " + "x" * 200_000 + "," + "*a," * 400 + "x]",
        f"more than {MAX_JOB_BYTES} characters of text once its aliases are written out",
    ),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/plan"])
def test_what_a_body_may_hold_is_named(yard: Yard, name: str, path: str) -> None:
    content, what = BODIES[name]
    media = "application/json" if "json" in name else "application/yaml"
    problem = refused(yard, content, media, path)
    assert what in problem["detail"], problem
    assert problem["detail"].startswith("body."), "it says the line"
    assert problem["fix"]


def test_a_schedule_is_bounded_like_a_job(yard: Yard) -> None:
    headers = {"Content-Type": "application/yaml"}
    content = "job: {command: [" + "x," * 30_000 + "x]}"
    response = yard.ask("max", "PUT", "/v1/schedules/vision/nightly", content=content, headers=headers)
    assert (response.status_code, f"more than {JOB_LIMITS.values} values" in response.text) == (400, True)
    response = yard.ask(
        "max", "PUT", "/v1/schedules/vision/nightly", content="#" * (MAX_JOB_BYTES + 1), headers=headers
    )
    assert (response.status_code, response.json()["reason"]) == (413, "TooLarge")


@pytest.mark.parametrize("declared", [True, False])
def test_a_job_of_more_than_a_mebibyte_is_refused(yard: Yard, declared: bool) -> None:
    body = b"command: [x]\n#" + b"x" * MAX_JOB_BYTES

    def pieces() -> Iterator[bytes]:
        yield body

    response = None
    with suppress(httpx2.TransportError):
        content: Any = body if declared else pieces()
        response = yard.ask("max", "POST", "/v1/jobs", content=content, headers={"Content-Type": "application/yaml"})
    assert response is None or (response.status_code, response.json()["detail"]) == (413, "larger than 1 MiB")


# -------------------------------------------------------------------------------------------- what a job stands for


@pytest.mark.parametrize("path", ["/v1/jobs?allow_never=1", "/v1/jobs?allow_never=1&dry_run=1"])
@pytest.mark.parametrize(("array", "tasks"), [("0-9999", 100_000), ("0-999", 1_000), ("0-1", 60_000)])
def test_an_array_of_huge_jobs_is_refused(yard: Yard, array: str, tasks: int, path: str) -> None:
    problem = refused(yard, json.dumps({"command": ["x"], "array": array, "tasks": tasks}), "application/json", path)
    assert (problem["reason"], "are more than 100000 tasks" in problem["detail"]) == ("BadValue", True)


def test_all_jobs_together_have_a_bounded_number_of_tasks(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.worlds.standalone.submitting.MAX_TASKS", 50)
    yard.submit("max", tasks=30, hold=True, gpus=0)
    problem = refused(yard, json.dumps({"command": ["x"], "tasks": 30, "gpus": 0}), "application/json")
    assert (problem["status"], problem["reason"]) == (429, "QueueFull")


# ----------------------------------------------------------------------------------------------- slots, and slow bodies


@contextmanager
def slow_bodies(yard: Yard, user: str, count: int) -> Iterator[list[bytes]]:
    """So many requests of a user whose bodies do not come; what those were told that were answered."""
    port = int(yard.url.rpartition(":")[2])
    lines = ["POST /v1/jobs HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {yard.tokens[user]}"]
    head = "\r\n".join([*lines, "Content-Type: application/json", "Content-Length: 1000", "", "{"]).encode()
    with ExitStack() as opened:
        held = [opened.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(count)]
        for one in held:
            one.sendall(head)
        yard.call(lambda: asyncio.sleep(0.5))
        answers = []
        for one in held:
            one.settimeout(0.001)
            with suppress(TimeoutError):
                answers.append(one.recv(1 << 16))
        yield answers


def test_who_holds_many_requests_open_uses_up_no_more_than_a_share(yard: Yard) -> None:
    with slow_bodies(yard, "mia", 200) as answers:
        assert 200 - len(answers) <= MAX_IN_FLIGHT // 5
        assert all(answer.startswith(b"HTTP/1.1 429") and b"retry-after: 1" in answer for answer in answers)
        assert yard.ask("mia", "GET", "/v1/status").status_code == 429
        assert yard.ask("max", "GET", "/v1/status").status_code == 200
    yard.call(lambda: asyncio.sleep(0.2))
    assert yard.ask("mia", "GET", "/v1/status").status_code == 200


def test_ten_users_who_hold_all_they_can_leave_something_for_the_next(yard: Yard) -> None:
    users = [user for user in yard.tokens if user not in ("max", "new")][:8]
    with ExitStack() as opened:
        for user in users:
            opened.enter_context(slow_bodies(yard, user, 110))
        assert yard.app.service.traffic.in_flight < MAX_IN_FLIGHT
        assert yard.ask("max", "GET", "/v1/status").status_code == 200
        assert yard.submit("max", hold=True, gpus=0)


def test_what_is_held_of_bodies_is_counted_and_given_back(yard: Yard) -> None:
    traffic = yard.app.service.traffic
    yard.submit("max", hold=True, gpus=0)
    refused(yard, BODIES["values"][0])
    until = time.monotonic() + 5
    while traffic._bodies.taken or traffic.in_flight:
        assert time.monotonic() < until
        time.sleep(0.01)


# --------------------------------------------------------------------------------------------------------- fair turns


def test_a_small_request_overtakes_those_of_who_asks_for_much(yard: Yard) -> None:
    """One user keeps the reader busy with the largest bodies; another submits small jobs all the while."""
    over = threading.Event()
    largest = BODIES["values"][0]
    answers: list[int] = []

    def loop() -> None:
        with yard.client("mia") as client:
            while not over.is_set():
                headers = {"Content-Type": "application/yaml"}
                answers.append(client.post("/v1/jobs", content=largest, headers=headers).status_code)

    threads = [threading.Thread(target=loop) for _ in range(12)]
    for thread in threads:
        thread.start()
    took = []
    for _ in range(5):
        began = time.monotonic()
        yard.submit("max", hold=True, gpus=0)
        took.append(time.monotonic() - began)
    over.set()
    began = time.monotonic()
    for thread in threads:
        thread.join(60)
    queue = time.monotonic() - began
    assert set(answers) == {400}
    # What mia asks for at once takes long; max waits for what is being read, not for what waits.
    assert sorted(took)[2] < queue / 2, (took, queue)


def test_an_upload_is_written_to_a_file_as_it_comes_in(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    made: list[Any] = []
    temporary = tempfile.TemporaryFile

    def noted() -> Any:
        made.append(temporary(dir=tmp_path))
        return made[-1]

    monkeypatch.setattr("gpuyard.service.bodies.tempfile.TemporaryFile", noted)
    job = {"job_name": "upload", "team": "vision"}
    assert yard.ask("max", "POST", "/data-jobs/for-team/vision/jobs", json=job).status_code in (200, 201)
    headers = {"Content-Type": "application/octet-stream"}
    path = "/data-jobs/for-team/vision/jobs/upload/sources"
    response = yard.ask("max", "POST", path, content=b"x" * (3 << 20), headers=headers)
    assert (response.status_code, len(made), made[0].closed) == (400, 1, True)
    with suppress(httpx2.TransportError):
        response = yard.ask("max", "POST", path, content=b"x" * (9 << 20), headers=headers)
        assert response.status_code == 413
