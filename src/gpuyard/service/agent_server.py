"""Listens for agents, in a thread of its own with an event loop of its own.

Place in the flow: agent ─gRPC─▶ **agent server** ─Door, in its thread─▶ handover ─▶ manager. Messages are read,
decoded, checked and encoded here. Invariant: however busy the manager's event loop is, sessions stay open.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Final

import grpc

from gpuyard.errors import ServiceError
from gpuyard.service.agents import AgentsPort, Door
from gpuyard.service.certificates import Pair
from gpuyard.service.handover import Handover
from gpuyard.wire.agents import MAX_AGENT_MESSAGE_BYTES, MAX_MESSAGE_BYTES

STOP_S: Final = 1.0
MAX_STREAMS: Final = 8
"""Of one connection at once: an agent has one."""
KEEPALIVE_MS: Final = 10_000
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_AGENT_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.so_reuseport", 0),
)


class AgentServer:
    """`start` and `stop` are called in the manager's thread."""

    def __init__(self, manager: AgentsPort, server_pair: Pair, authority_pem: bytes) -> None:
        self._manager = manager
        self._credentials = grpc.ssl_server_credentials(
            [(server_pair.key, server_pair.certificate)], authority_pem, require_client_auth=True
        )
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()

    async def start(self, address: str) -> int:
        """Start the thread and return the port it listens on."""
        handover = Handover(self._manager, asyncio.get_running_loop())
        listens: Future[int] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(handover, address, listens)), name="gpuyard-agents", daemon=True
        )
        self._thread.start()
        return await asyncio.wrap_future(listens)

    async def stop(self) -> None:
        if self._thread is not None and self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
            await asyncio.to_thread(self._thread.join)

    async def _serve(self, handover: Handover, address: str, listens: Future[int]) -> None:
        """The life of the thread."""
        self._loop = asyncio.get_running_loop()
        handover.open(self._loop)
        door = Door(handover)
        try:
            server = grpc.aio.server(options=OPTIONS)
            server.add_generic_rpc_handlers((door,))
            port = self._listen(server, address)
            await server.start()
        except BaseException as error:
            listens.set_exception(error)
            return
        listens.set_result(port)
        await self._ended.wait()
        door.close()
        await server.stop(STOP_S)

    def _listen(self, server: grpc.aio.Server, address: str) -> int:
        try:
            port = server.add_secure_port(address, self._credentials)
        except RuntimeError:
            port = 0
        if not port:
            raise ServiceError(
                f"agents cannot be listened for on {address}: the address is taken or not of this machine",
                fix="choose another with --agents-listen HOST:PORT; --listen HOST:PORT moves this one, too",
            )
        return int(port)
