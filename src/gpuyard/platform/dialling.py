"""Connecting to a server, with a bound on how long it may take and how long it may be silent."""

from __future__ import annotations

import socket
from typing import Final

KEEPALIVE_IDLE_S: Final = 10
KEEPALIVE_INTERVAL_S: Final = 5
KEEPALIVE_PROBES: Final = 3


def dial(host: str, port: int, *, connect_timeout_s: float, silence_timeout_s: float) -> socket.socket:
    """A connection over TCP that notices when the other machine is gone; an OSError if there is none."""
    connection = socket.create_connection((host, port), timeout=connect_timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        # Not every system lets a program choose these.
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    connection.settimeout(silence_timeout_s)
    return connection


def dial_local(path: str, *, connect_timeout_s: float, silence_timeout_s: float) -> socket.socket:
    """A connection to a socket of this machine; an OSError if there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(connect_timeout_s)
        connection.connect(path)
        connection.settimeout(silence_timeout_s)
    except BaseException:
        connection.close()
        raise
    return connection
