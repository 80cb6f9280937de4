"""What was decided and is not yet seen: how long failures are remembered, and that nothing outlives its pod."""

from __future__ import annotations

from gpuyard.worlds.kubernetes.intents import CALM_MS, MOST_BACKOFF_MS, Binding, Intents


def test_every_failure_waits_twice_as_long_as_the_one_before_up_to_a_bound() -> None:
    intents = Intents()
    now_ms, waits = 0, []
    for _ in range(12):
        backoff = intents.failed("j", "no", now_ms)
        waits.append(backoff.until_ms - now_ms)
        now_ms = backoff.until_ms
    assert waits[:4] == [1_000, 2_000, 4_000, 8_000]
    assert waits[-1] == MOST_BACKOFF_MS


def test_pods_that_fail_together_are_one_failure() -> None:
    intents = Intents()
    for after_ms in range(0, 500, 5):
        intents.failed("j", "no", 1_000 + after_ms)
    assert intents.backoff["j"].failures == 1
    assert intents.backoff["j"].until_ms == 2_000


def test_after_a_calm_while_a_failure_is_the_first_again() -> None:
    intents = Intents()
    first = intents.failed("j", "no", 0)
    second = intents.failed("j", "no", first.until_ms)
    assert second.failures == 2
    assert intents.failed("j", "no", second.until_ms + CALM_MS).failures == 1


def test_a_job_is_held_back_until_its_time_is_over() -> None:
    intents = Intents()
    until_ms = intents.failed("j", "no", 0).until_ms
    assert intents.holds_back("j", until_ms - 1) is not None
    assert intents.holds_back("j", until_ms) is None
    assert intents.holds_back("another", 0) is None


def test_nothing_about_a_pod_outlives_it() -> None:
    intents = Intents()
    intents.binding["u"] = Binding("n", 0)
    intents.promised["u"] = "n"
    intents.protected["u"] = 5
    intents.forget_pod("u")
    assert [intents.binding, intents.promised, intents.protected, intents.evicting] == [{}, {}, {}, {}]
