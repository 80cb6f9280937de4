"""The small HTTP server: what it answers, and to whom it does not listen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from gpuyard.errors import InputError
from gpuyard.platform.web import Page, WebServer


def pages(path: str, asked: Mapping[str, str]) -> Page:
    if path == "/metrics":
        return Page(["one\n", "", f"two {asked.get('node', '')}\n"])
    return Page(["nothing here\n"], 404)


def with_server(test: Callable[[int], Awaitable[None]]) -> None:
    async def run() -> None:
        server = WebServer(pages)
        port = await server.start("127.0.0.1", 0)
        try:
            await test(port)
        finally:
            await server.close()

    asyncio.run(run())


def answer_to(request: str) -> str:
    found: list[str] = []

    async def ask(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request.encode())
        found.append((await reader.read()).decode())
        writer.close()

    with_server(ask)
    return found[0]


def test_a_page_comes_in_chunks() -> None:
    answer = answer_to("GET /metrics?node=a HTTP/1.1\r\nHost: x\r\n\r\n")
    head, body = answer.split("\r\n\r\n", 1)
    assert head.splitlines() == [
        "HTTP/1.1 200 OK",
        "Content-Type: text/plain; charset=utf-8",
        "Connection: close",
        "Transfer-Encoding: chunked",
    ]
    assert body == "4\r\none\n\r\n6\r\ntwo a\n\r\n0\r\n\r\n"


def test_an_old_client_gets_it_plain() -> None:
    assert answer_to("GET /metrics HTTP/1.0\r\n\r\n").endswith("\r\n\r\none\ntwo \n")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /nowhere HTTP/1.1", "404"),
        ("POST /metrics HTTP/1.1", "405"),
        ("HEAD /metrics HTTP/1.1", "200"),
        ("what is this", "400"),
        ("GET /metrics HTTP/2.0", "400"),
        ("\u00e9 / HTTP/1.1", "400"),
        ("GET /" + "x" * 20_000 + " HTTP/1.1", "400"),
    ],
    ids=lambda text: text[:20],
)
def test_other_requests_are_told_so(request_line: str, status: str) -> None:
    assert answer_to(f"{request_line}\r\n\r\n").split(" ")[1] == status


def test_a_head_has_no_body() -> None:
    assert answer_to("HEAD /metrics HTTP/1.1\r\n\r\n").endswith("chunked\r\n\r\n")


def test_a_client_that_goes_away_harms_nobody() -> None:
    async def rude(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /met")
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert b"one" in await reader.read()
        writer.close()

    with_server(rude)


def test_a_port_that_is_taken_is_told() -> None:
    async def second(port: int) -> None:
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1 is taken"):
            await WebServer(pages).start("127.0.0.1", port)

    with_server(second)
