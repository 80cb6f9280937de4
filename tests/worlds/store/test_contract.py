"""What every store promises, whichever database it is on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.errors import StoreBusyError, StoreConflictError, StoreError, StoreGoneError
from gpuyard.worlds.standalone.store import sql_store
from gpuyard.worlds.standalone.store.archive_reading import read_pages
from gpuyard.worlds.standalone.store.memory import MemoryStore
from gpuyard.worlds.standalone.store.port import DailySum, Entry, Quarantined
from gpuyard.worlds.standalone.store.quarantine import EntriesQuarantined, EntriesReleased, entry_of
from tests.worlds.store.places import Places, a_snapshot, a_sum, an_entry, content, entries, fill, seqs

pytestmark = pytest.mark.slow

ON_ONE_STORE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
"""Connecting for every example would take most of the time."""

WORDS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)
FEW_KINDS = st.sampled_from(["job-submitted", "plan-recorded", "node-seen"])
FEW_TEAMS = st.sampled_from(["", "vision", "speech", "größe"])
FEW_ACTORS = st.sampled_from(["", "ann", "node/a"])
FEW_OBJECTS = st.sampled_from(["job/1", "job/2", "node/a", "team/vision"])
FEW_TIMES = st.integers(0, 30)


@st.composite
def drafts(draw: st.DrawFn) -> Entry:
    """An entry without its number."""
    return Entry(
        seq=0,
        at_ms=draw(FEW_TIMES),
        kind=draw(FEW_KINDS),
        body=draw(st.binary(max_size=30)),
        actor=draw(FEW_ACTORS | WORDS),
        team=draw(FEW_TEAMS),
        objects=tuple(draw(st.lists(FEW_OBJECTS | WORDS, max_size=3))),
    )


def numbered(given: list[Entry], after: int) -> list[Entry]:
    return [
        Entry(after + place, one.at_ms, one.kind, one.body, one.actor, one.team, one.objects)
        for place, one in enumerate(given, start=1)
    ]


# ------------------------------------------------------------------------------------------------------------- the log


def test_a_new_store_is_empty(place: Places) -> None:
    store = place.opened()
    assert content(store) == (0, [], [], [])
    assert store.is_empty()
    assert store.history() == []


@ON_ONE_STORE
@given(batches=st.lists(st.lists(drafts(), max_size=4), max_size=4))
def test_what_is_read_is_what_was_appended(place: Places, batches: list[list[Entry]]) -> None:
    store = place.emptied()
    for batch in batches:
        store.append(numbered(batch, store.last_seq()))
    flat = numbered([entry for batch in batches for entry in batch], 0)
    assert store.read(0, 1_000) == flat
    assert store.last_seq() == len(flat)


def test_what_was_appended_is_there_when_it_is_opened_again(place: Places) -> None:
    first = place.opened()
    fill(first)
    before = content(first)
    first.close()
    assert content(place.opened()) == before


def test_it_is_read_in_pages(place: Places) -> None:
    store = place.opened()
    store.append(entries(1, 10))
    assert seqs(store.read(0, 4)) == [1, 2, 3, 4]
    assert seqs(store.read(8, 4)) == [9, 10]
    assert store.read(10, 4) == []
    assert store.read(0, 0) == []


def test_an_append_of_nothing_is_nothing(place: Places) -> None:
    store = place.opened()
    store.append([])
    assert store.last_seq() == 0


@pytest.mark.parametrize("first", [1, 3, 5, 0])
def test_an_entry_that_is_not_the_next_is_refused(place: Places, first: int) -> None:
    store = place.opened()
    store.append(entries(1, 3))
    with pytest.raises(StoreConflictError):
        store.append(entries(first, first + 1))
    assert store.read(0, 100) == entries(1, 3)
    store.append(entries(4, 5))
    assert store.last_seq() == 5


def test_a_batch_with_a_gap_in_it_is_refused_as_a_whole(place: Places) -> None:
    store = place.opened()
    with pytest.raises(StoreConflictError):
        store.append([an_entry(1), an_entry(3)])
    assert store.is_empty()


@pytest.mark.parametrize(
    "bad",
    [{"actor": "a\0b"}, {"team": "x" * 257}, {"objects": ("job/\0",)}, {"at_ms": 2**63}, {"objects": ("o",) * 1001}],
)
def test_a_batch_with_an_entry_that_cannot_be_kept_is_refused_as_a_whole(place: Places, bad: dict[str, object]) -> None:
    store = place.opened()
    with pytest.raises(StoreError):
        store.append([an_entry(1), an_entry(2, **bad)])
    assert store.is_empty()


def test_an_entry_may_name_an_object_twice(place: Places) -> None:
    store = place.opened()
    twice = an_entry(1, objects=("job/1", "job/1"))
    store.append([twice])
    assert store.history(object="job/1") == [twice]


def test_numbers_beyond_32_bits_are_kept(place: Places) -> None:
    store = place.opened()
    entry = an_entry(1, at_ms=2**62)
    store.append([entry])
    store.add_sums([a_sum(gpu_milli_ms=2**62)])
    assert store.read(0, 1) == [entry]
    assert store.sums("0", "9") == [a_sum(gpu_milli_ms=2**62)]


# ---------------------------------------------------------------------------------------------------------- one writer


def test_a_second_writer_is_refused_until_the_first_has_closed(place: Places) -> None:
    first, second = place.opened(), place.store()
    with pytest.raises(StoreBusyError) as refused:
        second.open()
    if not isinstance(first, MemoryStore):
        assert str(os.getpid()) in str(refused.value)
    first.close()
    second.open()
    assert second.last_seq() == 0


def test_a_store_that_is_not_open_says_so(place: Places) -> None:
    store = place.store()
    with pytest.raises(StoreGoneError, match="not open"):
        store.last_seq()
    store.open()
    store.close()
    with pytest.raises(StoreGoneError, match="not open"):
        store.append(entries(1, 1))
    store.close()


def test_opening_again_what_is_open_keeps_everything(place: Places) -> None:
    store = place.opened()
    store.append(entries(1, 2))
    store.open()
    store.append(entries(3, 3))
    assert store.read(0, 10) == entries(1, 3)


def test_it_says_what_it_is(place: Places) -> None:
    assert place.opened().description


# ------------------------------------------------------------------------------------------------------------- history


@ON_ONE_STORE
@given(data=st.data())
def test_the_history_finds_what_a_plain_filter_finds(place: Places, data: st.DataObject) -> None:
    log = numbered(data.draw(st.lists(drafts(), max_size=12)), 0)
    wanted = data.draw(FEW_OBJECTS | st.just(""))
    kinds = data.draw(st.lists(FEW_KINDS, max_size=3))
    actor = data.draw(FEW_ACTORS)
    teams = data.draw(st.none() | st.lists(FEW_TEAMS, max_size=3))
    since_ms = data.draw(FEW_TIMES)
    until_ms = data.draw(st.none() | FEW_TIMES)
    before_seq = data.draw(st.none() | st.integers(0, 14))
    limit = data.draw(st.integers(0, 20))
    plain = [
        entry
        for entry in reversed(log)
        if (not wanted or wanted in entry.objects)
        and (not kinds or entry.kind in kinds)
        and (not actor or entry.actor == actor)
        and (teams is None or entry.team in teams)
        and entry.at_ms >= since_ms
        and (until_ms is None or entry.at_ms < until_ms)
        and (before_seq is None or entry.seq < before_seq)
    ][:limit]
    store = place.emptied()
    store.append(log)
    found = store.history(
        object=wanted,
        kinds=kinds,
        actor=actor,
        teams=teams,
        since_ms=since_ms,
        until_ms=until_ms,
        before_seq=before_seq,
        limit=limit,
    )
    assert found == plain


def test_pages_of_the_history_hold_everything_once(place: Places) -> None:
    store = place.opened()
    store.append([an_entry(seq, kind="ab"[seq % 2]) for seq in range(1, 24)])
    found: list[int] = []
    before = None
    while page := store.history(kinds=["a", "b"], before_seq=before, limit=5):
        found += seqs(page)
        before = page[-1].seq
    assert found == list(range(23, 0, -1))


def test_more_kinds_and_teams_than_are_looked_up_one_by_one(place: Places) -> None:
    store = place.opened()
    store.append([an_entry(seq, kind=f"kind-{seq}", team=f"team-{seq}") for seq in range(1, 121)])
    wanted = [f"kind-{seq}" for seq in range(1, 101)]
    assert seqs(store.history(kinds=wanted, limit=200)) == list(range(100, 0, -1))
    assert seqs(store.history(teams=[f"team-{seq}" for seq in range(21, 121)], limit=3)) == [120, 119, 118]


# ----------------------------------------------------------------------------------------------------------- retention


def test_retention_takes_old_entries_of_the_named_kinds_only(place: Places) -> None:
    store = place.opened()
    store.append([an_entry(seq, kind=("keep", "decided", "seen")[seq % 3], at_ms=seq) for seq in range(1, 13)])
    assert store.prune({"decided": 8, "seen": 6}, up_to_seq=100) == 5
    assert seqs(store.read(0, 100)) == [3, 6, 8, 9, 10, 11, 12]
    assert seqs(store.history(object="team/vision")) == [12, 11, 10, 9, 8, 6, 3]
    assert seqs(store.history(kinds=["decided"])) == [10]


def test_retention_takes_nothing_after_the_number_it_is_given(place: Places) -> None:
    store = place.opened()
    store.append(entries(1, 9))
    assert store.prune({"job-submitted": 10**9}, up_to_seq=4) == 4
    assert seqs(store.read(0, 100)) == [5, 6, 7, 8, 9]


def test_retention_takes_nothing_up_to_the_number_it_begins_after(place: Places) -> None:
    store = place.opened()
    store.append(entries(1, 9))
    assert store.prune({"job-submitted": 10**9}, up_to_seq=7, after_seq=3) == 4
    assert seqs(store.read(0, 100)) == [1, 2, 3, 8, 9]


def test_the_log_goes_on_after_retention_has_taken_all_of_it(place: Places) -> None:
    store = place.opened()
    store.append(entries(1, 5))
    assert store.prune({"job-submitted": 10**9}, up_to_seq=5) == 5
    assert (store.last_seq(), store.read(0, 10)) == (5, [])
    store.close()
    again = place.opened()
    again.append(entries(6, 6))
    assert seqs(again.read(0, 10)) == [6]


def test_retention_goes_on_beyond_one_transaction(place: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_store, "PRUNE_CHUNK", 3)
    store = place.opened()
    store.append(entries(1, 11))
    assert store.prune({"job-submitted": 10_000, "other": 5}, up_to_seq=100) == 9
    assert seqs(store.history(object="team/vision")) == [11, 10]


# -------------------------------------------------------------------------------------------------- snapshots and sums


def test_the_newest_snapshots_are_kept(place: Places) -> None:
    store = place.opened()
    for seq in range(10, 60, 10):
        store.save_snapshot(a_snapshot(seq, b"\0\xff%d" % seq))
    assert list(store.snapshots()) == [a_snapshot(seq, b"\0\xff%d" % seq) for seq in (50, 40, 30)]


def test_a_snapshot_of_the_same_entry_replaces_the_last(place: Places) -> None:
    store = place.opened()
    store.save_snapshot(a_snapshot(5, b"old"))
    store.save_snapshot(a_snapshot(5, b"new"))
    assert list(store.snapshots()) == [a_snapshot(5, b"new")]


def test_a_sum_of_the_same_keys_replaces_the_last(place: Places) -> None:
    store = place.opened()
    store.add_sums([a_sum(gpu_milli_ms=1), a_sum(kind="wasted", cause="17/Reclaimed", gpu_milli_ms=2)])
    store.add_sums([a_sum(gpu_milli_ms=3), a_sum(gpu_milli_ms=4)])
    store.add_sums([])
    assert store.sums("0", "9") == [
        a_sum(gpu_milli_ms=4),
        a_sum(kind="wasted", cause="17/Reclaimed", gpu_milli_ms=2),
    ]


def test_sums_of_both_ends_of_a_span_belong_to_it(place: Places) -> None:
    store = place.opened()
    days = [f"2026-11-{day:02}" for day in range(1, 8)]
    store.add_sums([a_sum(day=day) for day in reversed(days)])
    assert [one.day for one in store.sums(days[2], days[4])] == days[2:5]


def test_sums_come_in_the_order_of_their_keys(place: Places) -> None:
    store = place.opened()
    given = [a_sum(team=team, user=user) for team in ("b", "B", "ä", "a") for user in ("y", "X")]
    store.add_sums(given)

    def keys(one: DailySum) -> tuple[str, str]:
        return one.team, one.user

    assert store.sums("0", "9") == sorted(given, key=keys)


def test_a_backup_can_be_made_without_opening(place: Places, tmp_path: Path) -> None:
    writer = place.opened()
    fill(writer)
    place.store().backup(str(tmp_path / "beside"))
    writer.backup(str(tmp_path / "own"))
    assert (tmp_path / "beside").read_bytes() == (tmp_path / "own").read_bytes()


# ------------------------------------------------------------------------------------------------------------ the chain


def test_what_was_appended_pruned_and_appended_again_is_one_chain(place: Places) -> None:
    store = place.opened()
    for first in (1, 11, 21):
        store.append(entries(first, first + 9))
        store.save_snapshot(a_snapshot(first + 9))
        store.prune({"job-submitted": 1_000 * (first - 3)}, first + 4)
        assert store.check().entries == len(store.read(0, 100))
        found = store.verify()
        assert (found.damage, found.last_seq, found.complete) == ((), first + 9, True)
    store.append([an_entry(31, kind="node-seen"), an_entry(32)])
    store.prune({"node-seen": 10**9}, 32)
    assert seqs(store.read(17, 100)) == [*range(18, 31), 32]
    assert store.verify().damage == ()


def test_everything_that_retention_may_take_can_go(place: Places) -> None:
    store = place.opened()
    store.append(entries(1, 9))
    assert store.prune({"job-submitted": 10**9}, 9) == 9
    assert store.verify().damage == ()
    store.append(entries(10, 12))
    assert store.verify().damage == ()


def test_entries_in_quarantine_and_what_says_so_outlive_retention(place: Places) -> None:
    store = place.opened()
    store.append(entries(1, 5))
    event = EntriesQuarantined((Quarantined(3, "job-submitted", "it is wrong"),))
    store.append([entry_of(6, 6_000, event)])
    assert set(store.quarantine().entries) == {3}
    assert store.prune({"job-submitted": 10**9, "entries-quarantined": 10**9}, 6) == 4
    assert seqs(store.read(0, 100)) == [3, 6]
    store.append([entry_of(7, 7_000, EntriesReleased((3,)))])
    assert store.quarantine().entries == {}
    assert [store.quarantine().spoils(seq) for seq in (2, 3, 6, 7)] == [False, True, True, False]
    store.close()
    again = place.opened()
    assert again.quarantine() == store.quarantine()
    assert again.verify().damage == ()


def test_snapshots_that_cannot_be_used_are_dropped(place: Places) -> None:
    store = place.opened()
    store.append(entries(1, 9))
    for seq in (3, 6, 9):
        store.save_snapshot(a_snapshot(seq))
    store.drop_snapshots_after(5)
    assert [one.seq for one in store.snapshots()] == [3]


def test_a_restored_chain_is_that_of_the_backup(place: Places, tmp_path: Path) -> None:
    store = place.opened()
    store.append(entries(1, 40))
    store.save_snapshot(a_snapshot(30))
    store.prune({"job-submitted": 20_000}, 30)
    store.backup(str(tmp_path / "first"))
    store.replace(40, read_pages(tmp_path / "first"))
    assert store.verify().damage == ()
    store.append(entries(41, 42))
    assert store.verify().damage == ()
