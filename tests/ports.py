"""Ports for servers that tests start.

They lie below those that the kernel gives to connections (from 32768 on): a server that is started again finds its port
as it left it, whatever others have dialled meanwhile.
"""

from __future__ import annotations

import errno
import random
import socket

LOWEST, HIGHEST = 12_000, 31_000


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on, all different."""
    candidates = random.SystemRandom().sample(range(LOWEST, HIGHEST), HIGHEST - LOWEST)
    return [port for port, _ in zip(filter(is_free, candidates), range(count), strict=False)]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True
