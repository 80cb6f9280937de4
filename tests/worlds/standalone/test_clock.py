"""What readings of the manager's clocks mean, and what a jump of the wall clock does to the state."""

from __future__ import annotations

import msgspec
import pytest

from gpuyard.worlds.standalone.clock import MAX_DEVIATION_MS, UNSETTLED_JUMP_MS, clock_event, is_settled
from gpuyard.worlds.standalone.clock_fold import JOB_TIMES, NODE_TIMES, TASK_TIMES
from gpuyard.worlds.standalone.events import DECODER, ClockJumped, ClockRead, IdleNoticed, RequestKept
from gpuyard.worlds.standalone.fold import KEPT_RECEIPTS_MS, fold
from gpuyard.worlds.standalone.records import (
    MAX_JUMPS_KEPT,
    ClockReading,
    JobRecord,
    Jump,
    NodeRecord,
    Receipt,
    State,
    TaskRecord,
)
from gpuyard.worlds.standalone.retention import DECISIONS_MS, Span, spans_of
from tests.worlds.standalone.yard import BEGIN_MS, Yard, a_form

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
JUMPS = (-400 * DAY_MS, -40 * DAY_MS, -HOUR_MS, -1_500, 1_500, HOUR_MS, 40 * DAY_MS, 9_000 * DAY_MS)

STAY = {
    TaskRecord: set[str](),
    JobRecord: {"planned_at_ms"},
    NodeRecord: {"joined_at_ms"},
}
"""Times that are dates: nothing is counted from them."""


def jump(yard: Yard, by_ms: int) -> None:
    yard.now_ms += by_ms
    yard.enter(ClockJumped(by_ms, ClockReading("boot", yard.now_ms)))


def read(boot: str, wall_ms: int, steady_ms: int) -> State:
    """A state whose clocks were read once."""
    return State(at_ms=wall_ms, clock=ClockReading(boot, wall_ms - steady_ms))


# ------------------------------------------------------------------------------------------------------- readings


def test_the_first_reading_is_recorded_and_the_same_one_is_not_recorded_again() -> None:
    found = clock_event(State(), "b1", BEGIN_MS, 500)
    assert found == ClockRead(ClockReading("b1", BEGIN_MS - 500))
    assert clock_event(read("b1", BEGIN_MS, 500), "b1", BEGIN_MS + HOUR_MS, 500 + HOUR_MS) is None


@pytest.mark.parametrize("by_ms", JUMPS)
def test_the_wall_clock_that_runs_apart_from_the_monotonic_one_has_jumped(by_ms: int) -> None:
    state = read("b1", BEGIN_MS, 500)
    found = clock_event(state, "b1", BEGIN_MS + 60_000 + by_ms, 60_500)
    assert found == ClockJumped(by_ms, ClockReading("b1", BEGIN_MS + by_ms - 500))


def test_small_steps_are_followed_once_they_add_up() -> None:
    state = read("b1", BEGIN_MS, 0)
    steps = [clock_event(state, "b1", BEGIN_MS + 1_000 + by_ms, 1_000) for by_ms in range(0, 2_000, 100)]
    assert [found.by_ms for found in steps if isinstance(found, ClockJumped)] == list(
        range(MAX_DEVIATION_MS + 100, 2_000, 100)
    )


def test_on_another_boot_the_wall_clock_is_believed_but_never_goes_back() -> None:
    state = read("b1", BEGIN_MS, 10**9)
    assert clock_event(state, "b2", BEGIN_MS + DAY_MS, 7) == ClockRead(ClockReading("b2", BEGIN_MS + DAY_MS - 7))
    assert clock_event(state, "b2", BEGIN_MS - DAY_MS, 7) == ClockJumped(
        -DAY_MS, ClockReading("b2", BEGIN_MS - DAY_MS - 7)
    )
    # So little is no jump: the time that is recorded stands still for it.
    assert clock_event(state, "b2", BEGIN_MS - 300, 7) == ClockRead(ClockReading("b2", BEGIN_MS - 7))


def test_a_monotonic_clock_that_is_behind_what_it_has_counted_is_of_another_boot() -> None:
    """As in a container with a clock of its own: the boot is the same, its monotonic clock is not."""
    state = read("b1", BEGIN_MS, 10**9)
    state.meter.at_ms = BEGIN_MS
    assert clock_event(state, "b1", BEGIN_MS + HOUR_MS, 5) == ClockRead(ClockReading("b1", BEGIN_MS + HOUR_MS - 5))


def test_the_calendar_is_doubted_for_a_day_after_a_jump_that_is_far() -> None:
    far, near = Jump(1, BEGIN_MS, -UNSETTLED_JUMP_MS), Jump(2, BEGIN_MS, HOUR_MS)
    assert is_settled(State(jumps=(near,)), BEGIN_MS)
    assert not is_settled(State(jumps=(far, near)), BEGIN_MS + DAY_MS - 1)
    assert is_settled(State(jumps=(far, near)), BEGIN_MS + DAY_MS)


# ------------------------------------------------------------------------------------------------------------ jumps


def a_busy_yard() -> Yard:
    yard = Yard()
    running, ended, stopping = (yard.submit() for _ in range(3))
    yard.run(running)
    yard.enter(IdleNoticed(running, yard.now_ms))
    yard.run(ended, node="b")
    yard.wait(5_000)
    yard.end(ended, code=1)
    yard.run(stopping, node="b")
    yard.evict(stopping, (0,), whole=True)
    yard.submit(a_form(tasks=2))
    yard.enter(RequestKept("key", Receipt("print", (running,), yard.now_ms)))
    yard.wait(60_000)
    return yard


@pytest.mark.parametrize("by_ms", JUMPS)
def test_every_duration_is_after_a_jump_what_it_was_before(by_ms: int) -> None:
    yard = a_busy_yard()
    before = {id: ages(job, yard.now_ms) for id, job in yard.state.jobs.items()}
    assert any(any(there.values()) for there in before.values())
    jump(yard, by_ms)
    assert {id: ages(job, yard.now_ms) for id, job in yard.state.jobs.items()} == before
    assert yard.state.receipts["key"].at_ms == yard.now_ms - 60_000
    assert yard.state.at_ms == yard.now_ms


def ages(job: JobRecord, now_ms: int) -> dict[str, int]:
    found = {name: getattr(job, name) for name in JOB_TIMES} | {"form": job.form.submitted_at_ms}
    for index, task in enumerate(job.tasks):
        found |= {f"{index}/{name}": getattr(task, name) for name in TASK_TIMES}
    return {name: now_ms - at_ms if at_ms else 0 for name, at_ms in found.items()}


@pytest.mark.parametrize("by_ms", JUMPS)
def test_a_clock_that_is_set_and_set_right_again_leaves_no_trace_in_jobs(by_ms: int) -> None:
    yard = a_busy_yard()
    before = msgspec.msgpack.encode((yard.state.jobs, yard.state.nodes, yard.state.receipts, yard.state.moves))
    jump(yard, by_ms)
    jump(yard, -by_ms)
    after = msgspec.msgpack.encode((yard.state.jobs, yard.state.nodes, yard.state.receipts, yard.state.moves))
    assert after == before


@pytest.mark.parametrize("record", STAY)
def test_every_time_of_a_record_moves_or_is_known_to_be_a_date(record: type[msgspec.Struct]) -> None:
    moved = {*TASK_TIMES, *JOB_TIMES, *NODE_TIMES}
    times = {name for name in record.__struct_fields__ if name.endswith(("_at_ms", "since_ms"))}
    assert times - moved == STAY[record]


def test_a_receipt_outlives_a_jump_that_is_longer_than_it_is_kept() -> None:
    yard = a_busy_yard()
    jump(yard, 40 * KEPT_RECEIPTS_MS)
    yard.enter(RequestKept("other", Receipt("print", ("1",), yard.now_ms)))
    assert set(yard.state.receipts) == {"key", "other"}
    yard.wait(KEPT_RECEIPTS_MS)
    yard.enter(RequestKept("last", Receipt("print", ("1",), yard.now_ms)))
    assert set(yard.state.receipts) == {"last"}


def test_a_log_with_jumps_folds_to_the_same_bytes() -> None:
    yard = a_busy_yard()
    for by_ms in (40 * DAY_MS, -41 * DAY_MS, 1_500):
        jump(yard, by_ms)
        yard.wait(3_000)
        yard.steer("cancel", yard.submit())
    replayed = State()
    for entry in yard.journal.pending:
        fold(replayed, DECODER.decode(entry.body), entry.seq, entry.at_ms)
    assert msgspec.msgpack.encode(replayed) == msgspec.msgpack.encode(yard.state)


def test_a_clock_that_never_stands_still_fills_no_state() -> None:
    yard = Yard()
    for count in range(2 * MAX_JUMPS_KEPT):
        jump(yard, HOUR_MS if count % 2 else -HOUR_MS)
    assert len(yard.state.jumps) == MAX_JUMPS_KEPT
    assert sum(one.by_ms for one in yard.state.jumps) == 0


# -------------------------------------------------------------------------------------------------------- retention


def test_without_a_jump_all_entries_are_of_one_age() -> None:
    assert list(spans_of((), BEGIN_MS, 70)) == [Span(0, 70, BEGIN_MS)]
    assert list(spans_of((), BEGIN_MS, 0)) == []


def test_the_age_of_an_entry_is_told_by_the_clock_that_dated_it() -> None:
    jumps = (Jump(10, 0, 100 * DAY_MS), Jump(30, 0, -40 * DAY_MS))
    assert list(spans_of(jumps, BEGIN_MS, 70)) == [
        Span(0, 9, BEGIN_MS - 60 * DAY_MS),
        Span(9, 29, BEGIN_MS + 40 * DAY_MS),
        Span(29, 70, BEGIN_MS),
    ]
    assert list(spans_of(jumps, BEGIN_MS, 20)) == [
        Span(0, 9, BEGIN_MS - 60 * DAY_MS),
        Span(9, 20, BEGIN_MS + 40 * DAY_MS),
    ]
    assert DECISIONS_MS < 100 * DAY_MS, "without its own span each of the first ten entries would be old at once"
