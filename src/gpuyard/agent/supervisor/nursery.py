"""The nursery: has each attempt supervised by a fork, which takes a millisecond where starting Python takes twenty.

Place in the flow: the agent's nursery ─folders of attempts─▶ **nursery** ─fork─▶ guard ─fork─▶ task. It ends with the
agent, guards and supervisors do not. Invariant: everything they need is loaded here, before the first fork.
"""

from __future__ import annotations

import gc
import os
import select

from gpuyard.agent.supervisor.guard import guard
from gpuyard.agent.supervisor.processes import bury, fork_into

LOOK_MS = 1_000
"""How often guards that have ended are buried."""
CHUNK_BYTES = 64 << 10


def nursery() -> None:
    """Raise a supervisor for every folder that is named on the input, each ended by a NUL, until the input ends."""
    os.umask(0o077)
    gc.freeze()  # What is here stays shared with all of them.
    waiting = select.poll()
    waiting.register(0, select.POLLIN)
    rest = b""
    while True:
        if waiting.poll(LOOK_MS):
            data = os.read(0, CHUNK_BYTES)
            if not data:
                return
            *folders, rest = (rest + data).split(b"\0")
            for folder in folders:
                name = os.fsdecode(folder)
                fork_into(lambda at=name: guard(at))  # type: ignore[misc]
        bury()
