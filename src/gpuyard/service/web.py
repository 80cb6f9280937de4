"""REST as a listening server.

Place in the flow: socket ─HTTP─▶ uvicorn ─ASGI─▶ app. TLS on every address that others can reach, with the cluster's
own certificate, unless plain HTTP was asked for in so many words.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Generator, Sequence
from typing import Final

import uvicorn

from gpuyard import __version__
from gpuyard.errors import ServiceError
from gpuyard.platform.files import write_private
from gpuyard.platform.listening import listening
from gpuyard.service.app import build_app
from gpuyard.service.call import LOOPBACK, Service
from gpuyard.service.call import Settings as CallSettings
from gpuyard.service.certificates import Authority, Pair
from gpuyard.service.faces import Face
from gpuyard.service.manager import Manager
from gpuyard.service.protocol import BoundedHttp
from gpuyard.service.settings import Address, Settings

START_S: Final = 30.0
STOP_S: Final = 3
KEEP_ALIVE_S: Final = 30


class _Server(uvicorn.Server):
    """Signals are the daemon's business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _hosts(settings: Settings, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names a request may be for: those of loopback, and where others reach it, all of this machine's."""
    if settings.listen.loopback:
        return (*LOOPBACK, *settings.names)
    written = [f"[{name}]" if ":" in name else name for name in (*names, settings.listen.host)]
    return tuple(dict.fromkeys((*LOOPBACK, *written)))


def _warnings(settings: Settings) -> tuple[str, ...]:
    insecure = not settings.listen.loopback and not settings.tls
    return ("plain HTTP on an address that others can reach: tokens can be read on the way",) if insecure else ()


class WebServer:
    """Serves the REST API until stopped."""

    def __init__(
        self,
        manager: Manager,
        settings: Settings,
        authority: Authority,
        pair: Pair,
        *,
        agents: Address,
        names: tuple[str, ...],
        faces: Sequence[Face] = (),
    ) -> None:
        self._settings = settings
        self._pair = pair
        self._authority = authority
        self._app = build_app(
            manager,
            CallSettings(
                version=__version__,
                hosts=_hosts(settings, names),
                tls=settings.tls,
                agents=str(agents),
                authority=authority,
                streams_per_token=settings.streams_per_token,
                max_job_bytes=settings.max_job_bytes,
                warnings=_warnings(settings),
            ),
            faces,
        )
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def service(self) -> Service:
        """What its handlers share, for those who are built beside them."""
        return self._app.service

    async def start(self) -> str:
        """The URL it answers at."""
        address = self._settings.listen
        try:
            listener = listening(address.host, address.port)
        except OSError as error:
            raise ServiceError(
                f"nothing can listen on {address}: {error.strerror}", fix="choose another with --listen HOST:PORT"
            ) from None
        self._server = _Server(self._config())
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        await self._until_started()
        host = "127.0.0.1" if address.everywhere else address.host
        scheme = "https" if self._settings.tls else "http"
        return f"{scheme}://{Address(host, listener.getsockname()[1])}"

    def _config(self) -> uvicorn.Config:
        config = uvicorn.Config(
            self._app,
            http=BoundedHttp,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_S,
        )
        if self._settings.tls:
            folder = self._settings.authority_folder
            # With the authority behind it: a machine that joins knows that one by its fingerprint.
            write_private(folder / "server.pem", self._pair.certificate + self._authority.pem)
            write_private(folder / "server.key", self._pair.key)
            config.ssl_certfile, config.ssl_keyfile = str(folder / "server.pem"), str(folder / "server.key")
            config.ssl_version = ssl.PROTOCOL_TLS_SERVER
        return config

    async def _until_started(self) -> None:
        assert self._server is not None
        assert self._task is not None
        until = asyncio.get_running_loop().time() + START_S
        while not self._server.started:
            if self._task.done() or asyncio.get_running_loop().time() > until:
                raise ServiceError("the web server does not start", fix="look at what it said above")
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
