"""Requests to a Kubernetes API server: objects as raw JSON in and out.

Place in the flow: fake GPUs and schedulers ─**client**─▶ API server. What is read is decoded by whoever asks, into
the few fields it needs. Invariants: every request has an end; no answer and an answer of no are two kinds of error;
only what changes nothing when it is done twice is sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec

from gpuyard import __version__
from gpuyard.errors import KubeError, KubeRefusedError, KubeUnreachableError
from gpuyard.kubeapi.access import Access
from gpuyard.kubeapi.credentials import Credentials, trust_of
from gpuyard.kubeapi.http import Http, HttpError, Server, SilenceError
from gpuyard.platform.chance import some_of

CONNECT_S: Final = 5.0
ANSWER_S: Final = 30.0
TRIES: Final = 4
"""How often a request is sent at most that the server is too busy for."""
MAX_RETRY_AFTER_MS: Final = 5_000
FIRST_WAIT_MS: Final = 200

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
"""Merges lists by the key of their entries; only for Kubernetes' own kinds."""
APPLY: Final = "application/apply-patch+yaml"
JSON: Final = "application/json"
CONFLICT: Final = 409
NOT_FOUND: Final = 404
FORBIDDEN: Final = 403
GONE: Final = 410
_UNAUTHORISED: Final = 401
_BUSY: Final = frozenset({429, 503})

Params = Mapping[str, str]
Kind = TypeVar("Kind")


class Status(msgspec.Struct, frozen=True):
    """What the server says where it does not give an object."""

    message: str = ""
    reason: str = ""
    code: int = 0


class KubeClient:
    """One API server, one identity."""

    def __init__(self, access: Access, *, tries: int = TRIES) -> None:
        """`tries`: 1 for those who must look around before they ask a busy server again."""
        self.access: Final = access
        self._tries: Final = tries
        self._credentials = Credentials(access)
        server = Server.of(access.server, trust_of(access), access.server_name)
        about = f"User-Agent: gpuyard/{__version__}\r\nAccept: {JSON}\r\n"
        self._http = Http(server, about, CONNECT_S, ANSWER_S)

    async def close(self) -> None:
        await self._http.close()

    # ------------------------------------------------------------------------------------------------------ requests

    async def get(self, path: str, params: Params | None = None) -> bytes:
        return await self._send("GET", path, params=params)

    async def create(self, path: str, body: object, *, tries: int | None = None) -> bytes:
        """Make an object in a collection; one of that name that is there already is a KubeRefusedError (409)."""
        return await self._send("POST", path, body=body, tries=tries)

    async def replace(self, path: str, body: object) -> bytes:
        """Put an object in the place of one that has the resourceVersion it names; else a KubeRefusedError (409)."""
        return await self._send("PUT", path, body=body)

    async def merge(self, path: str, body: object, kind: str = MERGE) -> bytes:
        """Change what is named; null takes a field away (RFC 7386)."""
        return await self._send("PATCH", path, body=body, kind=kind)

    async def apply(self, path: str, body: object, manager: str) -> bytes:
        """Own exactly these fields from now on, also against others; those we named before and do not now go away."""
        return await self._send("PATCH", path, {"fieldManager": manager, "force": "true"}, body, APPLY)

    async def delete(self, path: str) -> None:
        """Take an object away; one that is not there is no error."""
        try:
            await self._send("DELETE", path)
        except KubeRefusedError as error:
            if error.status != NOT_FOUND:
                raise

    async def _send(
        self,
        method: str,
        path: str,
        params: Params | None = None,
        body: object = None,
        kind: str = JSON,
        tries: int | None = None,
    ) -> bytes:
        tries = tries or self._tries
        content = None if body is None else msgspec.json.encode(body)
        renewed = False
        tried = 0
        while True:
            headers = await self._headers(kind if content is not None else "")
            try:
                answer = await self._http.send(method, _target(path, params), headers, content)
            except HttpError as error:
                raise self._unreachable(error) from None
            if answer.status == _UNAUTHORISED and not renewed and self._credentials.forget():
                renewed = True
                continue
            tried += 1
            if answer.status not in _BUSY or tried >= tries:
                break
            await asyncio.sleep(_wait_ms(answer.retry_after, tried) / 1000)
        if answer.is_success:
            return answer.content
        raise refusal(answer.status, answer.content, f"{method} {path}")

    async def _headers(self, kind: str) -> str:
        headers = await self._credentials.headers()
        if kind:
            headers["Content-Type"] = kind
        if any(not value.isprintable() for value in headers.values()):
            raise KubeError("the token has characters no request can carry", fix="copy the kubeconfig again")
        return "".join(f"{name}: {value}\r\n" for name, value in headers.items())

    # ------------------------------------------------------------------------------------------------------- streams

    @asynccontextmanager
    async def stream(self, path: str, params: Params, silence_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Pieces of an answer as they come; one that says nothing for so long is a KubeUnreachableError."""
        headers = await self._headers("")
        try:
            async with self._http.stream(_target(path, params), headers, silence_s) as (answer, pieces):
                if not answer.is_success:
                    if answer.status == _UNAUTHORISED:
                        self._credentials.forget()
                    said = b"".join([piece async for piece in pieces])
                    raise refusal(answer.status, said, f"GET {path}")
                yield pieces
        except SilenceError:
            raise KubeUnreachableError(f"{self.access.server} has said nothing for {silence_s:g} s") from None
        except HttpError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: HttpError) -> KubeUnreachableError:
        why = str(error) or type(error).__name__
        return KubeUnreachableError(
            f"the API server {self.access.server} does not answer: {why}",
            fix="see whether it runs: kubectl cluster-info",
        )


def decoded(content: bytes | msgspec.Raw, kind: type[Kind], path: str) -> Kind:
    """What the server has answered; one that makes no sense is a KubeError, as no answer is."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KubeError(f"the API server's answer about {path} cannot be read: {error}") from None


def refusal(status: int, content: bytes, request: str) -> KubeRefusedError:
    """An answer of no, in the server's own words."""
    try:
        said = msgspec.json.decode(content, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = Status(message=content[:200].decode("utf-8", "replace").strip())
    fix = "grant it (the folder deploy has the roles), or use another identity" if status in (401, 403) else ""
    what = f"the API server refuses {request}: {said.message or said.reason or status}"
    return KubeRefusedError(what, status=status, reason=said.reason, fix=fix)


def _wait_ms(retry_after: str, tried: int) -> int:
    told = int(retry_after) * 1000 if retry_after.isdecimal() else some_of(FIRST_WAIT_MS << tried)
    return min(told, MAX_RETRY_AFTER_MS)


def _target(path: str, params: Params | None) -> str:
    return f"{path}?{urlencode(params)}" if params else path
