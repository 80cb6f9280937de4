"""A server of its own for each test of the client."""

from collections.abc import Iterator

import pytest

from gpuyard.sdk.client import Client
from gpuyard.sdk.transport import Retry
from tests.sdk.yard import TOKEN, Yard, served

FAST = Retry(attempts=4, first_wait_ms=1, most_wait_ms=4)


@pytest.fixture
def yard() -> Yard:
    return Yard()


@pytest.fixture
def url(yard: Yard) -> Iterator[str]:
    with served(yard) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url, TOKEN, retry=FAST, stream_retry=FAST) as made:
        yield made
