"""A snapshot that is encoded in pieces, later and elsewhere, is the state as it was when it was made."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from gpuyard.worlds.standalone import snapshot_draft
from gpuyard.worlds.standalone.records import State
from gpuyard.worlds.standalone.snapshot_draft import PIECE, SnapshotDraft
from tests.worlds.standalone.yard import Yard


def a_state(jobs: int) -> State:
    yard = Yard()
    first = yard.job(yard.submit())
    state = yard.state
    state.jobs = {str(number): replace(first, id=str(number)) for number in range(1, jobs + 1)}
    return state


@pytest.mark.parametrize("jobs", [0, 1, 15, 16, PIECE, PIECE + 1, PIECE + 15, 2 * PIECE, 2 * PIECE + 16])
def test_it_is_read_back_as_the_same_state(jobs: int) -> None:
    state = a_state(jobs)
    stored = SnapshotDraft.of(state).stored()
    assert (stored.seq, stored.at_ms) == (state.seq, state.at_ms)
    read = msgspec.msgpack.decode(stored.body, type=State)
    assert msgspec.msgpack.encode(read) == msgspec.msgpack.encode(state)
    assert list(read.jobs) == list(state.jobs)


def test_what_happens_after_it_was_made_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_draft, "PIECE", 2)
    yard = Yard()
    for _ in range(5):
        yard.submit()
    before = msgspec.msgpack.encode(yard.state)
    draft = SnapshotDraft.of(yard.state)
    yard.run(yard.submit())
    read = msgspec.msgpack.decode(draft.stored().body, type=State)
    assert msgspec.msgpack.encode(read) == before
