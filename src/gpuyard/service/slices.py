"""Long answers made of the state, a few milliseconds at a time.

Place in the flow: handlers ─**slices**─▶ views. What is made of values alone goes to another thread instead
(`Traffic.apart`); what looks at the state while it changes stays on the event loop, and lets other requests in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TypeVar

from gpuyard.service.limits import SLICE_MS

Item = TypeVar("Item")
Result = TypeVar("Result")


async def in_slices(items: Collection[Item], make: Callable[[Item], Result]) -> list[Result]:
    """Make a result of each item. The items must not change meanwhile; what `make` looks at may."""
    clock = asyncio.get_running_loop().time
    made: list[Result] = []
    until = clock() + SLICE_MS / 1000
    for item in items:
        made.append(make(item))
        if clock() >= until:
            await asyncio.sleep(0)
            until = clock() + SLICE_MS / 1000
    return made
