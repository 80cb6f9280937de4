"""Settings of the whole test suite: how much Hypothesis tries, and what was left out.

CI draws the same examples every time, so that a red build is red again on a desk; a person's run draws new ones.
"""

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = 50
QUICK_EXAMPLES = 8
LONG_FACTOR = 10

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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line what was skipped, so that a skip is never silent."""
    reasons = Counter(skip_reason(report) for report in terminalreporter.stats.get("skipped", []))
    counted = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common())
    terminalreporter.write_line(f"skipped: {reasons.total()}" + (f" ({counted})" if counted else ""))


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr)
