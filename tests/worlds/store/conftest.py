"""The databases that the tests of the store run on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuyard.worlds.standalone.store import sqlite
from gpuyard.worlds.standalone.store.memory import MemoryDisk
from tests.worlds.store.places import Places

KINDS = ("memory", "sqlite", "sqlite-rollback", "postgres")
SQL_KINDS = KINDS[1:]
OLD_LIBRARY = (3, 40, 1)


def make_address(kind: str, request: pytest.FixtureRequest, tmp_path: Path, number: int = 0) -> str | Path | MemoryDisk:
    if kind == "memory":
        return MemoryDisk()
    if kind == "postgres":
        server = request.getfixturevalue("postgres_server")
        return str(server.url(server.make_database()))
    if kind == "sqlite-rollback":
        monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        monkeypatch.setattr(sqlite, "library_version", lambda: OLD_LIBRARY)
    return tmp_path / f"state-{number}" / "gpuyard.db"


@pytest.fixture
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Places]]:
    """Makes an empty place of a kind."""
    made: list[Places] = []

    def make(kind: str) -> Places:
        made.append(Places(make_address(kind, request, tmp_path, len(made))))
        return made[-1]

    yield make
    for place in made:
        place.close()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, new_place: Callable[[str], Places]) -> Places:
    """An empty place of every kind in turn."""
    return new_place(request.param)
