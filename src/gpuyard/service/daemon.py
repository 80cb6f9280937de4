"""The manager as a process: everything put together, started in order and stopped in order.

Place in the flow: cli ─Settings─▶ **daemon** ─▶ store, manager, agents' door, REST, the local agent. Invariant: when
`ready` is told, a client can sign in and submit; when `run` returns, everything acknowledged is on disk.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

import msgspec

from gpuyard import __version__
from gpuyard.model.queues import Queue
from gpuyard.platform.clock import wall_ms
from gpuyard.platform.files import write_private
from gpuyard.platform.home import DATABASE_FILE, SERVER_FILE, markers_of
from gpuyard.platform.listening import host_name, local_addresses
from gpuyard.service.agent_server import AgentServer
from gpuyard.service.certificates import Authority, fingerprint_of
from gpuyard.service.faces import Face, Ground
from gpuyard.service.lifetime import make_state_folder
from gpuyard.service.local_agent import LocalAgent, known_as
from gpuyard.service.manager import Manager
from gpuyard.service.settings import Address, Settings
from gpuyard.service.signin import admin_of_home, admin_token_file
from gpuyard.service.web import WebServer
from gpuyard.wire.access import Caller, Grant, Role
from gpuyard.wire.agents import Isolation
from gpuyard.worlds.standalone.events import ClusterFounded, Event, SharedUserAccepted, TeamsSet
from gpuyard.worlds.standalone.intents import AdmitNode
from gpuyard.worlds.standalone.lifecycle import TaskPhase
from gpuyard.worlds.standalone.records import TeamRecord
from gpuyard.worlds.standalone.store.opening import open_store

FIRST_TEAM: Final = "default"
HEARD_MS: Final = 100
RUNS: Final = frozenset({TaskPhase.RUNNING, TaskPhase.STOPPING})
MANAGER: Final = Caller("gpuyard", (Grant(Role.ADMIN),))
"""Who speaks where the manager itself does."""

Tell = Callable[[str, str], None]


class Ready(msgspec.Struct, frozen=True):
    """Where it answers."""

    url: str
    token_file: Path | None
    """Of the user admin; None where that is no admin any more."""
    new_token: bool
    """It was made at this start."""
    database: str
    agents: str


class Daemon:
    """One manager from start to end."""

    def __init__(self, settings: Settings, tell: Tell, faces: Sequence[Face] = ()) -> None:
        self.settings = settings
        self._tell = tell
        self._faces = tuple(faces)
        # A machine keeps the name it joined by, whatever its host is called meanwhile: its jobs are booked there.
        self.node = settings.node or known_as(settings.agent_home) or host_name()
        self._ended = asyncio.Event()

    async def run(self, ready: Callable[[Ready], None]) -> None:
        """Until a signal, or until the manager can go on no more (its error is raised)."""
        make_state_folder(self.settings.home)
        self._listen_to_signals()
        store = open_store(self.settings.store_address, markers_of(self.settings.home))
        manager = Manager(store, lease_ms=self.settings.lease_ms, uids=self.settings.uids)
        await manager.start()
        try:
            await self._serve(manager, ready)
        finally:
            await manager.stop()

    async def _serve(self, manager: Manager, ready: Callable[[Ready], None]) -> None:
        self._tell("database", manager.database)
        if self.settings.database:
            write_private(self.settings.home / DATABASE_FILE, f"{self.settings.database}\n".encode())
        new_token = await self._found(manager)
        authority = Authority.in_folder(self.settings.authority_folder, manager.state.cluster)
        names = (*self.settings.names, host_name(), *local_addresses(), *self.settings.hosts)
        pair = authority.server(names)
        door = AgentServer(manager, pair, authority.pem)
        port = await door.start(str(self.settings.agents_listen))
        agents = Address(self.settings.agents_listen.host, port)
        web = WebServer(manager, self.settings, authority, pair, agents=agents, names=names, faces=self._faces)
        ground = Ground(web.service, self.settings, authority, pair, self._tell)
        reached = Address("127.0.0.1", port) if agents.everywhere else agents
        local = LocalAgent(self.settings, self.node, str(reached)) if self.settings.with_agent else None
        async with AsyncExitStack() as ends:
            ends.push_async_callback(door.stop)
            for face in self._faces:
                ends.push_async_callback(face.close)
                await face.open(ground)
            ends.push_async_callback(web.stop)
            ends.callback(self._withdraw)
            url = await web.start()
            self._tell("agents", str(agents))
            beside = [asyncio.create_task(_work(face)) for face in self._faces]
            if local is not None:
                beside.append(asyncio.create_task(self._keep_agent(manager, authority, local)))
            self._announce(url, manager.stats.pool)
            token_file = admin_token_file(manager.state, self.settings.home, wall_ms())
            ready(Ready(url, token_file, new_token, manager.database, str(agents)))
            await self._until_the_end(manager, beside)
            if local is not None:
                await self._end_agent(local)
            self._tell_what_runs_on(manager)

    async def _found(self, manager: Manager) -> bool:
        """The first start of a cluster: its name, its first team, its first admin. Whether that has a new token."""
        state = manager.state
        events: list[Event] = []
        if not state.cluster:
            events.append(ClusterFounded(f"{self.node}-{wall_ms():x}"))
        if not state.queues:
            events.append(TeamsSet((Queue(FIRST_TEAM),), {FIRST_TEAM: TeamRecord(1)}))
        if self.settings.accept_shared_user and not state.shared_user_accepted:
            events.append(SharedUserAccepted())
        if events:
            await manager.record(events)
        state.isolation = Isolation.NONE if not _is_root() else Isolation.USERS
        intents = admin_of_home(state, self.settings.home, wall_ms())
        for intent in intents:
            await manager.do(intent, MANAGER)
        return bool(intents)

    async def _keep_agent(self, manager: Manager, authority: Authority, local: LocalAgent) -> None:
        certificate = local.prepare(authority)
        print_of = fingerprint_of(certificate.encode())
        known = manager.state.nodes.get(self.node)
        if known is None or known.fingerprint != print_of:
            await manager.do(AdmitNode(self.node, print_of, vouched=True), MANAGER)
        running = local.keep_running(lambda: manager.hears(self.node), self._agent_trouble(manager, local))
        await asyncio.gather(running, self._tell_of_gpus(manager))

    def _agent_trouble(self, manager: Manager, local: LocalAgent) -> Callable[[str], None]:
        """The same trouble is told once, however often it keeps the agent from starting."""

        def tell(why: str) -> None:
            if why and why != manager.stats.agent_trouble:
                self._tell("agent", f"does not run on this machine: {why}")
                self._tell("", f"it is tried again all the while; its log is {local.log}")
            manager.stats.agent_trouble = why

        return tell

    async def _tell_of_gpus(self, manager: Manager) -> None:
        """Once, when this machine's agent is there: fake GPUs are not to be taken for real ones."""
        while not manager.hears(self.node):
            await asyncio.sleep(HEARD_MS / 1000)
        facts = manager.state.nodes[self.node].facts
        models = Counter(device.model for device in facts.devices)
        counted = ", ".join(f"{count} x {model}" for model, count in sorted(models.items()))
        fake = " (FAKE: jobs see them, but they compute nothing)" * facts.fake
        self._tell("gpus", f"{counted or 'none on this machine: only jobs without GPUs run here'}{fake}")

    async def _end_agent(self, local: LocalAgent) -> None:
        """Only where we were told to end: an agent outlives a manager that fails or is killed."""
        if await local.stop():
            self._tell("agent", "ended")

    def _tell_what_runs_on(self, manager: Manager) -> None:
        count = sum(any(task.phase in RUNS for task in job.tasks) for job in manager.state.jobs.values())
        if count:
            jobs = "1 job runs on; it ends" if count == 1 else f"{count} jobs run on; they end"
            self._tell("jobs", f"{jobs} within {self.settings.lease_ms / 1000:g} s unless gpuyard comes back")

    def _announce(self, url: str, pool: str) -> None:
        """Where this machine's command line, and its platforms, find us."""
        authority = str(self.settings.authority_folder / "ca.pem") if self.settings.tls else ""
        found = {"url": url, "ca": authority, "version": __version__, "node": self.node, "pool": pool}
        write_private(self.settings.home / SERVER_FILE, msgspec.json.encode(found))

    def _withdraw(self) -> None:
        with suppress(OSError):
            (self.settings.home / SERVER_FILE).unlink()

    async def _until_the_end(self, manager: Manager, beside: list[asyncio.Task[None]]) -> None:
        assert manager.failed is not None
        ended: asyncio.Future[None] = asyncio.ensure_future(self._until_told())
        watched: set[asyncio.Future[None]] = {ended, manager.failed, *beside}
        try:
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (ended, *beside):
                task.cancel()
            await asyncio.gather(ended, *beside, return_exceptions=True)
        for one in (manager.failed, *beside):
            error = one.exception() if one.done() and not one.cancelled() else None
            if error is not None:
                raise error

    async def _until_told(self) -> None:
        await self._ended.wait()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._ended.set)


async def _work(face: Face) -> None:
    """What a face does beside its requests; the manager goes on when it has nothing more to do."""
    await face.work()
    await asyncio.Event().wait()


def _is_root() -> bool:
    return os.geteuid() == 0
