"""Settings of the whole test suite: how much Hypothesis tries, and what was left out.

CI draws the same examples every time, so that a red build is red again on a desk; a person's run draws new ones.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from _pytest.nodeid import NodeId
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from gpuyard.testbed.bed import Bed
    from tests.postgres import Server

EXAMPLES = 50
QUICK_EXAMPLES = 8
LONG_FACTOR = 10

# A shell that starts us in the background has Ctrl-C ignored, and so would everything we start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

IN_CI = bool(os.environ.get("CI"))
LONG = os.environ.get("GPUYARD_LONG") == "1"
QUICK = os.environ.get("GPUYARD_QUICK") == "1"

# A busy machine is no fault of the code, so neither a deadline nor slow generation fails a property.
settings.register_profile(
    "default",
    deadline=None,
    max_examples=EXAMPLES,
    derandomize=IN_CI,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", settings.get_profile("default"), max_examples=EXAMPLES * LONG_FACTOR)
settings.register_profile("quick", settings.get_profile("default"), max_examples=QUICK_EXAMPLES)
settings.load_profile("long" if LONG else "quick" if QUICK else "default")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What needs a database server or a cluster takes seconds to begin with; one worker has the one cluster."""
    mark(items)
    items.sort(key=lambda item: item.get_closest_marker("early") is None)
    if getattr(config.option, "loadgroup", False):
        name_groups(items)


def name_groups(items: list[pytest.Item]) -> None:
    """pytest-xdist 3.8 tells which tests belong together by a field that pytest has renamed in 9.2 (its issue 1386)."""
    for item in items:
        groups = sorted({str(found.args[0]) for found in item.iter_markers("xdist_group")})
        if groups and isinstance(getattr(item, "_id", None), NodeId):
            item._id = NodeId.parse(f"{item.nodeid}@{'_'.join(groups)}")


def mark(items: list[pytest.Item]) -> None:
    for item in items:
        if "testbed" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group("kubernetes"))
            # Before any other fixture of the test, and whatever the tests before it have done.
            item.fixturenames.insert(0, "well_testbed")  # type: ignore[attr-defined]
        if "postgres_server" in getattr(item, "fixturenames", ()) or "postgres" in item.name:
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line what was skipped, so that a skip is never silent."""
    reasons = Counter(skip_reason(report) for report in terminalreporter.stats.get("skipped", []))
    counted = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common())
    terminalreporter.write_line(f"skipped: {reasons.total()}" + (f" ({counted})" if counted else ""))


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """A real PostgreSQL, started by the first test that asks for it."""
    from tests.postgres import running_server

    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def testbed() -> Iterator[Bed]:
    """Four real Kubernetes nodes, shared by all tests that ask for them."""
    from tests.kube import running_testbed

    with running_testbed() as bed:
        yield bed


@pytest.fixture
def well_testbed(testbed: Bed) -> Bed:
    """The same, once it has got over what was done to it; every test that uses it gets this first."""
    from tests.kube import wait_until_well

    wait_until_well(testbed)
    return testbed
