"""Requests to a Kubernetes API server: objects as raw JSON in and out.

Place in the flow: fake GPUs and schedulers ─**client**─▶ API server. What is read is decoded by whoever asks, into
the few fields it needs. Invariants: every request has an end; no answer and an answer of no are two kinds of error;
only what changes nothing when it is done twice is sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
import msgspec

from gpuyard import __version__
from gpuyard.errors import KubeRefusedError, KubeUnreachableError
from gpuyard.kubeapi.access import Access
from gpuyard.kubeapi.credentials import Credentials, trust_of
from gpuyard.platform.chance import some_of

CONNECT_S: Final = 5.0
ANSWER_S: Final = 30.0
MAX_CONNECTIONS: Final = 64
TRIES: Final = 4
"""How often a request is sent at most that the server is too busy for."""
MAX_RETRY_AFTER_MS: Final = 5_000
FIRST_WAIT_MS: Final = 200

MERGE: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
JSON: Final = "application/json"
CONFLICT: Final = 409
NOT_FOUND: Final = 404
GONE: Final = 410
_UNAUTHORISED: Final = 401
_BUSY: Final = frozenset({429, 503})

Params = Mapping[str, str]


class Status(msgspec.Struct, frozen=True):
    """What the server says where it does not give an object."""

    message: str = ""
    reason: str = ""
    code: int = 0


class KubeClient:
    """One API server, one identity."""

    def __init__(self, access: Access) -> None:
        self.access: Final = access
        self._credentials = Credentials(access)
        extensions = {"sni_hostname": access.server_name} if access.server_name else {}
        self._extensions: dict[str, Any] = extensions
        self._http = httpx2.AsyncClient(
            base_url=access.server,
            verify=trust_of(access),
            headers={"User-Agent": f"gpuyard/{__version__}", "Accept": JSON, "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S),
            limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS),
            follow_redirects=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    # ------------------------------------------------------------------------------------------------------ requests

    async def get(self, path: str, params: Params | None = None) -> bytes:
        return await self._send("GET", path, params=params)

    async def create(self, path: str, body: object) -> bytes:
        """Make an object in a collection; one of that name that is there already is a KubeRefusedError (409)."""
        return await self._send("POST", path, body=body)

    async def merge(self, path: str, body: object) -> bytes:
        """Change what is named; null takes a field away (RFC 7386)."""
        return await self._send("PATCH", path, body=body, kind=MERGE)

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
        self, method: str, path: str, params: Params | None = None, body: object = None, kind: str = JSON
    ) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        renewed = False
        for tried in range(1, TRIES + 1):
            request = await self._request(method, path, params, content, kind)
            try:
                answer = await self._http.send(request)
            except httpx2.HTTPError as error:
                raise self._unreachable(error) from None
            if answer.status_code == _UNAUTHORISED and not renewed and self._credentials.forget():
                renewed = True
                continue
            if answer.status_code not in _BUSY or tried == TRIES:
                break
            await asyncio.sleep(_wait_ms(answer.headers.get("retry-after", ""), tried) / 1000)
        if answer.is_success:
            return answer.content
        raise refusal(answer.status_code, answer.content, f"{method} {path}")

    async def _request(
        self, method: str, path: str, params: Params | None, content: bytes | None, kind: str
    ) -> httpx2.Request:
        headers = await self._credentials.headers()
        if content is not None:
            headers["Content-Type"] = kind
        return self._http.build_request(
            method,
            path,
            params=dict(params) if params else None,
            content=content,
            headers=headers,
            extensions=self._extensions,
        )

    # ------------------------------------------------------------------------------------------------------- streams

    @asynccontextmanager
    async def stream(self, path: str, params: Params, silence_s: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Pieces of an answer as they come; one that says nothing for so long is a KubeUnreachableError."""
        request = await self._request("GET", path, params, None, JSON)
        request.extensions["timeout"] = httpx2.Timeout(silence_s, connect=CONNECT_S).as_dict()
        try:
            answer = await self._http.send(request, stream=True)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None
        try:
            if not answer.is_success:
                if answer.status_code == _UNAUTHORISED:
                    self._credentials.forget()
                raise refusal(answer.status_code, await answer.aread(), f"GET {path}")
            yield answer.aiter_raw()
        except httpx2.ReadTimeout:
            raise KubeUnreachableError(f"{self.access.server} has said nothing for {silence_s:g} s") from None
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None
        finally:
            await answer.aclose()

    def _unreachable(self, error: httpx2.HTTPError) -> KubeUnreachableError:
        why = str(error) or type(error).__name__
        return KubeUnreachableError(
            f"the API server {self.access.server} does not answer: {why}",
            fix="see whether it runs: kubectl cluster-info",
        )


def refusal(status: int, content: bytes, request: str) -> KubeRefusedError:
    """An answer of no, in the server's own words."""
    try:
        said = msgspec.json.decode(content, type=Status)
    except msgspec.DecodeError:
        said = Status(message=content[:200].decode("utf-8", "replace").strip())
    fix = "grant it (deploy/fakegpu has the roles), or use another identity" if status in (401, 403) else ""
    what = f"the API server refuses {request}: {said.message or said.reason or status}"
    return KubeRefusedError(what, status=status, reason=said.reason, fix=fix)


def _wait_ms(retry_after: str, tried: int) -> int:
    told = int(retry_after) * 1000 if retry_after.isdecimal() else some_of(FIRST_WAIT_MS << tried)
    return min(told, MAX_RETRY_AFTER_MS)
