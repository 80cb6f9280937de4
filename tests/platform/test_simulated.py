"""Virtual time and seeded chance."""

from __future__ import annotations

from gpuyard.platform.simulated import MAX_DRIFT_PPM, Chance, DriftingClock, Timeline


def test_what_is_due_at_one_moment_happens_in_the_order_it_was_asked_for() -> None:
    timeline, happened = Timeline(), list[str]()
    timeline.after(20, lambda: happened.append("late"))
    timeline.after(10, lambda: happened.append("first"))
    timeline.after(10, lambda: happened.append("second"))
    timeline.after(10, lambda: happened.append("never")).cancelled = True
    timeline.run(15)
    assert (happened, timeline.now_ms) == (["first", "second"], 15)
    timeline.run(5)
    assert happened[-1] == "late"


def test_a_clock_drifts_and_is_set_while_the_steady_one_runs_on() -> None:
    timeline = Timeline()
    clock = DriftingClock(timeline, MAX_DRIFT_PPM, wall_ms=1_000, steady_ms=0)
    timeline.run(1_000_000)
    clock.set_forward(-500)
    assert (clock.wall_ms(), clock.steady_ms()) == (1_001_500, 1_001_000)
    clock.restart(7)
    assert (clock.wall_ms(), clock.steady_ms()) == (1_001_500, 7)


def test_a_duration_of_a_clock_is_over_on_that_clock() -> None:
    timeline = Timeline()
    for drift_ppm in (-MAX_DRIFT_PPM, 0, MAX_DRIFT_PPM):
        clock = DriftingClock(timeline, drift_ppm, 0, 0)
        timeline.run(clock.true_ms(60_000))
        assert 0 <= clock.steady_ms() - 60_000 <= 1


def test_one_concern_draws_the_same_whatever_another_draws() -> None:
    def drawn(others: int) -> list[int]:
        mine, other = Chance(1, "mine"), Chance(1, "other")
        for _ in range(others):
            other.between(0, 9)
        return [mine.between(0, 9) for _ in range(20)]

    assert drawn(0) == drawn(5)
