"""One scheduler for all tests of this folder, and a namespace for each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gpuyard.testbed.bed import Bed
    from tests.on_kube.faults.schedulers import Inside
    from tests.on_kube.operators.yard import Yard

_numbers = count(1)


@pytest.fixture(scope="package")
def scheduler(testbed: Bed) -> Iterator[Inside]:
    """Queues, GPUs on all four nodes, and ours beside the cluster's own scheduler."""
    from tests.on_kube.test_real_nodes import a_scheduler_of_real_nodes

    with a_scheduler_of_real_nodes(testbed) as running:
        yield running


@pytest.fixture
def yard(testbed: Bed, scheduler: Inside) -> Iterator[Yard]:
    from tests.kube import a_namespace
    from tests.on_kube.operators.yard import Yard

    name = f"operators-{next(_numbers)}"
    with testbed.api() as api, a_namespace(api, name):
        found = Yard(testbed, api, scheduler, name)
        try:
            yield found
        finally:
            found.clear()
