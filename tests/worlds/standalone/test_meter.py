"""Use: held = owed + borrowed; what one team borrows another lends; waste names its cause."""

from __future__ import annotations

import pytest

from gpuyard.model.quantities import MILLI
from gpuyard.wire.agents import Ending
from gpuyard.worlds.standalone.events import Checkpointed, ClockJumped, DayClosed, DayClosing, IdleNoticed
from gpuyard.worlds.standalone.lifecycle import JobState
from gpuyard.worlds.standalone.meter import DAY_MS, counted_up_to, day_of
from gpuyard.worlds.standalone.records import ClockReading
from tests.worlds.standalone.yard import BEGIN_MS, Yard, a_form

HOUR_MS = 3_600_000
GPU_HOUR = MILLI * HOUR_MS


def use(yard: Yard, kind: str, team: str = "vision", job: str | None = None) -> int:
    days = counted_up_to(yard.state, yard.now_ms).open_days.values()
    return sum(
        amount
        for day in days
        for (whose, _, id, what, _), amount in day.items()
        if (whose, what) == (team, kind) and job in (None, id)
    )


def test_what_is_held_within_the_quota_is_owed() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    yard.wait(HOUR_MS)
    assert (use(yard, "held"), use(yard, "owed"), use(yard, "borrowed")) == (GPU_HOUR, GPU_HOUR, 0)


def test_what_is_held_beyond_it_is_borrowed_and_the_other_team_lends_it() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=3))
    yard.run(id)
    yard.wait(HOUR_MS)
    held, owed, borrowed = (use(yard, kind) for kind in ("held", "owed", "borrowed"))
    assert held == owed + borrowed == 3 * GPU_HOUR
    assert abs(borrowed - GPU_HOUR) < GPU_HOUR // 1000
    yard.end(id, 0)
    assert use(yard, "lent", "speech") == GPU_HOUR


def test_each_job_of_a_borrowing_team_borrows_the_same_part() -> None:
    yard = Yard()
    first, second = yard.submit(a_form(tasks=2)), yard.submit(a_form(tasks=2))
    yard.run(first, node="a")
    yard.run(second, node="b")
    yard.wait(HOUR_MS)
    assert use(yard, "borrowed", job=first) == use(yard, "borrowed", job=second) == GPU_HOUR


def test_what_is_held_and_not_used_is_idle_until_it_is_used_or_ends() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2))
    yard.run(id)
    yard.wait(HOUR_MS)
    assert use(yard, "idle") == 0
    yard.enter(IdleNoticed(id, yard.now_ms))
    yard.wait(HOUR_MS)
    assert use(yard, "idle") == 2 * GPU_HOUR
    yard.enter(IdleNoticed(id, None))
    yard.wait(HOUR_MS)
    assert use(yard, "idle", job=id) == 2 * GPU_HOUR
    yard.enter(IdleNoticed(id, yard.now_ms))
    yard.wait(HOUR_MS)
    # The first task that ends is the end of the idling, for both.
    yard.end(id, task=0)
    yard.wait(HOUR_MS)
    yard.end(id, task=1)
    assert (use(yard, "idle"), use(yard, "held")) == (4 * GPU_HOUR, 9 * GPU_HOUR)


def test_work_since_the_last_checkpoint_is_wasted_and_names_the_decision_that_caused_it() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    yard.wait(HOUR_MS)
    yard.enter(Checkpointed(id, 0, yard.now_ms))
    yard.wait(HOUR_MS // 2)
    yard.evict(id, (0,), whole=True)
    decision = yard.state.seq
    yard.stopped(id)
    sums = yard.state.meter.open_days[day_of(yard.now_ms - 1)]
    wasted = {key: amount for key, amount in sums.items() if key[3] == "wasted"}
    assert wasted == {("vision", "ann", id, "wasted", f"{decision}/Reclaimed"): GPU_HOUR // 2}


def test_what_succeeds_wastes_nothing_and_what_is_lost_does() -> None:
    yard = Yard()
    good, bad = yard.submit(), yard.submit()
    yard.run(good, node="a")
    yard.run(bad, node="b")
    yard.wait(HOUR_MS)
    yard.end(good)
    yard.end(bad, code=None, ending=Ending.LOST)
    assert (use(yard, "wasted", job=good), use(yard, "wasted", job=bad)) == (0, GPU_HOUR)


def test_each_day_gets_its_own_part_of_what_runs_over_midnight() -> None:
    yard = Yard()
    midnight_ms = (BEGIN_MS // DAY_MS + 1) * DAY_MS
    yard.wait(midnight_ms - BEGIN_MS - 2 * HOUR_MS)
    id = yard.submit()
    yard.run(id)
    yard.wait(3 * HOUR_MS)
    days = counted_up_to(yard.state, yard.now_ms).open_days
    held = {day: sum(amount for key, amount in sums.items() if key[3] == "held") for day, sums in days.items()}
    assert held == {day_of(midnight_ms - 1): 2 * GPU_HOUR, day_of(midnight_ms): GPU_HOUR}
    yard.enter(DayClosed(day_of(midnight_ms - 1)))
    yard.end(id)
    assert use(yard, "held") == GPU_HOUR


def test_a_closed_day_is_counted_no_more_and_use_goes_on() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    yard.wait(HOUR_MS)
    yard.enter(DayClosed(day_of(BEGIN_MS)))
    assert use(yard, "held") == 0
    yard.wait(HOUR_MS)
    assert use(yard, "held") == GPU_HOUR
    yard.end(id)
    assert (yard.is_(id), yard.state.meter.teams["vision"].held_milli) == (JobState.SUCCEEDED, 0)


def test_asking_for_the_sums_changes_nothing() -> None:
    yard = Yard()
    yard.run(yard.submit())
    yard.wait(HOUR_MS)
    counted_up_to(yard.state, yard.now_ms)
    assert yard.state.meter.open_days == {}


# --------------------------------------------------------------------------------------------- the wall clock is set


def jump(yard: Yard, by_ms: int) -> None:
    yard.now_ms += by_ms
    yard.enter(ClockJumped(by_ms, ClockReading("boot", yard.now_ms)))


@pytest.mark.parametrize("by_ms", [-400 * DAY_MS, -2 * HOUR_MS, -1_500, 1_500, 2 * HOUR_MS, 40 * DAY_MS])
def test_a_jump_of_the_clock_charges_nobody_and_takes_back_nothing(by_ms: int) -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=3))
    yard.run(id)
    yard.wait(HOUR_MS)
    jump(yard, by_ms)
    yard.wait(HOUR_MS)
    yard.end(id, 0)
    held, owed, borrowed = (use(yard, kind) for kind in ("held", "owed", "borrowed"))
    assert held == owed + borrowed == 6 * GPU_HOUR
    assert abs(borrowed - 2 * GPU_HOUR) < GPU_HOUR // 1000
    assert use(yard, "lent", "speech") == 2 * GPU_HOUR


def test_a_jump_of_the_clock_wastes_nothing_and_is_not_idle_time() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    yard.wait(HOUR_MS)
    yard.enter(Checkpointed(id, 0, yard.now_ms), IdleNoticed(id, yard.now_ms))
    yard.wait(HOUR_MS)
    jump(yard, 40 * DAY_MS)
    yard.wait(HOUR_MS)
    yard.end(id, code=None, ending=Ending.LOST)
    assert (use(yard, "idle"), use(yard, "wasted"), use(yard, "held")) == (2 * GPU_HOUR, 2 * GPU_HOUR, 3 * GPU_HOUR)


def test_use_before_a_jump_stays_on_its_day_and_use_after_it_is_of_the_new_day() -> None:
    yard = Yard()
    yard.wait(3 * HOUR_MS)
    yard.run(yard.submit())
    yard.wait(HOUR_MS)
    before = day_of(yard.now_ms)
    jump(yard, 40 * DAY_MS)
    yard.wait(HOUR_MS)
    assert held_by_day(yard) == {before: GPU_HOUR, day_of(yard.now_ms): GPU_HOUR}


def test_days_that_are_yet_to_come_are_brought_back_where_the_clock_is_set_right() -> None:
    yard = Yard()
    begin_ms = (BEGIN_MS // DAY_MS + 1) * DAY_MS
    yard.wait(begin_ms - BEGIN_MS)
    yard.run(yard.submit())
    yard.wait(20 * HOUR_MS)
    jump(yard, 40 * DAY_MS)
    yard.wait(6 * HOUR_MS)
    jump(yard, -40 * DAY_MS)
    yard.wait(HOUR_MS)
    assert held_by_day(yard) == {day_of(begin_ms): 24 * GPU_HOUR, day_of(begin_ms + DAY_MS): 3 * GPU_HOUR}


def test_a_closed_day_that_comes_again_is_summed_as_a_whole() -> None:
    yard = Yard()
    midnight_ms = (BEGIN_MS // DAY_MS + 1) * DAY_MS
    day = day_of(BEGIN_MS)
    yard.wait(midnight_ms - BEGIN_MS - HOUR_MS)
    id = yard.submit()
    yard.run(id)
    yard.wait(HOUR_MS + 1_000)
    kept = counted_up_to(yard.state, yard.now_ms).open_days[day]
    yard.enter(DayClosed(day))
    jump(yard, -60_000)
    yard.wait(60_000)
    assert yard.state.meter.closed_until == day
    yard.enter(DayClosing(day, tuple((*key, amount) for key, amount in kept.items())))
    assert list(yard.state.meter.closing) == [day]
    # The second after midnight was on the next day only by a clock that ran ahead; then 59 s follow to midnight.
    assert held_by_day(yard)[day] == GPU_HOUR + 60_000 * MILLI
    yard.enter(DayClosed(day))
    assert (len(yard.state.meter.closing), day in yard.state.meter.open_days) == (0, False)


def held_by_day(yard: Yard) -> dict[str, int]:
    days = counted_up_to(yard.state, yard.now_ms).open_days
    found = {day: sum(amount for key, amount in sums.items() if key[3] == "held") for day, sums in days.items()}
    return {day: amount for day, amount in found.items() if amount}
