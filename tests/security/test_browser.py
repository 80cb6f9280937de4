"""What a page of another origin can have a browser send, on every operation: nothing of it does or tells anything.

The requests are those that browsers make: forms, fetches without CORS, links, frames, web sockets, preflights, and
names that lead to this machine. Each comes with an admin's token all the same, as if the browser kept one.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from gpuyard.wire.data_job_operations import DATA_JOB_OPERATIONS
from gpuyard.wire.operations import OPERATIONS, Operation
from tests.security.raw import exchange, place_of, request, status_of
from tests.service.yard import Yard

ALL: Final = (*OPERATIONS, *DATA_JOB_OPERATIONS)
CHANGES: Final = [operation for operation in ALL if operation.changes]
VALUES: Final = {
    "id": "1",
    "name": "ida",
    "team": "vision",
    "user": "ida",
    "number": "1",
    "deployment": "production",
}
FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
EVIL: Final = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}

PAGES: Final[dict[str, dict[str, str]]] = {
    "fetch": EVIL,
    "fetch without cors": {**EVIL, "Sec-Fetch-Mode": "no-cors"},
    "an old browser": {"Origin": "https://evil.example"},
    "a sandboxed frame": {"Origin": "null"},
    "a page in a file": {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
    "a link": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    "a frame": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    "an image": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    "a script": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
    "a page of a sister": {"Sec-Fetch-Site": "same-site"},
    "a word no browser sends": {"Sec-Fetch-Site": "anything"},
}


def state_of(yard: Yard) -> tuple[Any, ...]:
    """All that a request could have changed."""
    state = yard.manager.state
    return state.seq, state.next_job, state.teams_revision, len(state.tokens), dict(state.users)


def asked(yard: Yard, operation: Operation, headers: dict[str, str], body: bytes = b"") -> Any:
    path = operation.path.format(**VALUES)
    return yard.ask("root", operation.method, path, headers=headers, content=body)


@pytest.mark.parametrize("page", PAGES)
def test_no_operation_is_for_a_page_of_another_origin(yard: Yard, page: str) -> None:
    before = state_of(yard)
    for operation in ALL:
        answer = asked(yard, operation, {**PAGES[page], "Content-Type": "application/json"}, b"{}")
        assert (answer.status_code, answer.json()["reason"]) == (403, "OriginNotAllowed"), operation.name
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    assert state_of(yard) == before


@pytest.mark.parametrize(
    "origin",
    [
        "http://127.0.0.1:{other}",
        "http://127.0.0.1",
        "http://localhost:{port}",
        "http://localhost:{other}",
        "http://[::1]:{port}",
        "https://127.0.0.1:{other}",
        "http://127.0.0.1:{port}.evil.example",
        "http://127.0.0.1:{port}@evil.example",
        "http://user@127.0.0.1:{port}",
        "http://127.0.0.1:{port}/",
        "http://127.0.0.1:{port} http://evil.example",
        "http://127.0.0.1.:{port}",
        "127.0.0.1:{port}",
        "//127.0.0.1:{port}",
        "ws://127.0.0.1:{port}",
        "file://",
        "chrome-extension://abc",
        "http://",
        "",
        "null",
        "NULL",
    ],
)
def test_a_page_of_another_port_or_name_of_this_machine_is_foreign(yard: Yard, origin: str) -> None:
    host, port = place_of(yard)
    said = origin.format(port=port, other=port + 1)
    refused = yard.ask("root", "GET", "/v1/status", headers={"Origin": said, "Host": f"{host}:{port}"})
    assert (refused.status_code, refused.json()["reason"]) == (403, "OriginNotAllowed")


def test_a_page_of_our_own_is_not(yard: Yard) -> None:
    host, port = place_of(yard)
    own = {"Origin": f"http://{host}:{port}", "Sec-Fetch-Site": "same-origin", "Host": f"{host}:{port}"}
    assert yard.ask("root", "GET", "/v1/status", headers=own).status_code == 200
    assert yard.ask("root", "GET", "/v1/status", headers={"Sec-Fetch-Site": "none"}).status_code == 200
    behind_a_proxy = {"Origin": "https://localhost", "Host": "localhost"}
    assert yard.ask("root", "GET", "/v1/status", headers=behind_a_proxy).status_code == 200


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", ""]
)
def test_no_form_is_taken_for_a_request(yard: Yard, kind: str) -> None:
    """Also where a browser sends neither its origin nor its site, and its user's token besides."""
    before = state_of(yard)
    headers = {"Content-Type": kind} if kind else {}
    bodies = (b'{"command": ["x"], "team": "vision", "gpus": 0}', b'{"name":"x","x":"=y"}', b"command=x")
    for operation in CHANGES:
        if operation.body is None or operation.permission is None:
            continue
        for body in bodies:
            answer = asked(yard, operation, headers, body)
            assert answer.status_code == (403 if operation.name == "join_node" else 415), (operation.name, answer.text)
    assert state_of(yard) == before


def test_no_credential_is_taken_from_where_a_browser_puts_one(yard: Yard) -> None:
    token = yard.tokens["root"]
    with yard.client() as client:
        for headers in (
            {"Cookie": f"token={token}; Authorization=Bearer {token}"},
            {"Authorization": "Basic cm9vdDpyb290"},
            {"X-Forwarded-User": "root", "X-Forwarded-For": "127.0.0.1", "X-Real-IP": "127.0.0.1"},
            {"Proxy-Authorization": f"Bearer {token}"},
        ):
            assert client.get("/v1/status", headers=headers).status_code in (401, 429)
        assert client.get("/v1/status", params={"access_token": token}).status_code in (401, 429)


def test_no_preflight_is_answered(yard: Yard) -> None:
    for operation in ALL:
        preflight = {
            **EVIL,
            "Access-Control-Request-Method": operation.method,
            "Access-Control-Request-Headers": "authorization,content-type",
            "Access-Control-Request-Private-Network": "true",
        }
        with yard.client() as client:
            answer = client.options(operation.path.format(**VALUES), headers=preflight)
        assert answer.status_code == 403
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    "host",
    ["rebound.evil.example", "127.0.0.1.nip.io", "localhost.evil.example", "a.localhost", "0", "0.0.0.0", "[::]"],
)
def test_a_name_that_leads_here_without_being_ours_is_refused(yard: Yard, host: str) -> None:
    """A page of such a name is of the same origin as what it asks: only the name tells."""
    port = place_of(yard)[1]
    rebound = {"Host": f"{host}:{port}", "Origin": f"http://{host}:{port}", "Sec-Fetch-Site": "same-origin"}
    for operation in ALL:
        answer = asked(yard, operation, {**rebound, **FORM}, b"x=y")
        assert (answer.status_code, answer.json()["reason"]) == (421, "HostNotAllowed"), operation.name


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:1", ""])
def test_there_are_no_web_sockets(yard: Yard, origin: str) -> None:
    lines = [
        *("Upgrade: websocket", "Connection: Upgrade, close", "Sec-WebSocket-Version: 13"),
        *("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", *([f"Origin: {origin}"] if origin else [])),
    ]
    for path in ("/v1/events?watch=1", "/v1/status", "/"):
        answer = exchange(yard, request("GET", path, *lines, "Expect: nothing"))
        assert status_of(answer) in (400, 401, 403), answer
        assert b"101" not in answer[:16]


def test_answers_are_neither_framed_nor_sniffed_nor_kept_nor_shared(yard: Yard) -> None:
    for user, path in (
        ("root", "/v1/status"),
        ("root", "/metrics"),
        ("", "/livez"),
        ("", "/version"),
        ("", "/nothing"),
    ):
        answer = yard.ask(user, "GET", path)
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
