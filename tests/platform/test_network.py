"""The way to another machine, as the ends of it are called."""

from __future__ import annotations

import pytest

from gpuyard.platform import network
from gpuyard.platform.network import LastWay, Way


def test_while_there_is_no_way_the_last_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that was cut off for a moment would say hello without an address, and its gangs could not meet."""
    ways = iter([Way(), Way("10.0.0.2", "10.0.0.1"), Way(), Way("10.0.0.3", "10.0.0.1")])
    asked = []

    def found(host: str, port: int) -> Way:
        asked.append((host, port))
        return next(ways)

    monkeypatch.setattr(network, "way_to", found)
    way = LastWay("[fd00::1]:7401")
    assert [way.find().own for _ in range(4)] == ["", "10.0.0.2", "10.0.0.2", "10.0.0.3"]
    assert set(asked) == {("fd00::1", 7401)}


def test_an_address_without_a_port_has_no_way() -> None:
    assert LastWay("manager").find() == Way()
