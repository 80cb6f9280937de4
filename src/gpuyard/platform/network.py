"""The network as far as a library does not do it for us."""

from __future__ import annotations

import socket
import ssl
from typing import Any, Final, NamedTuple

CONNECT_S: Final = 10.0


class Way(NamedTuple):
    """From this machine to another: the address each has for the other; empty where there is no way."""

    own: str = ""
    theirs: str = ""


def way_to(host: str, port: int) -> Way:
    """The addresses at both ends of the way to that machine. Nothing is sent."""
    try:
        kind, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            return Way(probe.getsockname()[0], probe.getpeername()[0])
    except OSError:
        return Way()


class LastWay:
    """The way to one machine; while there is none, as where a cable is pulled, the last there was: it comes back."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port) if port.isdigit() else 0
        self._last = Way()

    def find(self) -> Way:
        """May take as long as its name takes to be looked up."""
        found = way_to(self._host, self._port) if self._port else Way()
        self._last = found if found.own else self._last
        return self._last


def certificate_chain(host: str, port: int) -> tuple[bytes, ...]:
    """The certificates a TLS server shows, its own first, each as DER; none of them is checked or believed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((host, port), timeout=CONNECT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        return _unverified_chain(secure)


def _unverified_chain(secure: Any) -> tuple[bytes, ...]:  # noqa: ANN401 - the method differs by version
    # Public since Python 3.13; the versions before have it one layer below.
    if hasattr(secure, "get_unverified_chain"):
        return tuple(secure.get_unverified_chain())
    chain = secure._sslobj.get_unverified_chain() or ()
    return tuple(ssl.PEM_cert_to_DER_cert(certificate.public_bytes()) for certificate in chain)
