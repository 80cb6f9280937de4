"""/readyz says whether anything can be recorded, and why not: on a disk that is full, on a database that is away."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from gpuyard.errors import StoreError, StoreFullError, StoreGoneError, StoreReadOnlyError, StoreWaitError
from gpuyard.service.readiness import Cause, Readiness, cause_of
from tests.postgres import running_server
from tests.service.yard import Yard

SOON_S = 20.0
SECRETS = ("state.db", "/tmp", "postgres", "gpuyard@", "root", "Traceback")


def readyz(yard: Yard) -> httpx2.Response:
    with yard.client() as client:
        return client.get("/readyz")


def wait_until_ready_is(yard: Yard, status: int) -> httpx2.Response:
    until = time.monotonic() + SOON_S
    while (answer := readyz(yard)).status_code != status:
        assert time.monotonic() < until, answer.text
        time.sleep(0.1)
    return answer


def refusal(yard: Yard) -> str:
    """What it says without a credential: a short cause, and nothing that is nobody's business."""
    answer = wait_until_ready_is(yard, 503)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["retry-after"]
    assert not [word for word in SECRETS if word in answer.text]
    return str(answer.json()["detail"])


# --------------------------------------------------------------------------------------------------------- a full disk


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of that size."""
    place = folder / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill(disk: Path) -> Path:
    """Take all the room that is left."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True], ids=["nothing is asked", "jobs are submitted"])
def test_on_a_full_disk_it_is_not_ready_and_once_there_is_room_it_is_again(tmp_path: Path, asked: bool) -> None:
    with small_disk(tmp_path, "16m") as disk, Yard(tmp_path, store=str(disk / "state.db")) as yard:
        before = yard.submit("max", gpus=0, hold=True)
        assert wait_until_ready_is(yard, 200).content == b""
        ballast = fill(disk)
        if asked:
            body = {"command": ["x" * 2000], "team": "vision", "gpus": 0, "hold": True}
            until = time.monotonic() + SOON_S
            while yard.ask("max", "POST", "/v1/jobs", json=body).status_code != 503:
                assert time.monotonic() < until
        assert refusal(yard) == Cause.FULL
        status = yard.ask("max", "GET", "/v1/status").json()
        assert f"nothing new is recorded: {Cause.FULL}" in status["warnings"]
        assert yard.ask("max", "GET", f"/v1/jobs/{before}").status_code == 200
        assert yard.ask("", "GET", "/livez").status_code == 200
        ballast.unlink()
        wait_until_ready_is(yard, 200)
        assert yard.submit("max", gpus=0, hold=True) != before


@needs_root
@pytest.mark.slow
def test_a_disk_that_was_full_at_the_last_look_is_not_for_ever(tmp_path: Path) -> None:
    with small_disk(tmp_path, "16m") as disk, Yard(tmp_path, store=str(disk / "state.db")) as yard:
        for _ in range(2):
            ballast = fill(disk)
            assert refusal(yard) == Cause.FULL
            ballast.unlink()
            wait_until_ready_is(yard, 200)


# ----------------------------------------------------------------------------------------------------------- PostgreSQL


@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True], ids=["nothing is asked", "jobs are submitted"])
def test_a_server_that_is_away_is_told_and_so_is_its_return(tmp_path: Path, asked: bool) -> None:
    with running_server() as server, Yard(tmp_path, store=server.url(server.make_database())) as yard:
        wait_until_ready_is(yard, 200)
        server.stop()
        if asked:
            body = {"command": ["x"], "team": "vision", "gpus": 0, "hold": True}
            with pytest.raises(httpx2.ReadTimeout), yard.client("max") as client:
                client.post("/v1/jobs", json=body, timeout=2)
        assert refusal(yard) == Cause.AWAY
        server.restart()
        wait_until_ready_is(yard, 200)
        yard.submit("max", gpus=0, hold=True)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True], ids=["nothing is asked", "jobs are submitted"])
def test_a_server_that_may_only_be_read_is_told_and_waited_for(tmp_path: Path, asked: bool) -> None:
    """It ended the manager."""
    with running_server() as server, Yard(tmp_path, store=server.url(server.make_database())) as yard:
        wait_until_ready_is(yard, 200)
        for value, status in (("on", 503), ("off", 200)):
            server.run(
                "postgres", f"ALTER SYSTEM SET default_transaction_read_only = {value}", "SELECT pg_reload_conf()"
            )
            if asked and status == 503:
                body = {"command": ["x"], "team": "vision", "gpus": 0, "hold": True}
                until = time.monotonic() + SOON_S
                while yard.ask("max", "POST", "/v1/jobs", json=body).status_code != 503:
                    assert time.monotonic() < until
            wait_until_ready_is(yard, status)
            if status == 503:
                assert refusal(yard) == Cause.READ_ONLY
        yard.submit("max", gpus=0, hold=True)


# ---------------------------------------------------------------------------------------------------------- the causes


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (StoreFullError("x"), Cause.FULL),
        (StoreReadOnlyError("x"), Cause.READ_ONLY),
        (StoreGoneError("x"), Cause.AWAY),
        (StoreWaitError("x"), Cause.REFUSES),
    ],
)
def test_every_error_has_its_cause(error: StoreError, cause: Cause) -> None:
    assert cause_of(error) is cause


def test_what_was_tried_counts_until_something_is_written() -> None:
    known = Readiness()
    step: list[tuple[Callable[[], None], Cause]] = [
        (lambda: known.looked(StoreFullError("x")), Cause.FULL),
        (lambda: known.refused(StoreGoneError("x")), Cause.AWAY),
        (lambda: known.answered(), Cause.FULL),
        (lambda: known.looked(None), Cause.NONE),
        (lambda: known.refused(StoreWaitError("x")), Cause.REFUSES),
        (lambda: known.looked(None), Cause.REFUSES),
        (lambda: known.written(), Cause.NONE),
    ]
    for do, cause in step:
        do()
        assert known.cause is cause


def test_a_manager_that_has_not_started_is_not_ready() -> None:
    from gpuyard.service.manager import Manager
    from gpuyard.worlds.standalone.store.memory import MemoryStore

    assert Manager(MemoryStore()).unready == Cause.NOT_RUNNING
