from __future__ import annotations

from gpuyard.worlds.kubernetes.recent import Recent


def test_what_is_asked_for_again_and_again_is_never_forgotten() -> None:
    recent: Recent[int, str] = Recent(10)
    recent.keep(-1, "hot")
    for number in range(1000):
        recent.keep(number, "cold")
        assert recent.get(-1) == "hot"


def test_there_are_never_more_than_twice_the_limit() -> None:
    recent: Recent[int, int] = Recent(10)
    for number in range(1000):
        recent.keep(number, number)
        recent.get(number - 5)
        assert len(recent) <= 20
    assert recent.get(0) is None
    assert recent.get(999) == 999
