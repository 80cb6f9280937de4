"""A log that holds what cannot be decoded, entered or planned on: it opens, the rest counts, and all is named."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuyard.errors import StoreError
from gpuyard.model.nodes import Device
from gpuyard.model.quantities import MILLI
from gpuyard.platform.clock import wall_ms
from gpuyard.service.core import Clock, Core
from gpuyard.wire.agents import MachineFacts
from gpuyard.worlds.standalone import reading
from gpuyard.worlds.standalone.events import Event, NodeSeen, Noted, kind_of
from gpuyard.worlds.standalone.journal import Journal, load
from gpuyard.worlds.standalone.store import replay as replaying
from gpuyard.worlds.standalone.store.memory import MemoryDisk
from gpuyard.worlds.standalone.store.opening import open_store
from gpuyard.worlds.standalone.store.port import Entry, StoredSnapshot
from gpuyard.worlds.standalone.store.sql_store import SqlStore
from tests.cli.test_backup import run
from tests.conftest import LONG
from tests.worlds.standalone.yard import Yard
from tests.worlds.store.old import raw, write_old
from tests.worlds.store.places import Places

pytestmark = pytest.mark.slow

SQL = ["sqlite", "postgres"]
NewPlace = Callable[[str], Places]
TOO_MANY = MachineFacts(tuple(Device(memory_mib=1000) for _ in range(64)), cpu_milli=1000, memory_bytes=1 << 30)
TOO_MUCH = MachineFacts((), cpu_milli=(1 << 64) - 1, memory_bytes=(1 << 64) - 1)
BELOW_ZERO = MachineFacts((), cpu_milli=-5, memory_bytes=1 << 30)


def seen(facts: MachineFacts, node: str = "a") -> bytes:
    return msgspec.json.encode(NodeSeen(node, facts, "i", "b", "1"))


def lived() -> tuple[Yard, list[Entry]]:
    """Something that happened, as a log."""
    yard = Yard()
    first = yard.submit()
    yard.place(first)
    yard.submit()
    return yard, yard.journal.take_pending()


def put(log: Sequence[Entry], at: int, kind: str, body: bytes, at_ms: int | None = None) -> list[Entry]:
    """The log with one more entry, at this number; what comes after it moves on."""
    moment = log[at - 2].at_ms if at_ms is None else at_ms
    before, after = log[: at - 1], log[at - 1 :]
    moved = [msgspec.structs.replace(entry, seq=entry.seq + 1) for entry in after]
    return [*before, Entry(at, moment, kind, body, "node/a", "", ("node/a",)), *moved]


def begun(journal: Journal) -> Core:
    """What the manager makes of a log at its start; it plans, too."""
    core = Core(journal, Clock(wall_ms, wall_ms))
    core.loop.follow()
    core.loop.carry_out(core.loop.plan())
    return core


def opened(place: Places) -> SqlStore:
    store = place.opened()
    assert isinstance(store, SqlStore)
    return store


def address_of(place: Places) -> str:
    assert not isinstance(place.address, MemoryDisk)
    return str(place.address)


FEW = ("64 devices", "no JSON", "of a job nobody knows")
BAD = {
    "64 devices": ("node-seen", seen(TOO_MANY), "at most"),
    "all ones": ("node-seen", seen(TOO_MUCH), "the range is 0 to"),
    "below zero": ("node-seen", seen(BELOW_ZERO), "the range is 0 to"),
    "beyond 64 bits": ("node-seen", seen(TOO_MUCH).replace(b"18446744073709551615", b"9" * 40), "the range is 0 to"),
    "no JSON": ("job-went", b"\x00\xff\xfe", "cannot be read"),
    "nothing": ("job-submitted", b"", "cannot be read"),
    "half of it": ("node-seen", seen(TOO_MANY)[:200], "cannot be read"),
    "nested": ("noted", b'{"type":"noted","about":' + b"[" * 100_000 + b"}", "cannot be read"),
    "another kind": ("node-lost", seen(MachineFacts()), "another kind, node-seen"),
    "of a node nobody knows": ("node-seen", seen(MachineFacts(), "zz"), "it is about 'zz'"),
    "of a job nobody knows": ("idle-warned", b'{"type":"idle-warned","job":"999","idle_ms":1}', "it is about '999'"),
    "a task that is not there": (
        "checkpointed",
        b'{"type":"checkpointed","job":"1","task":7,"at_ms":1}',
        "",
    ),
}


@pytest.mark.parametrize(
    ("kind", "name"), [("sqlite", name) for name in BAD] + [("postgres", name) for name in (BAD if LONG else FEW)]
)
def test_an_old_log_with_an_entry_that_cannot_be_used_opens_and_names_it(
    kind: str, name: str, new_place: NewPlace
) -> None:
    place = new_place(kind)
    entry_kind, body, why = BAD[name]
    _, log = lived()
    bad_seq = 9
    write_old(address_of(place), put(log, bad_seq, entry_kind, body))
    store = opened(place)
    core = begun(load(store))
    found = [one for entry in core.journal.pending if entry.kind == "entries-quarantined" for one in held_in(entry)]
    if name == "a task that is not there" and not found:
        # A fold that takes it harms nobody.
        return
    assert [(one["seq"], one["kind"]) for one in found] == [(bad_seq, entry_kind)]
    assert why in found[0]["why"]
    # The rest counts: jobs, and the machine as it was before.
    assert set(core.state.jobs) == {"1", "2"}
    assert len(core.state.nodes["a"].facts.devices) == 4
    store.append(core.journal.take_pending())
    assert store.verify().damage == ()
    (kept,) = [entry for entry in store.read(bad_seq - 1, 1) if entry.seq == bad_seq]
    assert kept.body == body
    # The next start comes to the same, finds nothing new, and a snapshot taken since agrees with it.
    again = load(store)
    assert again.found == ()
    assert set(again.quarantine.entries) == {bad_seq}
    assert msgspec.msgpack.encode(again.state) == msgspec.msgpack.encode(load(store).state)
    store.save_snapshot(again.snapshot())
    store.append([an_entry_of(Noted("x", "y"), store.last_seq() + 1)])
    from_snapshot = load(store)
    assert from_snapshot.snapshot_seq == again.state.seq
    store.drop_snapshots_after(0)
    assert msgspec.msgpack.encode(load(store).state) == msgspec.msgpack.encode(from_snapshot.state)


def an_entry_of(event: Event, seq: int) -> Entry:
    return Entry(seq, 1_700_000_100_000, kind_of(event), msgspec.json.encode(event))


def held_in(entry: Entry) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(entry.body)["entries"]
    return found


@pytest.mark.parametrize("at_ms", [-1, 2**62, 253_402_300_800_000])
def test_an_entry_whose_time_no_clock_shows_is_left_out(at_ms: int, new_place: NewPlace) -> None:
    place = new_place("sqlite")
    _, log = lived()
    write_old(address_of(place), put(log, 9, "noted", b'{"type":"noted","about":"x","what":"y"}', at_ms))
    journal = load(opened(place))
    assert [one.seq for one in journal.found] == [9]
    assert journal.state.at_ms < 2**60


def test_what_follows_from_an_entry_that_is_left_out_is_left_out_as_well_and_named(new_place: NewPlace) -> None:
    """The job that cannot be read is gone, and so is all that happened to it; another one is not touched."""
    place = new_place("sqlite")
    _, log = lived()
    submitted = next(entry for entry in log if entry.kind == "job-submitted")
    spoilt = [msgspec.structs.replace(entry, body=entry.body[:-20]) if entry is submitted else entry for entry in log]
    write_old(address_of(place), spoilt)
    journal = load(opened(place))
    assert set(journal.state.jobs) == {"2"}
    about = {entry.seq for entry in log if "job/1" in entry.objects}
    assert {one.seq for one in journal.found} == about
    assert all("'1'" in one.why for one in journal.found[1:])


def test_an_entry_that_fails_in_the_middle_leaves_nothing_in_the_state(new_place: NewPlace) -> None:
    """A fold that raises halfway has changed a part of the state: what comes out is as if it had never been read."""
    _, log = lived()
    marked = put(log, 8, "noted", b'{"type":"noted","about":"bad","what":""}')
    without = new_place("sqlite")
    write_old(address_of(without), put(log, 8, "noted", b'{"type":"noted","about":"good","what":""}'))
    expected = load(opened(without)).state
    place = new_place("sqlite")
    write_old(address_of(place), marked)

    def halfway(state: object, event: object, entry: Entry) -> None:
        reading.READING.fold(state, event, entry)  # type: ignore[arg-type]
        if isinstance(event, Noted) and event.about == "bad":
            state.jobs.clear()  # type: ignore[attr-defined]
            raise OverflowError("Python int too large to convert to C long")

    journal_reading = msgspec.structs.replace(reading.READING, fold=halfway)
    found = replaying.replay(opened(place), journal_reading)
    assert list(found.found) == [8]
    assert "OverflowError" in found.found[8].why
    expected.seq = found.state.seq
    assert msgspec.msgpack.encode(found.state) == msgspec.msgpack.encode(expected)


@pytest.mark.parametrize("kind", SQL)
def test_a_snapshot_out_of_range_is_passed_over_for_an_older_one_or_the_log(kind: str, new_place: NewPlace) -> None:
    yard, log = lived()
    good = yard.journal.snapshot()
    yard.wait(1000)
    yard.submit()
    log += yard.journal.take_pending()
    bad_seq = len(log) + 1
    log = put(log, bad_seq, "node-seen", seen(TOO_MANY))
    spoilt = msgspec.msgpack.decode(msgspec.msgpack.encode(yard.state), type=type(yard.state))
    spoilt.nodes["a"] = msgspec.structs.replace(spoilt.nodes["a"], facts=TOO_MANY)
    spoilt.seq = bad_seq
    bad = StoredSnapshot(bad_seq, spoilt.at_ms, msgspec.msgpack.encode(spoilt))
    noise = StoredSnapshot(good.seq - 1, 5, b"\xff\x00")
    place = new_place(kind)
    write_old(address_of(place), log, [noise, good, bad])
    store = opened(place)
    journal = load(store)
    assert journal.snapshot_seq == good.seq
    assert [one.seq for one in journal.found] == [bad_seq]
    assert set(begun(journal).state.jobs) == {"1", "2", "3"}
    # It is not tried again.
    assert [one.seq for one in store.snapshots()] == [good.seq, noise.seq]


@pytest.mark.parametrize("kind", SQL)
def test_a_kind_that_nobody_knows_is_left_to_a_person(kind: str, new_place: NewPlace) -> None:
    place = new_place(kind)
    _, log = lived()
    write_old(address_of(place), put(log, 9, "node-teleported", b'{"type":"node-teleported"}'))
    store = opened(place)
    with pytest.raises(StoreError, match='entry 9 is of the kind "node-teleported", which this gpuyard') as refused:
        load(store)
    assert "use the gpuyard that wrote it" in refused.value.fix
    assert "gpuyard store quarantine 9 --database" in refused.value.fix
    store.close()
    done = run("store", "quarantine", "9", "--database", address_of(place))
    assert done.exit_code == 0, done.output
    assert set(load(opened(place)).state.jobs) == {"1", "2"}


def test_more_than_can_be_an_accident_is_refused_and_named(
    new_place: NewPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "MAX_FOUND", 5)
    place = new_place("sqlite")
    _, log = lived()
    for seq in range(9, 15):
        log = put(log, seq, "noted", b"?")
    write_old(address_of(place), log)
    with pytest.raises(StoreError, match=r"more than 5 entries cannot be used, the first is 9 \(noted\)"):
        load(opened(place))


@pytest.mark.parametrize("kind", SQL)
def test_any_entry_that_is_noise_in_an_old_log_never_stops_a_start(kind: str, new_place: NewPlace) -> None:
    """A log damaged elsewhere, before there were checksums: whatever is left of it can be planned on."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(12 if kind == "sqlite" else 3):
        place = new_place(kind)
        _, log = lived()
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(log))
            body = bytearray(log[at].body)
            body[draw.randrange(len(body))] ^= draw.randrange(1, 256)
            log[at] = msgspec.structs.replace(log[at], body=bytes(body))
        write_old(address_of(place), log)
        store = opened(place)
        core = begun(load(store))
        store.append(core.journal.take_pending())
        assert load(store).found == ()
        store.close()


# ------------------------------------------------------------------------------------------------------------- commands


def test_entries_are_left_out_looked_at_and_taken_back_without_a_server(new_place: NewPlace) -> None:
    place = new_place("sqlite")
    yard, log = lived()
    store = opened(place)
    store.append(log)
    whole = msgspec.msgpack.encode(load(store).state)
    store.save_snapshot(yard.journal.snapshot())
    second = next(entry.seq for entry in log if entry.kind == "job-submitted" and "job/2" in entry.objects)
    busy = run("store", "quarantine", str(second), "--database", address_of(place))
    assert busy.exit_code == 2
    assert "another manager" in busy.stderr
    assert run("store", "inspect", "--database", address_of(place)).exit_code == 0
    store.close()
    done = run("store", "quarantine", str(second), "--why", "it is wrong", "--database", address_of(place))
    assert done.stdout == f"entry {second} (job-submitted) is in quarantine: it is wrong\n"
    assert run("store", "quarantine", str(second), "--database", address_of(place)).exit_code == 2
    found = json.loads(run("store", "inspect", "--quarantined", "-o", "json", "--database", address_of(place)).stdout)
    assert [(one["seq"], one["quarantined"], one["why"]) for one in found] == [(second, True, "it is wrong")]
    # The snapshot holds what the entry did, so it does not count any more.
    store = opened(place)
    journal = load(store)
    assert (set(journal.state.jobs), journal.snapshot_seq) == ({"1"}, 0)
    store.save_snapshot(StoredSnapshot(journal.state.seq, 1, msgspec.msgpack.encode(journal.state)))
    store.close()
    assert run("store", "release", str(second), "--database", address_of(place)).exit_code == 0
    store = opened(place)
    again = load(store).state
    again.seq = yard.state.seq
    again.at_ms = yard.state.at_ms
    assert msgspec.msgpack.encode(again) == whole
    store.close()
    verified = json.loads(run("store", "verify", "-o", "json", "--database", address_of(place)).stdout)
    assert verified["gpuyard"]["damage"] == []


def test_a_damaged_entry_can_be_given_up_and_the_snapshots_stay(new_place: NewPlace) -> None:
    place = new_place("sqlite")
    yard, log = lived()
    store = opened(place)
    store.append(log)
    store.save_snapshot(yard.journal.snapshot())
    store.append([an_entry_of(Noted("x", "y"), len(log) + 1)])
    store.close()
    with raw(address_of(place)) as by_hand:
        by_hand("UPDATE entries SET body = x'00' WHERE seq = 9")
        by_hand("DELETE FROM entries WHERE seq = 7")
    checked = run("store", "verify", "--database", address_of(place))
    assert checked.exit_code == 1
    assert "entry 9 is not what was written" in checked.stdout
    assert "entry 7 is missing" in checked.stdout
    assert run("store", "quarantine", "9", "7", "--database", address_of(place)).exit_code == 0
    assert run("store", "verify", "--database", address_of(place)).exit_code == 0
    # What both did is in the snapshot.
    assert set(load(opened(place)).state.jobs) == {"1", "2"}
    assert run("store", "inspect", "--seq", "9..9", "--database", address_of(place)).stdout.count("QUARANTINED") == 1


def test_what_is_in_every_snapshot_cannot_be_taken_back(new_place: NewPlace) -> None:
    place = new_place("sqlite")
    yard, log = lived()
    store = opened(place)
    store.append(log)
    store.save_snapshot(yard.journal.snapshot())
    store.prune({"node-joined": yard.now_ms + 1}, len(log))
    store.close()
    refused = run("store", "quarantine", "9", "--database", address_of(place))
    assert refused.exit_code == 2
    assert "is in every snapshot" in refused.stderr


@pytest.mark.parametrize(("span", "seqs"), [("3..5", [3, 4, 5]), ("4", [4]), ("..2", [1, 2]), ("18..", [18])])
def test_a_span_of_entries(span: str, seqs: list[int], tmp_path: Path) -> None:
    path = tmp_path / "state" / "gpuyard.db"
    store = open_store(path)
    store.open()
    store.append([an_entry_of(Noted("x", str(MILLI)), seq) for seq in range(1, 19)])
    store.close()
    found = json.loads(run("store", "inspect", "--seq", span, "-o", "json", "--database", path).stdout)
    assert [one["seq"] for one in found] == seqs
    assert run("store", "inspect", "--seq", "5..3", "--database", path).exit_code == 2
    assert run("store", "inspect", "--seq", "a..b", "--database", path).exit_code == 2
