"""What judging one situation gives."""

from __future__ import annotations

import msgspec


class Verdict(msgspec.Struct, frozen=True):
    """One situation, judged. A different node is worth a look but no failure: equal nodes are interchangeable."""

    id: str
    passed: bool
    outcome_mismatches: tuple[str, ...] = ()
    node_mismatches: tuple[str, ...] = ()
