"""The cluster's own certificates: its authority, its server certificate, and one per machine.

Place in the flow: daemon and join ─▶ **certificates** ─▶ TLS of REST and of the agents' stream. Keys never leave the
place they are made in: machines send requests to be signed. A machine is known by its common name and by the
fingerprint in the log, so that removing it also ends its certificate.
"""

from __future__ import annotations

import hashlib
import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509 import InvalidVersion
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpuyard.errors import RefusedError, ServiceError
from gpuyard.platform.clock import wall_ms
from gpuyard.platform.files import write_private

AUTHORITY_DAYS: Final = 3650
MACHINE_DAYS: Final = 825
SERVER_DAYS: Final = 825
RENEW_DAYS: Final = 90
"""A certificate of the manager's own machine is made anew at a start in its last days."""
MAX_REQUEST_BYTES: Final = 16 << 10
ALWAYS_NAMED: Final = ("localhost", "127.0.0.1", "::1")


class Pair(msgspec.Struct, frozen=True):
    """A certificate with its key, as PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs for one cluster. Made once, kept in a folder only the manager reads."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate = certificate
        self._key = key

    @classmethod
    def in_folder(cls, folder: Path, cluster: str) -> Authority:
        """The authority that lies there, or a new one."""
        kept = folder / "ca.pem", folder / "ca.key"
        if all(path.exists() for path in kept):
            return cls._read(*kept)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = cls._make(cluster)
        # The key last: a folder with a certificate alone is taken as empty and made anew.
        write_private(kept[0], made.pem)
        write_private(kept[1], _key_pem(made._key))
        return made

    @classmethod
    def _read(cls, certificate: Path, key: Path) -> Authority:
        try:
            loaded = serialization.load_pem_private_key(key.read_bytes(), None)
            if not isinstance(loaded, ec.EllipticCurvePrivateKey):
                raise ValueError("not an elliptic key")
            return cls(x509.load_pem_x509_certificate(certificate.read_bytes()), loaded)
        except (OSError, ValueError) as error:
            raise ServiceError(
                f"the authority in {certificate.parent} cannot be read: {error}",
                fix="restore the folder; without it no machine can be trusted",
            ) from None

    @classmethod
    def _make(cls, cluster: str) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"gpuyard {cluster}")
        builder = _builder(name, name, key.public_key(), AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(signs=True), critical=True)
        return cls(builder.sign(key, hashes.SHA256()), key)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def pin(self) -> str:
        """What a join token carries, so that a machine knows whom it joins."""
        return fingerprint(self.certificate)[:32]

    def server(self, names: tuple[str, ...]) -> Pair:
        """A certificate for the manager under all its names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        distinct = tuple(dict.fromkeys((*ALWAYS_NAMED, *names)))
        builder = _builder(_name("gpuyard manager"), self.certificate.subject, key.public_key(), SERVER_DAYS)
        builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(one) for one in distinct]), False)
        return Pair(self._sign(builder, ExtendedKeyUsageOID.SERVER_AUTH), _key_pem(key))

    def machine(self, node: str, request_pem: bytes) -> bytes:
        """A certificate for a machine that asks for one by this name."""
        names, key = _asked_for(request_pem)
        if names != [node]:
            raise RefusedError("BadRequest", "the certificate asked for has another name than the machine", field="csr")
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise RefusedError("BadRequest", "the certificate asked for has no elliptic key", fix="P-256", field="csr")
        builder = _builder(_name(node), self.certificate.subject, key, MACHINE_DAYS)
        return self._sign(builder, ExtendedKeyUsageOID.CLIENT_AUTH)

    def machine_with_key(self, node: str) -> Pair:
        """For the machine the manager itself runs on."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(node), self.certificate.subject, key.public_key(), MACHINE_DAYS)
        return Pair(self._sign(builder, ExtendedKeyUsageOID.CLIENT_AUTH), _key_pem(key))

    def _sign(self, builder: x509.CertificateBuilder, use: x509.ObjectIdentifier) -> bytes:
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(signs=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def fingerprint(certificate: x509.Certificate) -> str:
    return hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


def fingerprint_of(pem: bytes) -> str:
    return fingerprint(x509.load_pem_x509_certificate(pem))


def name_in(pem: bytes) -> str:
    """Whom a certificate is for."""
    names = x509.load_pem_x509_certificate(pem).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def expires_soon(pem: bytes) -> bool:
    """Whether it should be made anew, before it is too late."""
    left = x509.load_pem_x509_certificate(pem).not_valid_after_utc - _now()
    return left < timedelta(days=RENEW_DAYS)


_NOT_READ: Final = (ValueError, TypeError, InvalidSignature, InvalidVersion, UnsupportedAlgorithm)
"""What reading a request raises: it is read part by part, and each part may be damaged."""


def _asked_for(pem: bytes) -> tuple[list[str | bytes], CertificatePublicKeyTypes]:
    """Return the names and the key in a request whose signature shows that its sender holds the key."""
    try:
        if len(pem) > MAX_REQUEST_BYTES:
            raise ValueError("too long")
        request = x509.load_pem_x509_csr(pem)
        if not request.is_signature_valid:
            raise ValueError("its signature does not fit")
        names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return [name.value for name in names], request.public_key()
    except _NOT_READ as error:
        what = f"the certificate request cannot be read: {error}"
        raise RefusedError("BadRequest", what, fix="a PEM of PKCS #10", field="csr") from None


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = _now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # A machine whose clock is a little behind must not think it is from the future.
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
    )


def _now() -> datetime:
    return datetime.fromtimestamp(wall_ms() / 1000, UTC)


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
