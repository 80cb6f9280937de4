"""What a job brings along: fetched once, checked, and there before its task starts."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from gpuyard.agent import parcels as module
from gpuyard.agent.parcels import KEPT_MS, MAX_FETCHED_AT_ONCE, Parcels, prune
from gpuyard.platform.clock import boot_ms, wall_ms
from gpuyard.wire.agents import MAX_PARCEL_BYTES, Ending, ParcelPiece, Phase, ReadParcel, Stop
from gpuyard.wire.artifacts import File, pack_tar
from tests.agent.machines import Machine, a_script
from tests.agent.manager import Manager, eventually

DATA = pack_tar([File("config.ini", os.urandom(2_500))])
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def parcels(tmp_path: Path) -> Parcels:
    return Parcels(tmp_path)


def test_it_is_asked_for_piece_by_piece_and_is_here_when_the_last_has_come(parcels: Parcels, tmp_path: Path) -> None:
    assert not parcels.is_here(DIGEST)
    assert parcels.questions() == [ReadParcel(DIGEST, 0)]
    assert parcels.questions() == []
    parcels.arrived(ParcelPiece(DIGEST, 0, DATA[:2_000], len(DATA)))
    assert parcels.questions() == [ReadParcel(DIGEST, 2_000)]
    parcels.arrived(ParcelPiece(DIGEST, 2_000, DATA[2_000:], len(DATA)))
    assert parcels.is_here(DIGEST)
    assert parcels.questions() == []
    assert (tmp_path / DIGEST).stat().st_mode & 0o777 == 0o600
    parcels.put(DIGEST, tmp_path / "copy", -1)
    assert (tmp_path / "copy").read_bytes() == DATA


def test_a_piece_that_comes_twice_or_was_not_asked_for_changes_nothing(parcels: Parcels) -> None:
    parcels.arrived(ParcelPiece(DIGEST, 0, DATA, len(DATA)))
    assert not parcels.is_here(DIGEST)
    parcels.questions()
    for _ in range(2):
        parcels.arrived(ParcelPiece(DIGEST, 0, DATA[:2_000], len(DATA)))
    assert parcels.questions() == [ReadParcel(DIGEST, 2_000)]


def test_after_a_new_session_it_goes_on_where_it_was(parcels: Parcels) -> None:
    parcels.is_here(DIGEST)
    parcels.questions()
    parcels.arrived(ParcelPiece(DIGEST, 0, DATA[:2_000], len(DATA)))
    parcels.questions()
    parcels.disconnected()
    assert parcels.questions() == [ReadParcel(DIGEST, 2_000)]


def test_what_is_not_answered_is_asked_again_after_a_while(parcels: Parcels, monkeypatch: pytest.MonkeyPatch) -> None:
    parcels.is_here(DIGEST)
    assert len(parcels.questions()) == 1
    later = boot_ms() + module.AGAIN_MS
    monkeypatch.setattr(module, "boot_ms", lambda: later)
    assert len(parcels.questions()) == 1


@pytest.mark.parametrize(
    ("piece", "why"),
    [
        (ParcelPiece(DIGEST, problem="it is gone"), "it is gone"),
        (ParcelPiece(DIGEST, 0, b"x" * len(DATA), len(DATA)), "damaged"),
        (ParcelPiece(DIGEST, 0, DATA, MAX_PARCEL_BYTES + 1), "larger than"),
        (ParcelPiece(DIGEST, 0, DATA, 100), "larger than"),
        (ParcelPiece(DIGEST, 0, b"", 100), "sent nothing"),
    ],
)
def test_what_cannot_be_had_is_told_once_and_then_tried_again(parcels: Parcels, piece: ParcelPiece, why: str) -> None:
    parcels.is_here(DIGEST)
    parcels.questions()
    parcels.arrived(piece)
    assert not parcels.is_here(DIGEST)
    assert parcels.questions() == []
    assert why in parcels.problem(DIGEST)
    assert not parcels.is_here(DIGEST)
    assert parcels.questions() == [ReadParcel(DIGEST, 0)]


def test_few_are_fetched_at_once(parcels: Parcels) -> None:
    for number in range(MAX_FETCHED_AT_ONCE + 3):
        parcels.is_here(f"{number:064x}")
    assert len(parcels.questions()) == MAX_FETCHED_AT_ONCE


def test_no_name_leads_out_of_the_folder(parcels: Parcels, tmp_path: Path) -> None:
    (tmp_path.parent / "outside").write_text("x")
    assert not parcels.is_here("../outside")


def test_what_no_task_has_taken_for_long_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, age_ms in (("old", KEPT_MS + 1_000), ("new", 0), ("older", 5_000)):
        file = tmp_path / name
        file.write_bytes(b"x" * 10)
        at_s = (wall_ms() - age_ms) / 1000
        os.utime(file, (at_s, at_s))
    prune(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"new", "older"}
    monkeypatch.setattr(module, "KEPT_BYTES", 10)
    prune(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"new"}


# --------------------------------------------------------------------------------------------------------- a real agent


@pytest.mark.slow
def test_a_task_starts_with_its_parcel_and_the_next_needs_no_second_one(machine: Machine, manager: Manager) -> None:
    manager.parcels[DIGEST] = DATA
    first, second = (a_script("sha256sum < $GPUYARD_PARCEL | cut -c 1-64", parcel=DIGEST) for _ in range(2))
    for task in (first, second):
        manager.want(task)
        assert manager.wait_for(task.id, Phase.ENDED).exit_code == 0
        assert manager.whole_log(task.id).decode().strip() == DIGEST
    assert [asked.offset for asked in manager.asked_parcels] == list(range(0, len(DATA), 1_000))
    manager.record(first.id)
    notices = machine.home / "open" / "notices"
    eventually(lambda: not any(str(first.id.job) in folder.name for folder in notices.iterdir()))


@pytest.mark.slow
def test_a_task_whose_parcel_cannot_be_had_says_why_and_one_that_waits_can_be_stopped(
    machine: Machine, manager: Manager
) -> None:
    lost = a_script("echo never", parcel="0" * 64)
    manager.want(lost)
    ended = manager.wait_for(lost.id, Phase.ENDED)
    assert ended.ending is Ending.NOT_STARTED
    assert "what the job brings along cannot be had: nobody knows it" in ended.message
    manager.parcels["1" * 64] = None
    waits = a_script("echo never", parcel="1" * 64)
    manager.want(waits)
    eventually(lambda: any(asked.digest == "1" * 64 for asked in manager.asked_parcels))
    # Whoever follows it is not told that there is no log: there is none yet.
    piece = manager.read_log(waits.id)
    assert (piece.data, piece.ended, piece.problem) == (b"", False, "")
    manager.stop(waits.id, Stop("enough"))
    assert manager.wait_for(waits.id, Phase.ENDED).ending is Ending.STOPPED
