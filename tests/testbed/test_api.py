"""Waiting for the cluster: a silent API server is waited for, one that says no is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuyard.errors import KubeSilentError, KubeTestbedError
from gpuyard.testbed.api import wait_until


def answering(*answers: bool | Exception) -> Callable[[], bool]:
    """Gives one after the other."""
    left = iter(answers)

    def next_answer() -> bool:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return next_answer


def test_a_silent_moment_is_waited_through() -> None:
    wait_until(answering(False, KubeSilentError("silent"), True), "it", timeout_ms=10_000)


def test_an_answer_that_says_no_is_an_error_at_once() -> None:
    with pytest.raises(KubeTestbedError, match="refused"):
        wait_until(answering(False, KubeTestbedError("refused"), True), "it", timeout_ms=10_000)


def test_what_never_happens_is_named() -> None:
    with pytest.raises(KubeTestbedError, match="the end of the world did not happen within 0 s"):
        wait_until(lambda: False, "the end of the world", timeout_ms=10)
