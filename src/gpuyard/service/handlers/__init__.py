"""One handler per operation of the table, by noun. `HANDLERS` holds them all; a test compares it with the table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from gpuyard.service.call import Answer, Call
from gpuyard.service.handlers import cluster, happenings, jobs, logs, nodes, people, schedules, submitting, teams

Handler = Callable[[Call], Awaitable[Answer]]

HANDLERS: Final[dict[str, Handler]] = {
    **cluster.HANDLERS,
    **jobs.HANDLERS,
    **submitting.HANDLERS,
    **logs.HANDLERS,
    **schedules.HANDLERS,
    **teams.HANDLERS,
    **nodes.HANDLERS,
    **happenings.HANDLERS,
    **people.HANDLERS,
}
