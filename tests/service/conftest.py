"""One running yard per test file: tests in it add jobs, and none counts on being alone.

A file that says STORES runs once on each of them; the others on SQLite, or with GPUYARD_TEST_STORE=postgres on that.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.yard import Yard

DEFAULT_STORE = os.environ.get("GPUYARD_TEST_STORE", "sqlite")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    stores = getattr(metafunc.module, "STORES", None)
    if stores is not None and "yard" in metafunc.fixturenames:
        metafunc.parametrize("yard", stores, indirect=True, scope="module")


@pytest.fixture(scope="module")
def yard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    store = _store(request, getattr(request, "param", DEFAULT_STORE))
    with Yard(tmp_path_factory.mktemp("yard"), store=store) as running:
        yield running


def _store(request: pytest.FixtureRequest, kind: str) -> str:
    """The address of an empty database; none for SQLite, which lies in the yard's folder."""
    if kind != "postgres":
        return ""
    server = request.getfixturevalue("postgres_server")
    return str(server.url(server.make_database()))


@pytest.fixture
def fresh_yard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Yard]:
    """One of its own, for tests that change what others look at."""
    with Yard(tmp_path, store=_store(request, DEFAULT_STORE)) as running:
        yield running
