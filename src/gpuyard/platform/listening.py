"""This machine on its networks: its name, its addresses, and sockets to listen on."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress
from typing import Final

BACKLOG: Final = 1024
ADDRESS_OF_INTERFACE: Final = 0x8915
"""SIOCGIFADDR: the IPv4 address of an interface."""


def host_name() -> str:
    """The short name of this machine."""
    return socket.gethostname().partition(".")[0] or "localhost"


def local_addresses() -> tuple[str, ...]:
    """Addresses under which others may reach this machine: those of its interfaces, and of its own name."""
    found: dict[str, None] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(probe, ADDRESS_OF_INTERFACE, struct.pack("256s", name.encode()[:15]))
                found[socket.inet_ntoa(answer[20:24])] = None
    with suppress(OSError):
        for *_, address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            found[str(address[0]).partition("%")[0]] = None
    return tuple(found)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there; OSError where it cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: else asyncio leaves answers to wait for the acknowledgement of their head (Nagle).
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
