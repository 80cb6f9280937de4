"""A writer that is killed at any instant: what it has acknowledged is there, and nothing is there by halves."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuyard.worlds.standalone.store.opening import open_store
from tests.conftest import LONG
from tests.worlds.store.crashing import batch_size
from tests.worlds.store.places import Places

KILLS = 200 if LONG else 20
SEED = 20261116
LONGEST_LIFE_S = 0.08
ROOT = Path(__file__).parents[3]


def live_and_die(address: str, kind: str, life_s: float) -> tuple[int, int]:
    """The number of the last entry, and of the last snapshot, that the writer acknowledged before it was killed."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.worlds.store.crashing", address, kind],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        text=True,
    )
    assert child.stdout
    try:
        said = [child.stdout.readline()]
        time.sleep(life_s)
    finally:
        child.kill()
        said += child.communicate()[0].splitlines(keepends=True)
    # A line without its end was cut off; what it acknowledges nobody can have read.
    words = [line.split() for line in said if line.endswith("\n")]
    assert words, "the writer did not start"
    kept = [int(number) for word, number in words if word in ("open", "kept")]
    snapshots = [int(number) for word, number in words if word == "snapshot"]
    return kept[-1], max(snapshots, default=0)


def check_whole_batches(address: str, acknowledged: int, snapshot: int) -> None:
    store = open_store(address)
    store.open()
    try:
        assert store.last_seq() >= acknowledged
        log = store.read(0, 1_000_000)
        assert [entry.seq for entry in log] == list(range(1, store.last_seq() + 1))
        first = 1
        while first <= store.last_seq():
            last = first + batch_size(first) - 1
            bodies = {entry.body for entry in log[first - 1 : last]}
            assert bodies == {b"%d-%d" % (first, last)}
            first = last + 1
        assert next((one.seq for one in store.snapshots()), 0) >= snapshot
    finally:
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "sqlite-rollback", "postgres"])
def test_what_a_killed_writer_has_acknowledged_is_there_in_whole_batches(
    kind: str, new_place: Callable[[str], Places]
) -> None:
    address = str(new_place(kind).address)
    lives = random.Random(SEED)
    kills = KILLS if kind == "sqlite" else KILLS // 4
    snapshot = 0
    for _ in range(kills):
        acknowledged, last_snapshot = live_and_die(address, kind, lives.uniform(0, LONGEST_LIFE_S))
        snapshot = max(snapshot, last_snapshot)
        check_whole_batches(address, acknowledged, snapshot)
