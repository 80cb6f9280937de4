"""What a look at a cluster finds: one thing at a time, whether it is in order, and what to do about it.

Place in the flow: doctors ─**Finding**─▶ the terminal.
"""

from __future__ import annotations

from typing import Final, NamedTuple

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"


class Finding(NamedTuple):
    """One thing that was looked at."""

    verdict: str
    about: str
    what: str
    fix: str = ""
    subject: str = ""
    """The one thing of many that it is about, e.g. a job; empty: the cluster."""
