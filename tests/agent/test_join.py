"""Joining: only the manager that the token names ever sees it, and only its answer is believed."""

from __future__ import annotations

import http.server
import json
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from gpuyard.agent.__main__ import enter
from gpuyard.agent.join import Invitation, fingerprint, join, read_invitation
from gpuyard.agent.membership import joined
from gpuyard.agent.settings import Settings
from gpuyard.errors import AgentError
from gpuyard.wire.agents import Isolation
from tests.agent.certificates import Authority

SECRET = "gyj_0123456789abcdef"


class Server(http.server.ThreadingHTTPServer):
    """Answers joining, with TLS unless told otherwise, and remembers every token it was shown."""

    def __init__(self, authority: Authority, answer: Callable[[dict[str, str]], tuple[int, Any]]) -> None:
        self.authority = authority
        self.answer = answer
        self.tokens: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is nothing to tell."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        assert self.path == "/v1/nodes:join"
        self.server.tokens.append(self.headers["Authorization"])
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = self.server.answer(asked)
        content = json.dumps(answer).encode() if not isinstance(answer, bytes) else answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Silent."""


@contextmanager
def serving(
    authority: Authority,
    answer: Callable[[dict[str, str]], tuple[int, Any]],
    folder: Path,
    *,
    names: tuple[str, ...] = (),
) -> Iterator[Server]:
    server = Server(authority, answer)
    key, certificate = authority.for_server(names)
    (folder / "server.pem").write_bytes(key + certificate + authority.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def signing(authority: Authority, **changes: Any) -> Callable[[dict[str, str]], tuple[int, Any]]:
    def answer(asked: dict[str, str]) -> tuple[int, Any]:
        public = x509.load_pem_x509_csr(asked["csr"].encode()).public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        certificate = authority.for_node(asked["node"], public).decode()
        whole = {"node": asked["node"], "certificate": certificate, "ca": authority.pem.decode()}
        return 200, {**whole, "agents": "10.0.0.1:7443", **changes}

    return answer


def invitation(server: Server, authority: Authority) -> Invitation:
    return read_invitation(f"{SECRET}.{fingerprint(authority.der)}@{server.url}")


def test_a_token_becomes_a_certificate(tmp_path: Path, authority: Authority) -> None:
    with serving(authority, signing(authority), tmp_path) as server:
        told = join(tmp_path, "node-a", invitation(server, authority))
    assert (told.node, told.agents) == ("node-a", "10.0.0.1:7443")
    assert joined(tmp_path) == told
    assert server.tokens == [f"Bearer {SECRET}.{fingerprint(authority.der)}"]
    certificate = x509.load_pem_x509_certificate((tmp_path / "cert.pem").read_bytes())
    assert certificate.subject.rfc4514_string() == "CN=node-a"
    assert (tmp_path / "ca.pem").read_bytes() == authority.pem
    for name in ("key.pem", "cert.pem", "ca.pem", "joined.json"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_a_server_with_another_ca_never_sees_the_token(tmp_path: Path, authority: Authority) -> None:
    other = Authority()
    with (
        serving(other, signing(other), tmp_path) as server,
        pytest.raises(AgentError, match="not the manager this token"),
    ):
        join(tmp_path, "node-a", invitation(server, authority))
    assert server.tokens == []


def test_showing_the_right_ca_without_being_signed_by_it_is_not_enough(tmp_path: Path, authority: Authority) -> None:
    """Anybody can show a CA's certificate; only who is signed by it gets the token."""
    other = Authority()
    key, certificate = other.for_server()
    server = Server(authority, signing(authority))
    (tmp_path / "forged.pem").write_bytes(key + certificate + authority.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "forged.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        with pytest.raises(AgentError, match="did not answer"):
            join(tmp_path, "node-a", invitation(server, authority))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert server.tokens == []


OTHER = Authority()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ca": OTHER.pem.decode()}, "not the one this token names"),
        ({"certificate": "nonsense"}, "sent no certificate"),
        ({"node": "node-b"}, 'for "node-b", not for "node-a"'),
        ({"agents": 7}, "not as a manager"),
    ],
)
def test_an_answer_that_does_not_fit_leaves_nothing(
    tmp_path: Path, authority: Authority, changes: dict[str, Any], message: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with (
        serving(authority, signing(authority, **changes), tmp_path) as server,
        pytest.raises(AgentError, match=message),
    ):
        join(home, "node-a", invitation(server, authority))
    assert list(home.iterdir()) == []


def test_a_certificate_for_another_key_is_refused(tmp_path: Path, authority: Authority) -> None:
    foreign = authority.for_node("node-a", ec.generate_private_key(ec.SECP256R1()).public_key()).decode()
    with (
        serving(authority, signing(authority, certificate=foreign), tmp_path) as server,
        pytest.raises(AgentError, match="for another key"),
    ):
        join(tmp_path, "node-a", invitation(server, authority))


def test_the_reason_of_a_refusal_is_told(tmp_path: Path, authority: Authority) -> None:
    problem = {"title": "no", "detail": "the token has expired"}
    with (
        serving(authority, lambda asked: (401, problem), tmp_path) as server,
        pytest.raises(AgentError, match=r"refused \(401\): the token has expired"),
    ):
        join(tmp_path, "node-a", invitation(server, authority))


def test_a_manager_that_is_not_there_is_told(tmp_path: Path) -> None:
    nowhere = read_invitation(f"{SECRET}.{'0' * 32}@https://127.0.0.1:1")
    with pytest.raises(AgentError, match="cannot be reached"):
        join(tmp_path, "node-a", nowhere)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a token"),
        ("gyj_short@https://m", "not a token"),
        (f"{SECRET}.{'0' * 31}@https://m", "not a token"),
        (f"{SECRET}.{'0' * 32}", "not the address of a manager"),
        (f"{SECRET}.{'0' * 32}@ftp://m", "not the address of a manager"),
        (f"{SECRET}.{'0' * 32}@http://m", "may not travel unprotected"),
    ],
)
def test_what_is_not_an_invitation_is_told(text: str, message: str) -> None:
    with pytest.raises(AgentError, match=message):
        read_invitation(text)


@pytest.mark.parametrize("name", ["", "x" * 65])
def test_a_name_that_no_certificate_can_hold_is_told(tmp_path: Path, authority: Authority, name: str) -> None:
    with (
        serving(authority, signing(authority), tmp_path) as server,
        pytest.raises(AgentError, match="cannot be the name of a node"),
    ):
        join(tmp_path, name, invitation(server, authority))


def test_an_agent_joins_once_and_keeps_its_name(
    tmp_path: Path, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(home=tmp_path / "home", node="node-a", isolation=Isolation.NONE)
    with serving(authority, signing(authority), tmp_path) as server:
        text = f"{SECRET}.{fingerprint(authority.der)}@{server.url}"
        enter(settings, text)
        enter(settings, text)
    assert len(server.tokens) == 1
    said = capsys.readouterr().out
    assert "joined as node-a; the manager listens for agents at 10.0.0.1:7443" in said
    assert "has joined as node-a already" in said
