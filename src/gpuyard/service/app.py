"""The REST side as one ASGI application: the guard in front of all routes, and the routes themselves.

Place in the flow: uvicorn ─ASGI─▶ **app** ─▶ routing ─▶ handlers ─▶ manager. The order is always the same: is there
room, is it for this host, is it no foreign web page, who asks; then the table. Invariant: every refusal is a problem,
every answer has the security headers, and nobody without a credential learns more than liveness and version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gpuyard.errors import RefusedError
from gpuyard.platform.chance import token
from gpuyard.service.call import Service, Settings
from gpuyard.service.encoded import Encoded
from gpuyard.service.faces import Face, face_of
from gpuyard.service.heads import check_head, check_host, check_origin
from gpuyard.service.limits import SEND_SECONDS
from gpuyard.service.port import ManagerPort
from gpuyard.service.problems import KINDS, PROBLEM_MEDIA, ProblemReason, problem, problem_of
from gpuyard.service.routing import router, wrong_method
from gpuyard.service.signin import SignIn
from gpuyard.service.traffic import Traffic
from gpuyard.wire.operations import OPERATIONS
from gpuyard.wire.rest import Problem

OPEN_PATHS: Final = frozenset(operation.path for operation in OPERATIONS if operation.permission is None)
LAST_REQUESTS: Final = frozenset({ProblemReason.BAD_HEADER, ProblemReason.BAD_PATH, ProblemReason.TOO_LARGE})
"""After these nothing more is read from the connection: where the next request begins may be a matter of opinion."""
UNROUTED: Final = "none"
"""What the metrics call a request that reached no operation."""

SECURITY_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
STRICT_TRANSPORT: Final = ("strict-transport-security", "max-age=31536000")

_log: Final = logging.getLogger("gpuyard.service")


def build_app(manager: ManagerPort, settings: Settings, faces: Sequence[Face] = ()) -> App:
    signin = SignIn(lambda: manager.state, lambda: manager.now_ms())
    return App(Service(manager, settings, signin, Traffic(settings.streams_per_token), Encoded()), faces)


class App:
    """What uvicorn runs."""

    def __init__(self, service: Service, faces: Sequence[Face] = ()) -> None:
        self.service = service
        self._faces = tuple(faces)
        self._router = router(service, [route for face in faces for route in face.routes()])
        self._open_paths = OPEN_PATHS.union(*(face.open_paths for face in faces))
        self._hosts = frozenset(host.lower() for host in service.settings.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        began = asyncio.get_running_loop().time()
        reply = _Reply(send, tls=self.service.settings.tls)
        scope["app"] = self
        try:
            user = self._check(scope)
            with self.service.traffic.request(user) as scope["gpuyard.request"]:
                await self._route(scope, receive, reply)
        except Exception as error:
            await self._refuse(error, scope, receive, reply)
        took_ms = ((reply.began or asyncio.get_running_loop().time()) - began) * 1000
        self.service.traffic.done(scope.get("gpuyard.operation", UNROUTED), reply.status, took_ms)

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """There are no web sockets; a server's start and end concern the daemon, not us."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    def _check(self, scope: Scope) -> str:
        """Return the user who asks; empty where no credential is needed."""
        check_head(scope)
        check_host(scope, self._hosts)
        check_origin(scope, tls=self.service.settings.tls)
        if scope["path"] in self._open_paths:
            return ""
        client = scope.get("client")
        caller = self.service.signin.caller(Headers(scope=scope), client[0] if client else "")
        scope["gpuyard.caller"] = caller
        return caller.user

    async def _route(self, scope: Scope, receive: Receive, reply: _Reply) -> None:
        try:
            await self._router(scope, receive, reply.send)
        except HTTPException as error:
            if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
                scope["gpuyard.allow"] = (error.headers or {}).get("Allow", "")
                raise wrong_method(scope) from None
            what = f"there is nothing at {scope['path'][:80]}"
            raise RefusedError(ProblemReason.NO_SUCH_PATH, what, fix="GET /v1/openapi.json lists all paths") from None

    async def _refuse(self, error: Exception, scope: Scope, receive: Receive, reply: _Reply) -> None:
        found = problem_of(error) or self._bug(error)
        if reply.status:
            # The answer has begun: all that is left is to break it off, so that nobody takes it for whole.
            raise error
        face = face_of(self._faces, scope["path"])
        response = (face.refusal(found) if face is not None else None) or problem_response(found)
        response.headers.update(_extra(found, scope))
        await response(scope, receive, reply.send)

    def _bug(self, error: Exception) -> Problem:
        id = token(6)
        _log.error("unexpected error %s", id, exc_info=error)
        return problem(ProblemReason.INTERNAL, f"an unexpected error: {id}", fix="report it with this id")


def _extra(found: Problem, scope: Scope) -> dict[str, str]:
    headers = {"Connection": "close"} if found.reason in LAST_REQUESTS else {}
    kind = KINDS[ProblemReason(found.reason)]
    if kind.retry_after_s:
        headers["Retry-After"] = str(kind.retry_after_s)
    if found.reason == ProblemReason.SIGN_IN_NEEDED:
        headers["WWW-Authenticate"] = 'Bearer realm="gpuyard"'
    if found.reason == ProblemReason.WRONG_METHOD:
        headers["Allow"] = scope.get("gpuyard.allow", "")
    return headers


def problem_response(found: Problem) -> Response:
    return Response(msgspec.json.encode(found), found.status, None, PROBLEM_MEDIA)


class _Reply:
    """The way back: adds the security headers, notes status and time, and gives up on who does not read."""

    def __init__(self, send: Send, *, tls: bool) -> None:
        self._send = send
        self._tls = tls
        self.status = 0
        self.began = 0.0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.began = asyncio.get_running_loop().time()
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers[name] = value
            if self._tls:
                headers[STRICT_TRANSPORT[0]] = STRICT_TRANSPORT[1]
        async with asyncio.timeout(SEND_SECONDS):
            await self._send(message)
