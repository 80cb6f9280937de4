"""Requests as bytes: what a client of a library's cannot send, or reads too late."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Final

from tests.service.yard import Yard

PATIENCE_S: Final = 20.0


def place_of(yard: Yard) -> tuple[str, int]:
    host, port = yard.url.removeprefix("http://").split(":")
    return host, int(port)


def request(method: str, path: str, *lines: str, token: str = "", host: str = "127.0.0.1", body: bytes = b"") -> bytes:
    """A whole request; `host` empty: without a Host header."""
    said = [f"{method} {path} HTTP/1.1"]
    said += [f"Host: {host}"] if host else []
    said += [f"Authorization: Bearer {token}"] if token else []
    said += [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([*said, *lines, "", ""]).encode("latin-1") + body


def exchange(yard: Yard, *sent: bytes) -> bytes:
    """All that is answered to these bytes until the server closes the connection: the request has to ask for that."""
    answer = b""
    with socket.create_connection(place_of(yard), timeout=PATIENCE_S) as connection, suppress(ConnectionError):
        for piece in sent:
            connection.sendall(piece)
        while piece := connection.recv(1 << 16):
            answer += piece
    return answer


def status_of(answer: bytes) -> int:
    """Of the first answer; 0 where there is none."""
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


class Follower:
    """Keeps a request open and notes what comes, and when it ends."""

    def __init__(self, yard: Yard, path: str, token: str, *, reads: bool = True) -> None:
        self._connection = socket.socket()
        # A small buffer: what is not read soon stays at the server.
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._connection.connect(place_of(yard))
        self._connection.sendall(request("GET", path, "Connection: close", token=token))
        self.answer = b""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        if reads:
            self._thread.start()

    def _read(self) -> None:
        with suppress(OSError):
            while piece := self._connection.recv(1 << 16):
                self.answer += piece
                if self.answer.endswith(b"0\r\n\r\n"):
                    break
        self._ended.set()

    def begun(self) -> None:
        """Wait until the answer has begun."""
        until = time.monotonic() + PATIENCE_S
        while b"\r\n\r\n" not in self.answer:
            assert time.monotonic() < until, "no answer"
            time.sleep(0.01)

    def ended_within(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    @property
    def whole(self) -> bool:
        """Whether its reader takes the answer for complete."""
        return self.answer.endswith(b"0\r\n\r\n") or b"content-length:" in self.answer.split(b"\r\n\r\n")[0].lower()

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join(PATIENCE_S)
        self._connection.close()
