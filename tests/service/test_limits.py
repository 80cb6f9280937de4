"""Bounds: who sends too much, too slowly, too often or never reads is refused, and nobody else notices."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from gpuyard.service import app, bodies, protocol
from gpuyard.service.app import _Reply
from tests.service.yard import Yard

pytestmark = pytest.mark.slow


def raw(yard: Yard, text: bytes) -> bytes:
    """What the server says to bytes no client would send."""
    host, port = yard.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        answer = b""
        # A server that has heard enough closes the connection, whatever is still on its way.
        with suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(text)
            while piece := connection.recv(65536):
                answer += piece
                if b"}" in answer:
                    break
        return answer


def head(yard: Yard, method: str, path: str, *lines: str) -> bytes:
    said = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {yard.tokens['root']}", *lines]
    return "\r\n".join([*said, "", ""]).encode()


def test_a_body_that_does_not_come_is_not_waited_for(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.2)
    lines = ("Content-Type: application/json", "Content-Length: 50")
    answer = raw(yard, head(yard, "POST", "/v1/tokens", *lines) + b"{")
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"reason":"TooSlow"' in answer


def test_a_head_without_an_end_is_cut_off(yard: Yard) -> None:
    endless = head(yard, "GET", "/v1/status")[:-2] + b"X-More: " + b"y" * (200 << 10)
    assert raw(yard, endless)[:12] in (b"HTTP/1.1 431", b"")
    assert yard.ask("max", "GET", "/v1/status").status_code == 200


def test_a_head_that_does_not_come_is_not_waited_for(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    assert raw(yard, b"").startswith(b"HTTP/1.1 408")
    assert raw(yard, b"GET /version HTTP/1.1\r\nHost").startswith(b"HTTP/1.1 408")
    with yard.client("max") as client:
        assert client.get("/v1/status").status_code == 200


def test_a_body_that_says_it_is_too_large_is_not_read(yard: Yard) -> None:
    lines = ("Content-Type: application/json", "Content-Length: 999999999")
    answer = raw(yard, head(yard, "POST", "/v1/jobs", *lines))
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_body_in_pieces_is_counted(yard: Yard) -> None:
    piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    lines = ("Content-Type: application/json", "Transfer-Encoding: chunked")
    answer = raw(yard, head(yard, "POST", "/v1/tokens", *lines) + piece * 17)
    assert answer.startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "text",
    [b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\r\n\r\n", b"{}\r\n\r\n"],
    ids=["bytes", "version", "no version", "no request"],
)
def test_what_is_no_request_is_refused_by_the_server(yard: Yard, text: bytes) -> None:
    assert raw(yard, text).startswith((b"HTTP/1.1 4", b""))
    assert yard.ask("max", "GET", "/v1/status").status_code == 200


def test_who_does_not_read_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "SEND_SECONDS", 0.05)

    async def never(message: Message) -> None:
        await asyncio.Event().wait()

    async def send() -> None:
        await _Reply(never, tls=False).send({"type": "http.response.body", "body": b"x"})

    with pytest.raises(TimeoutError):
        asyncio.run(send())


def test_a_submission_is_done_once_also_over_a_restart(tmp_path: Path) -> None:
    def submit(yard: Yard) -> Any:
        body, key = {"command": ["x"], "team": "vision", "gpus": 0}, {"Idempotency-Key": "kept"}
        return yard.ask("max", "POST", "/v1/jobs", json=body, headers=key).json()["jobs"][0]["id"]

    with Yard(tmp_path) as before:
        first = submit(before)
    with Yard(tmp_path) as after:
        assert submit(after) == first


def test_strict_transport_is_asked_for_over_tls_only(yard: Yard) -> None:
    assert "strict-transport-security" not in yard.ask("max", "GET", "/v1/status").headers

    async def start() -> Message:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        await _Reply(send, tls=True).send({"type": "http.response.start", "status": 200, "headers": []})
        return sent[0]

    names = {name for name, _ in asyncio.run(start())["headers"]}
    assert b"strict-transport-security" in names
