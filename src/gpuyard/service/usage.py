"""Use as rows of GPU-hours, from daily sums: by team, user, job, day, with what caused each waste.

Place in the flow: store ─DailySum─▶ **usage** ─UsageRow─▶ the client. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Final

from gpuyard.model.quantities import MILLI
from gpuyard.model.reasons import Token
from gpuyard.service.limits import MAX_CAUSES
from gpuyard.wire.agents import Ending
from gpuyard.wire.rest import UsageRow, WasteCause
from gpuyard.worlds.standalone.meter import WASTED
from gpuyard.worlds.standalone.store.port import DailySum

KEYS: Final = ("team", "user", "job", "day")
GPU_HOUR: Final = MILLI * 3_600_000
"""GPU milli x milliseconds of one GPU-hour."""

_CAUSES: Final[dict[str, str]] = {
    Token.RECLAIMED: "had to give way to a team that was owed the GPUs",
    Token.PREEMPTED: "had to give way to a job of higher priority",
    Token.MOVED: "was moved to make room",
    Token.STALE: "was stopped because its gang was not whole",
    Token.DRAINED: "had to leave a machine that was drained",
    Token.RUN_LIMIT: "ran for longer than its limit",
    Ending.EXITED: "ended with an error",
    Ending.STOPPED: "was stopped by its owner or an operator",
    Ending.LEASE_EXPIRED: "was stopped by its machine, which had lost its manager",
    Ending.RUN_LIMIT: "ran for longer than its limit",
    Ending.OUT_OF_MEMORY: "held more memory than it had asked for",
    Ending.NOT_STARTED: "could not be started",
    Ending.LOST: "was lost with its machine",
}


def gpu_hours(amount: int) -> str:
    """GPU-hours as decimal text with six places at most: a GPU for four milliseconds is the least that shows."""
    hours = (Decimal(amount) / GPU_HOUR).quantize(Decimal("0.000001"))
    text = f"{hours:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


class _Row:
    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        self.causes: dict[str, int] = {}

    def add(self, one: DailySum) -> None:
        self.kinds[one.kind] = self.kinds.get(one.kind, 0) + one.gpu_milli_ms
        if one.kind == WASTED and one.cause:
            self.causes[one.cause] = self.causes.get(one.cause, 0) + one.gpu_milli_ms


def usage_rows(sums: Iterable[DailySum], by: tuple[str, ...]) -> list[UsageRow]:
    """One row per distinct value of the keys, in their order."""
    rows: dict[tuple[str, ...], _Row] = {}
    for one in sums:
        rows.setdefault(tuple(getattr(one, key) for key in by), _Row()).add(one)
    in_order = sorted(rows, key=lambda keys: tuple(map(_by_number, keys)))
    return [_usage_row(dict(zip(by, keys, strict=True)), rows[keys]) for keys in in_order]


def _by_number(key: str) -> list[str | int]:
    """So that job 9 comes before job 10: words and numbers in turn, which always meet their like."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", key)]


def _usage_row(keys: dict[str, str], row: _Row) -> UsageRow:
    hours = {kind: gpu_hours(amount) for kind, amount in row.kinds.items()}
    greatest = sorted(row.causes.items(), key=lambda cause: -cause[1])[:MAX_CAUSES]
    return UsageRow(**keys, **hours, causes=tuple(_cause(cause, amount) for cause, amount in greatest))


def _cause(cause: str, amount: int) -> WasteCause:
    revision, _, token = cause.partition("/")
    return WasteCause(int(revision), token, gpu_hours(amount), _CAUSES.get(token, ""))
