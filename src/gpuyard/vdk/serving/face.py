"""The pool as a face of the manager: opened, served and closed with it.

Place in the flow: cli ─▶ **face** ─▶ desk, REST handlers, gRPC server. The pool's state is in a database of its own
beside the manager's. It is opened in its own thread while the manager goes on starting: whoever calls before that
waits, and where it cannot be opened the manager ends and says why. Invariant: what is overdue is rolled back within a
second, whether or not anybody calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import grpc
from starlette.responses import Response
from starlette.routing import BaseRoute

from gpuyard.errors import ServiceError, StoreError
from gpuyard.platform.home import markers_of
from gpuyard.service.faces import Ground
from gpuyard.service.handlers import Handler
from gpuyard.service.routing import table_routes
from gpuyard.service.settings import Address
from gpuyard.vdk.model import DEFAULT_EXPIRY_MS
from gpuyard.vdk.port import GpuResourceManager
from gpuyard.vdk.serving.desk import Desk
from gpuyard.vdk.serving.rest import RestDesk
from gpuyard.vdk.serving.server import PoolServer, credentials_of
from gpuyard.wire.rest import Problem
from gpuyard.worlds.standalone.store.address import beside

PART: Final = "pool"
"""What the pool's database is called beside the manager's."""
PORT_STEP: Final = 2
"""The pool is listened for on the second port after people's, unless said otherwise."""
EXPIRE_EVERY_S: Final = 1.0

_log: Final = logging.getLogger("gpuyard.pool")


class PoolFace:
    """Serves one pool. `listen` None: loopback, on the usual port, or any that is free where that is taken."""

    prefixes = ("/v1/pool/",)
    open_paths: frozenset[str] = frozenset()

    def __init__(self, listen: Address | None = None, *, expiry_ms: int = DEFAULT_EXPIRY_MS) -> None:
        self._listen = listen
        self._expiry_ms = expiry_ms
        self._rest = RestDesk(self.desk)
        self._ground: Ground | None = None
        self._opening: asyncio.Task[Desk] | None = None
        self._server: PoolServer | None = None

    async def desk(self) -> Desk:
        assert self._opening is not None, "begun before anybody can connect"
        # Whoever asks may go away; the others still wait for it.
        return await asyncio.shield(self._opening)

    def routes(self) -> Sequence[BaseRoute]:
        return table_routes(self.handlers, lambda: self._under.service)

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By the name of their operation."""
        return self._rest.handlers

    def refusal(self, found: Problem) -> Response | None:
        return None

    @property
    def _under(self) -> Ground:
        assert self._ground is not None, "opened before anybody can connect"
        return self._ground

    async def open(self, ground: Ground) -> None:
        self._ground = ground
        address, markers = beside(ground.settings.store_address, PART), markers_of(ground.settings.home)
        self._opening = asyncio.create_task(Desk.open(lambda: _opened(address, markers, self._expiry_ms)))
        found = await self._start_server(ground)
        ground.service.manager.stats.pool = str(found)
        plain = not found.loopback and ground.settings.insecure
        ground.tell("pool", f"{found} (gRPC{', without TLS: tokens can be read on the way' if plain else ''})")

    async def _start_server(self, ground: Ground) -> Address:
        if self._listen is not None:
            return await self._serve(ground, self._listen)
        people = ground.settings.listen.port
        with suppress(ServiceError):
            return await self._serve(ground, Address("127.0.0.1", people + PORT_STEP if people else 0))
        return await self._serve(ground, Address("127.0.0.1", 0))

    async def _serve(self, ground: Ground, address: Address) -> Address:
        server = PoolServer(self.desk, ground.service)
        found = await server.start(address, self._credentials(ground, address))
        self._server = server
        return found

    def _credentials(self, ground: Ground, address: Address) -> grpc.ServerCredentials | None:
        if address.loopback or ground.settings.insecure:
            return None
        return credentials_of(ground.pair, ground.authority)

    async def work(self) -> None:
        desk = await self.desk()
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            try:
                await desk.do(lambda pool: pool.expire())
            except StoreError as error:
                # Whoever calls is told; what is overdue stays so until the database answers again.
                _log.warning("the pool's database cannot be used: %s", error)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop()
        if self._opening is not None:
            with suppress(StoreError):
                await (await self._opening).close()


def _opened(address: str, markers: Path, expiry_ms: int) -> GpuResourceManager:
    """In the pool's thread, which also loads what only the pool needs."""
    from gpuyard.vdk.pool.pool import Pool
    from gpuyard.vdk.serving.calls import CALLS

    assert CALLS, "loaded here, and not when the first call waits for it"
    return Pool(address, markers=markers, expiry_ms=expiry_ms)
