"""Heads that two programs could read in two ways, as bytes on a socket: each is refused, and does nothing."""

from __future__ import annotations

from typing import Final

import pytest

from tests.security.raw import exchange, place_of, request, status_of
from tests.service.yard import Yard

CLOSE: Final = "Connection: close"
JSON: Final = "Content-Type: application/json"
OWN: Final = ("localhost", "LOCALHOST", "127.0.0.1", "[::1]", "127.0.0.1:1", "localhost:65535")
PATH: Final = "/v1/status"


def answered(
    yard: Yard, path: str, *lines: str, host: str = "127.0.0.1", method: str = "GET", body: bytes = b""
) -> int:
    return status_of(
        exchange(yard, request(method, path, *lines, CLOSE, token=yard.tokens["root"], host=host, body=body))
    )


# ------------------------------------------------------------------------------------------------------------- the host


@pytest.mark.parametrize("host", OWN)
def test_a_host_of_ours_is_answered(yard: Yard, host: str) -> None:
    assert answered(yard, PATH, host=host) == 200


ODD_HOSTS: Final = {
    "": 400,
    " ": 400,
    "user@127.0.0.1": 400,
    "user:secret@127.0.0.1": 400,
    "127.0.0.1:": 400,
    "127.0.0.1:0": 400,
    "127.0.0.1:65536": 400,
    "127.0.0.1:99999": 400,
    "127.0.0.1:80:80": 400,
    "127.0.0.1:8x": 400,
    "127.0.0.1:-1": 400,
    "127.0.0.1 evil.example": 400,
    "127.0.0.1\tevil.example": 400,
    "127.0.0.1,evil.example": 400,
    "127.0.0.1/evil": 400,
    "127.0.0.1#evil.example": 400,
    "127.0.0.1?evil": 400,
    "127.0.0.1\\evil": 400,
    "http://127.0.0.1": 400,
    "[::1": 400,
    "::1": 400,
    "[127.0.0.1]x": 400,
    "lok\u00e4lhost": 400,
    "127.0.0.1%00": 400,
    "localhost.": 421,
    "127.0.0.1.": 421,
    "127.1": 421,
    "0x7f000001": 421,
    "2130706433": 421,
    "[::ffff:127.0.0.1]": 421,
    "0.0.0.0": 421,
    "[::]": 421,
    "evil.example": 421,
    "127.0.0.1.evil.example": 421,
    "localhost.evil.example:80": 421,
    "a" * 300: 400,
}


@pytest.mark.parametrize("host", ODD_HOSTS)
def test_any_other_host_is_refused(yard: Yard, host: str) -> None:
    line = f"Host: {host}"
    assert answered(yard, PATH, line, host="") == ODD_HOSTS[host]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_request_without_a_host_is_refused(yard: Yard, version: str) -> None:
    text = f"GET {PATH} HTTP/{version}\r\n{CLOSE}\r\nAuthorization: Bearer {yard.tokens['root']}\r\n\r\n"
    assert status_of(exchange(yard, text.encode())) == 400


TWICE: Final = {
    "two hosts": ("Host: 127.0.0.1", "Host: 127.0.0.1"),
    "two hosts, one of them foreign": ("Host: 127.0.0.1", "Host: evil.example"),
    "two hosts, the foreign one first": ("Host: evil.example", "Host: 127.0.0.1"),
    "two hosts in other letters": ("Host: 127.0.0.1", "HOST: localhost"),
    "three hosts": ("Host: 127.0.0.1", "Host: 127.0.0.1", "Host: 127.0.0.1"),
    "two origins": ("Host: 127.0.0.1", "Origin: http://127.0.0.1", "Origin: http://127.0.0.1"),
    "two kinds": ("Host: 127.0.0.1", JSON, "Content-Type: text/plain"),
    "two credentials": ("Host: 127.0.0.1", "Authorization: Bearer x"),
    "two keys": ("Host: 127.0.0.1", "Idempotency-Key: a", "Idempotency-Key: b"),
    "two revisions": ("Host: 127.0.0.1", 'If-Match: "1"', 'If-Match: "2"'),
    "two sites": ("Host: 127.0.0.1", "Sec-Fetch-Site: none", "Sec-Fetch-Site: none"),
    "two upgrades": ("Host: 127.0.0.1", "Upgrade: a", "Upgrade: b"),
}


@pytest.mark.parametrize("case", TWICE)
def test_what_counts_once_and_comes_twice_is_refused(yard: Yard, case: str) -> None:
    assert answered(yard, PATH, *TWICE[case], host="") == 400


# ----------------------------------------------------------------------------------------------------------- the target


def test_a_target_in_absolute_form_names_the_same_host(yard: Yard) -> None:
    port = place_of(yard)[1]
    assert answered(yard, f"http://127.0.0.1:{port}{PATH}", host=f"127.0.0.1:{port}") == 200
    assert answered(yard, f"HTTP://localhost{PATH}", host="LOCALHOST:80") == 200


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("http://evil.example/v1/status", "127.0.0.1"),
        ("http://127.0.0.1/v1/status", "evil.example"),
        ("http://localhost/v1/status", "127.0.0.1"),
        ("http://127.0.0.1:1/v1/status", "127.0.0.1:2"),
        ("http://127.0.0.1@evil.example/v1/status", "127.0.0.1"),
        ("http://evil@127.0.0.1/v1/status", "127.0.0.1"),
        ("ftp://127.0.0.1/v1/status", "127.0.0.1"),
        ("file:///etc/passwd", "127.0.0.1"),
        ("127.0.0.1/v1/status", "127.0.0.1"),
        ("v1/status", "127.0.0.1"),
        ("*", "127.0.0.1"),
        ("//evil.example/v1/status", "127.0.0.1"),
        ("/v1/status#x", "127.0.0.1"),
        ("http://127.0.0.1/v1/status#x", "127.0.0.1"),
    ],
)
def test_any_other_target_is_refused(yard: Yard, target: str, host: str) -> None:
    assert answered(yard, target, host=host) in (400, 404, 421)


@pytest.mark.parametrize("method", ["CONNECT", "PRI", "get", "G\x00T", "PROPFIND", "SEARCH"])
def test_a_method_of_no_operation_is_refused(yard: Yard, method: str) -> None:
    assert answered(yard, PATH, method=method) in (0, 400, 405)


# ------------------------------------------------------------------------------------------------------------ the path

HIDDEN_PATHS: Final = (
    *("/v1%2fstatus", "/v1%2Fstatus", "%2fv1/status", "/v1/jobs/x%2fcancel", "/v1/jobs/..%2fusers"),
    *("/v1%5cstatus", "/v1\\status", "/v1/jobs/%5c..%5cusers", "/v1/teams/a%5Cb"),
    *("/v1/jobs/../status", "/v1/./status", "/v1/jobs/..", "/v1/%2e%2e/v1/status", "/v1/%2E/status", "/v1/.%2e/status"),
    *("/v1/status%00", "/v1/jobs/%00", "/v1/jobs/1%0d%0aX:y", "/v1/jobs/%7f", "/v1/jobs/%09", "/v1/users/a%0a"),
    *("/v1/jobs/%", "/v1/jobs/%z", "/v1/jobs/%zz", "/v1/jobs/%1", "/v1/jobs/%u002e"),
    *("/v1/jobs/%ff", "/v1/jobs/%c0%ae%c0%ae", "/v1/jobs/%e0%80%af", "/v1/jobs/%ed%a0%80", "/v1/jobs/%f8%88%80%80%80"),
    *(
        "/data-jobs/for-team/a%2fjobs",
        "/data-jobs/for-team/../x",
        "/oauth2%2ftoken",
        "/livez%2f",
        "/livez/../v1/status",
    ),
)


@pytest.mark.parametrize("path", HIDDEN_PATHS)
def test_a_path_that_is_another_one_once_it_is_decoded_is_refused(yard: Yard, path: str) -> None:
    for user in ("root", ""):
        answer = exchange(yard, request("GET", path, CLOSE, token=yard.tokens.get(user, "")))
        assert status_of(answer) == 400, answer
        assert b"BadPath" in answer or b"Invalid HTTP request" in answer


@pytest.mark.parametrize(
    "path", ["/v1/jobs/a%20b", "/v1/jobs/%C3%A9", "/v1/jobs/%252f", "/v1/jobs/a.b..c", "/v1/jobs/~x"]
)
def test_a_name_that_is_encoded_once_is_a_name(yard: Yard, path: str) -> None:
    assert answered(yard, path) == 404


@pytest.mark.parametrize("path", ["//v1/status", "/v1//status", "/v1/status/", "/V1/status", "/v1/status;x=1", "/v1"])
def test_a_path_that_is_nearly_one_leads_nowhere(yard: Yard, path: str) -> None:
    assert answered(yard, path) in (400, 404)


# ------------------------------------------------------------------------------------------------------------- the body

SECOND: Final = b"DELETE /v1/users/ida HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n\r\n"

FRAMINGS: Final = {
    "a length and pieces": ("Content-Length: 4", "Transfer-Encoding: chunked"),
    "pieces and a length": ("Transfer-Encoding: chunked", "Content-Length: 4"),
    "two lengths": ("Content-Length: 4", "Content-Length: 0"),
    "the same length twice": ("Content-Length: 4", "Content-Length: 4"),
    "lengths with a comma": ("Content-Length: 4, 4",),
    "a length with a sign": ("Content-Length: +4",),
    "a negative length": ("Content-Length: -1",),
    "a length in hex": ("Content-Length: 0x4",),
    "a length with a blank": ("Content-Length: 4 4",),
    "an endless length": ("Content-Length: 99999999999999999999999",),
    "an empty length": ("Content-Length:",),
    "an encoding of no kind": ("Transfer-Encoding: xchunked",),
    "an encoding before chunked": ("Transfer-Encoding: gzip, chunked",),
    "an encoding after chunked": ("Transfer-Encoding: chunked, identity",),
    "chunked twice": ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
    "chunked with a vertical tab": ("Transfer-Encoding: \x0bchunked",),
    "a header with a blank before its colon": ("Transfer-Encoding : chunked",),
    "a header that is folded": ("Transfer-Encoding:", " chunked"),
    "a header without a colon": ("Transfer-Encoding chunked",),
    "a carriage return alone": ("X: y\rTransfer-Encoding: chunked",),
    "a nul in a header": ("X: a\x00b",),
}


@pytest.mark.parametrize("case", FRAMINGS)
def test_a_body_whose_length_can_be_read_in_two_ways_is_refused(yard: Yard, case: str) -> None:
    """What follows is never taken for a request: it would be one that a proxy in front has not seen."""
    token = yard.tokens["root"]
    second = SECOND % token.encode()
    head = request("POST", "/v1/tokens", JSON, *FRAMINGS[case], token=token)
    answer = exchange(yard, head + b"0\r\n\r\n" + second + b"\r\n")
    assert status_of(answer) == 400, answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert "ida" in yard.manager.state.users


def test_chunked_is_not_for_http_1_0(yard: Yard) -> None:
    head = request("POST", "/v1/tokens", JSON, "Transfer-Encoding: chunked", token=yard.tokens["root"])
    assert status_of(exchange(yard, head.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n")) == 400


@pytest.mark.parametrize("piece", [b"-1", b"0x2", b"2 ", b"g", b"fffffffffffffffff"])
def test_pieces_of_an_odd_size_are_refused(yard: Yard, piece: bytes) -> None:
    head = request("POST", "/v1/tokens", JSON, "Transfer-Encoding: chunked", CLOSE, token=yard.tokens["root"])
    answer = exchange(yard, head + piece + b"\r\n{}\r\n0\r\n\r\n")
    assert status_of(answer) in (0, 400, 413, 408), answer
