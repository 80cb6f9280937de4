"""How use looks in lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gpuyard.cli.listing import Column, Kind
from gpuyard.wire.rest import UsageRow

_HOURS: Final = ("held", "owed", "borrowed", "lent", "idle", "wasted")


def usage_kind(by: Sequence[str]) -> Kind[UsageRow]:
    """The columns of what it was asked by, then the hours."""
    columns: list[Column[Any]] = [_word(name) for name in by]
    columns += [_hours(name) for name in _HOURS]
    columns.append(Column("WASTED-BY", lambda row, at: "; ".join(map(_cause, row.causes)), wide=True))
    return Kind(UsageRow, tuple(columns), lambda row: "/".join(getattr(row, name) for name in by))


def _word(name: str) -> Column[Any]:
    return Column(name.upper(), lambda row, at: str(getattr(row, name)))


def _hours(name: str) -> Column[Any]:
    return Column(name.upper(), lambda row, at: str(getattr(row, name)), key=lambda row: float(getattr(row, name)))


def _cause(cause: Any) -> str:  # noqa: ANN401
    return f"{cause.gpu_hours} by {cause.revision} ({cause.token}{f': {cause.text}' if cause.text else ''})"
