"""When the plugin begins anew: for every way a kubelet can go and come back."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.fakegpu.kubernetes.plugin_life import (
    DEAF_MS,
    MAX_RETRY_MS,
    RETRY_MS,
    Attempt,
    Past,
    Sight,
    SocketStamp,
    Step,
    failed,
    heard,
    next_step,
    succeeded,
)

KUBELET = SocketStamp(10, 1_000)
OWN = SocketStamp(11, 2_000)
REGISTERED = succeeded(Attempt(KUBELET, "v1beta1"), OWN, 5_000)
CALM = Sight(5_100, KUBELET, OWN, listening=True, version="v1beta1")


def seen(**changes: object) -> Sight:
    return msgspec.structs.replace(CALM, **changes)


def test_a_plugin_waits_for_the_first_kubelet() -> None:
    assert next_step(Past(), seen(kubelet=None, own=None, listening=False)) is Step.WAIT
    assert next_step(Past(), seen(own=None, listening=False)) is Step.BEGIN


def test_nothing_happens_while_all_is_well() -> None:
    assert next_step(REGISTERED, CALM) is Step.WAIT


@pytest.mark.parametrize(
    "changes",
    [
        {"kubelet": SocketStamp(12, 1_000)},
        {"kubelet": SocketStamp(10, 9_000)},  # The number of the file was used again.
        {"own": None},
        {"own": SocketStamp(11, 9_000)},
        {"version": "v0"},
    ],
)
def test_whatever_a_restart_changes_is_a_reason_to_begin_anew(changes: dict[str, object]) -> None:
    assert next_step(REGISTERED, seen(**changes)) is Step.BEGIN


def test_while_the_kubelet_is_away_nothing_is_tried() -> None:
    assert next_step(REGISTERED, seen(kubelet=None, own=None, listening=False)) is Step.WAIT


def test_a_kubelet_that_does_not_listen_is_asked_again() -> None:
    quiet = seen(listening=False, now_ms=5_000 + DEAF_MS - 1)
    assert next_step(REGISTERED, quiet) is Step.WAIT
    assert next_step(REGISTERED, msgspec.structs.replace(quiet, now_ms=5_000 + DEAF_MS)) is Step.BEGIN
    assert next_step(heard(REGISTERED, 5_500), msgspec.structs.replace(quiet, now_ms=5_000 + DEAF_MS)) is Step.WAIT


def test_after_a_refusal_the_same_kubelet_is_left_alone_for_a_while() -> None:
    past = Past()
    at_ms = 0
    pauses = []
    for _ in range(8):
        past = failed(past, Attempt(KUBELET, "v1beta1"), OWN, at_ms)
        began_ms = at_ms
        while next_step(past, seen(now_ms=at_ms, listening=False)) is Step.WAIT:
            at_ms += 100
        pauses.append(at_ms - began_ms)
    assert pauses[:3] == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS]
    assert max(pauses) == pauses[-1] == MAX_RETRY_MS


def test_another_kubelet_is_tried_at_once() -> None:
    past = failed(Past(), Attempt(KUBELET, "v1beta1"), OWN, 5_000)
    assert next_step(past, seen(kubelet=SocketStamp(13, 5_001), now_ms=5_001)) is Step.BEGIN
    assert next_step(past, seen(version="v0", now_ms=5_001)) is Step.BEGIN


def test_a_crash_ends_it_once_and_its_end_begins_it() -> None:
    assert next_step(REGISTERED, seen(wanted=False)) is Step.END
    assert next_step(Past(), seen(wanted=False)) is Step.WAIT
    assert next_step(Past(), CALM) is Step.BEGIN


def test_one_that_hangs_notices_nothing() -> None:
    assert next_step(REGISTERED, seen(hanging=True, kubelet=SocketStamp(99, 1), own=None)) is Step.WAIT


stamps = st.builds(SocketStamp, st.integers(1, 3), st.integers(1, 3))


@given(
    kubelet=stamps,
    own=st.none() | stamps,
    past=st.builds(
        Past,
        bound=st.none() | stamps,
        registered=st.none() | st.builds(Attempt, stamps, st.just("v1beta1")),
        tried=st.none() | st.builds(Attempt, stamps, st.just("v1beta1")),
        tried_at_ms=st.integers(0, 10_000),
        failed_in_a_row=st.integers(0, 40),
        heard_at_ms=st.integers(0, 10_000),
    ),
)
def test_no_kubelet_is_left_without_us_for_longer_than_the_longest_pause(
    kubelet: SocketStamp, own: SocketStamp | None, past: Past
) -> None:
    later = Sight(10_000 + MAX_RETRY_MS, kubelet, own, listening=False, version="v1beta1")
    assert next_step(past, later) is Step.BEGIN
