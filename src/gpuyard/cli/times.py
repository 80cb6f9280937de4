"""Moments, durations and sizes as tables show them: `2h05m`, `in 12m`, `23.5Gi`; exact forms are RFC 3339."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400


def span(seconds: float) -> str:
    """The two largest units, the second with two digits: `2h05m`, `3d04h`, `5m10s`, `45s`."""
    total = max(int(seconds), 0)
    if total < MINUTE_S:
        return f"{total}s"
    if total < HOUR_S:
        return f"{total // MINUTE_S}m{total % MINUTE_S:02}s"
    if total < DAY_S:
        return f"{total // HOUR_S}h{total % HOUR_S // MINUTE_S:02}m"
    return f"{total // DAY_S}d{total % DAY_S // HOUR_S:02}h"


def now() -> datetime:
    from gpuyard.platform.clock import wall_ms

    return datetime.fromtimestamp(wall_ms() / 1000, UTC)


def since(moment: datetime | None, at: datetime) -> str:
    """How long ago."""
    return span((at - moment).total_seconds()) if moment else ""


def until(moment: datetime | None, at: datetime) -> str:
    """`in 12m00s`; `now` for what should have been."""
    if moment is None:
        return ""
    left_s = (moment - at).total_seconds()
    return f"in {span(left_s)}" if left_s >= 1 else "now"


def exact(moment: datetime | None) -> str:
    """RFC 3339 in UTC."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z") if moment else ""


def size(bytes_: int) -> str:
    """Memory of a machine, to a tenth: `23.5Gi`."""
    return f"{bytes_ / (1 << 30):.1f}Gi" if bytes_ < 1 << 40 else f"{bytes_ / (1 << 40):.1f}Ti"
