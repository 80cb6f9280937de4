"""Joining a manager: a short-lived token is changed into a certificate for this machine.

Place in the flow: `gpuyard agent --join TOKEN@URL` ─▶ **join** ─files in the home─▶ stream. The token's second part
is the start of the SHA-256 of the manager's CA. Invariant: the token is sent only to a server whose certificate that
CA has signed, and nothing is believed, stored or kept from an answer that does not fit it. The key never leaves the
machine.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

import httpx2
import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpuyard.agent.home import prepare
from gpuyard.agent.membership import JOINED, Joined, joined, store
from gpuyard.agent.settings import Settings
from gpuyard.errors import AgentError
from gpuyard.platform.listening import host_name
from gpuyard.platform.network import certificate_chain

PATH: Final = "/v1/nodes:join"
TOKEN: Final = re.compile(r"gyj_[A-Za-z0-9_-]{8,}\.([0-9a-f]{32})")
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
ANSWER_S: Final = 30.0
MAX_ANSWER_BYTES: Final = 1 << 20
SHOWN_CHARACTERS: Final = 300
EVERYWHERE: Final = ("", "0.0.0.0", "[::]")

FORM: Final = "it looks like gyj_SECRET.FINGERPRINT@https://manager:7400; get one with: gpuyard node token"


class Answer(msgspec.Struct, frozen=True):
    """Of the manager. `certificate` is for our key, `ca` has signed it."""

    node: str
    certificate: str
    ca: str
    agents: str


class Invitation(msgspec.Struct, frozen=True):
    """What a person was given: TOKEN@URL."""

    token: str
    pin: str
    """The first 32 hexadecimal digits of the CA's fingerprint."""
    url: str

    @property
    def place(self) -> SplitResult:
        return urlsplit(self.url)


def enter(settings: Settings, text: str) -> str:
    """Join with TOKEN@URL, and say what came of it; a machine that has joined stays what it is, however often told."""
    home = prepare(settings.home, settings.kept_apart())
    before = joined(home.root)
    if before.node:
        return f"has joined as {before.node} already; remove {JOINED} from its home to join anew"
    told = join(home.root, settings.node or host_name(), read_invitation(text))
    return f"joined as {told.node}; the manager listens for agents at {told.agents}"


def read_invitation(text: str) -> Invitation:
    token, _, url = text.strip().partition("@")
    match = TOKEN.fullmatch(token)
    if match is None:
        raise AgentError("this is not a token for joining", fix=FORM)
    place = urlsplit(url)
    if place.scheme not in ("http", "https") or not place.hostname:
        raise AgentError(f'"{url}" is not the address of a manager', fix=FORM)
    if place.scheme == "http" and place.hostname not in LOOPBACK:
        raise AgentError("a token may not travel unprotected", fix="use https, or http to this machine itself only")
    return Invitation(token, match.group(1), url.rstrip("/"))


def join(home: Path, node: str, invitation: Invitation) -> Joined:
    """Make a key, have it certified, store what came back; an AgentError says what was wrong, and nothing is stored."""
    key = ec.generate_private_key(ec.SECP256R1())
    trusted = _trusted_context(invitation)
    answer = _ask(invitation, node, _request(key, node), trusted)
    _check(answer, invitation, node, key)
    return _store(home, key, answer, invitation.url)


def _request(key: ec.EllipticCurvePrivateKey, node: str) -> str:
    try:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
    except ValueError:
        fix = "it has 1 to 64 characters; name it with --node"
        raise AgentError(f'"{node}" cannot be the name of a node', fix=fix) from None
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


# ------------------------------------------------------------------------------------------------------------- trust


def _trusted_context(invitation: Invitation) -> ssl.SSLContext | None:
    """Believes the pinned CA and nobody else; None where the manager is on this machine, without TLS."""
    place = invitation.place
    if place.scheme == "http":
        return None
    assert place.hostname is not None
    try:
        chain = certificate_chain(place.hostname, place.port or 443)
    except OSError as error:
        raise AgentError(
            f"{invitation.url} cannot be reached: {error}", fix="check the address, and that it is up"
        ) from None
    pinned = [certificate for certificate in chain if fingerprint(certificate) == invitation.pin]
    if not pinned:
        what = f"{invitation.url} is not the manager this token is for: it does not show the CA {invitation.pin}"
        raise AgentError(what, fix="somebody may be in between; or get a new token from the manager")
    return ssl.create_default_context(cadata=ssl.DER_cert_to_PEM_cert(pinned[0]))


def fingerprint(certificate: bytes) -> str:
    """As far as a token holds it."""
    return hashlib.sha256(certificate).hexdigest()[:32]


def _ask(invitation: Invitation, node: str, request: str, trusted: ssl.SSLContext | None) -> Answer:
    headers = {"Authorization": f"Bearer {invitation.token}"}
    try:
        # No proxy and no redirect: the token goes to the pinned server only.
        with httpx2.Client(verify=trusted or True, timeout=ANSWER_S, trust_env=False) as client:
            response = client.post(f"{invitation.url}{PATH}", json={"node": node, "csr": request}, headers=headers)
    except httpx2.HTTPError as error:
        raise AgentError(
            f"{invitation.url} did not answer: {error}", fix="check the address, and that it is up"
        ) from None
    if response.status_code >= 300:
        raise AgentError(
            f"the manager refused ({response.status_code}): {_reason(response)}", fix="get a new token from it"
        )
    try:
        return msgspec.json.decode(response.content[:MAX_ANSWER_BYTES], type=Answer)
    except msgspec.DecodeError as error:
        raise AgentError(f"{invitation.url} answers, but not as a manager: {error}", fix="check the address") from None


class Problem(msgspec.Struct, frozen=True):
    """As far as it is of interest here."""

    title: str = ""
    detail: str = ""


def _reason(response: httpx2.Response) -> str:
    try:
        problem = msgspec.json.decode(response.content, type=Problem)
    except msgspec.DecodeError:
        return response.text[:SHOWN_CHARACTERS].strip() or response.reason_phrase
    return problem.detail or problem.title or response.reason_phrase


def _check(answer: Answer, invitation: Invitation, node: str, key: ec.EllipticCurvePrivateKey) -> None:
    try:
        ca = x509.load_pem_x509_certificate(answer.ca.encode())
        certificate = x509.load_pem_x509_certificate(answer.certificate.encode())
    except ValueError as error:
        raise AgentError(f"the manager sent no certificate: {error}") from None
    if fingerprint(ca.public_bytes(serialization.Encoding.DER)) != invitation.pin:
        raise AgentError(
            "the CA the manager sent is not the one this token names", fix="get a new token from the manager"
        )
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        raise AgentError("the certificate the manager sent was not signed by its CA") from None
    if certificate.public_key() != key.public_key():
        raise AgentError("the certificate the manager sent is for another key")
    names = [str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if answer.node != node or names != [node]:
        raise AgentError(f'the certificate the manager sent is for "{answer.node}", not for "{node}"')


def _store(home: Path, key: ec.EllipticCurvePrivateKey, answer: Answer, url: str) -> Joined:
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    told = Joined(answer.node, _reached(answer.agents, url))
    store(home, key=secret, certificate=answer.certificate.encode(), ca=answer.ca.encode(), told=told)
    return told


def _reached(agents: str, url: str) -> str:
    """Where a manager that listens everywhere is reached: at the host it was joined at."""
    host, _, port = agents.rpartition(":")
    if host not in EVERYWHERE:
        return agents
    named = urlsplit(url).hostname or ""
    return f"[{named}]:{port}" if ":" in named else f"{named}:{port}"
