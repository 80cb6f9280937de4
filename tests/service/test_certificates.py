"""Requests to be signed: of the right name and key, or refused; damaged ones are no exception."""

from __future__ import annotations

import base64
import random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from gpuyard.errors import RefusedError
from gpuyard.service.certificates import MAX_REQUEST_BYTES, Authority, name_in

LINES = b"-----BEGIN CERTIFICATE REQUEST-----\n%s-----END CERTIFICATE REQUEST-----\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.in_folder(tmp_path_factory.mktemp("ca"), "yard")


def request(*names: str, key: object = None) -> x509.CertificateSigningRequest:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return builder.sign(key, None)
    if isinstance(key, rsa.RSAPrivateKey):
        return builder.sign(key, hashes.SHA256())
    return builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())


def pem(made: x509.CertificateSigningRequest) -> bytes:
    return made.public_bytes(serialization.Encoding.PEM)


def test_a_request_of_the_right_name_is_signed(authority: Authority) -> None:
    assert name_in(authority.machine("n1", pem(request("n1")))) == "n1"


@pytest.mark.parametrize("names", [(), ("n2",), ("n1", "n2"), ("n1", "n1")])
def test_one_of_another_name_or_several_is_refused(authority: Authority, names: tuple[str, ...]) -> None:
    with pytest.raises(RefusedError, match="another name"):
        authority.machine("n1", pem(request(*names)))


@pytest.mark.parametrize("key", [ed25519.Ed25519PrivateKey.generate(), rsa.generate_private_key(65537, 2048)])
def test_one_of_another_kind_of_key_is_refused(authority: Authority, key: object) -> None:
    with pytest.raises(RefusedError, match="no elliptic key"):
        authority.machine("n1", pem(request("n1", key=key)))


def test_one_that_is_too_long_is_not_even_read(authority: Authority) -> None:
    with pytest.raises(RefusedError, match="too long"):
        authority.machine("n1", b"x" * (MAX_REQUEST_BYTES + 1))


def test_damaged_requests_are_refused_and_raise_nothing_else(authority: Authority) -> None:
    """Unknown algorithms, curves and versions are exceptions of their own kinds."""
    rng = random.Random(7)
    good = request("n1").public_bytes(serialization.Encoding.DER)
    refused = 0
    for _ in range(1_000):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            authority.machine("n1", LINES % base64.encodebytes(bytes(data)))
        except RefusedError:
            refused += 1
    assert refused > 950
