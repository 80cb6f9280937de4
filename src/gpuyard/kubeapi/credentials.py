"""What a request carries to be believed: a token that is read again when it is renewed, or a certificate.

Place in the flow: Access ─**credentials**─▶ headers and TLS context ─▶ client. Invariant: a token that was refused is
looked for once more before the refusal is told.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import tempfile
from pathlib import Path
from typing import Final

from gpuyard.errors import InputError, KubeError
from gpuyard.kubeapi.access import Access, Program
from gpuyard.platform.clock import monotonic_ms
from gpuyard.platform.commands import run

TOKEN_FILE_MS: Final = 60_000
"""How long a token from a file is used before it is read again; the kubelet renews it long before it ends."""
PROGRAM_S: Final = 60.0
_ENDINGS: Final = {124: f"it did not end within {PROGRAM_S:g} s", 127: "it could not be started"}
PROGRAM_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class Credentials:
    """The token of one identity."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._token = ""
        self._until_ms = 0

    async def headers(self) -> dict[str, str]:
        token = await self._current()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def forget(self) -> bool:
        """It was refused; whether another one may be had."""
        self._until_ms = 0
        return self._access.token_file is not None or self._access.program is not None

    async def _current(self) -> str:
        access = self._access
        if access.token_file is None and access.program is None:
            return access.token
        if monotonic_ms() >= self._until_ms:
            read = _of_file if access.token_file is not None else _of_program
            self._token = await asyncio.to_thread(read, access)
            self._until_ms = monotonic_ms() + TOKEN_FILE_MS
        return self._token


def _of_file(access: Access) -> str:
    assert access.token_file is not None
    try:
        return access.token_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        why = error.strerror or str(error)
        raise KubeError(f"the token {access.token_file} cannot be read: {why}") from None


def _of_program(access: Access) -> str:
    program = access.program
    assert program is not None
    if program.version not in PROGRAM_VERSIONS:
        raise KubeError(f'the version "{program.version}" of {program.command[0]} is not known', fix=_known_versions())
    done = run(program.command, timeout_s=PROGRAM_S, env=_environment(program))
    try:
        answer, _ = json.JSONDecoder().raw_decode(done.output[done.output.index("{") :])
        status = answer["status"]
        token = status.get("token")
        assert isinstance(token, str) or "clientCertificateData" in status
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        ended = _ENDINGS.get(done.code, f"it ended with {done.code}")
        why = ended if done.code else "it printed none"
        raise KubeError(f"{program.command[0]} gives no token: {why}", fix="run it by hand to see why") from None
    if not isinstance(token, str):
        what = f"{program.command[0]} gives a client certificate, and gpuyard takes only tokens from programs"
        raise KubeError(what, fix="have it give a token, or write a certificate into the kubeconfig")
    return token


def _environment(program: Program) -> dict[str, str]:
    spec: dict[str, object] = {"interactive": False}
    if program.about_cluster is not None:
        spec["cluster"] = program.about_cluster
    about = {"kind": "ExecCredential", "apiVersion": program.version, "spec": spec}
    return {**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(about), **dict(program.environment)}


def _known_versions() -> str:
    return f"known: {', '.join(PROGRAM_VERSIONS)}"


def trust_of(access: Access) -> ssl.SSLContext | bool:
    """How the server's certificate is checked, and what we show of ourselves."""
    if not access.server.startswith("https:"):
        return True
    try:
        # A machine's own authorities count where none is named.
        context = ssl.create_default_context(cadata=access.authority_pem.decode("ascii") or None)
        if access.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if access.certificate_pem:
            _show_certificate(context, access)
    except (ssl.SSLError, ValueError) as error:
        fix = "kubectl config view --raw shows them; copy the kubeconfig again"
        raise InputError(f"the certificates for {access.server} cannot be used: {error}", fix=fix) from None
    return context


def _show_certificate(context: ssl.SSLContext, access: Access) -> None:
    """The library takes files only; they are closed to others and gone at once."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "identity.pem"
        file.touch(mode=0o600)
        file.write_bytes(access.certificate_pem.rstrip(b"\n") + b"\n" + access.key_pem)
        context.load_cert_chain(file)
