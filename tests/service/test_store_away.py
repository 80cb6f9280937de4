"""A database that is full, gone or somebody else's under a running manager: what goes on, and what does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from gpuyard.errors import ServiceError, StoreConflictError, StoreGoneError
from gpuyard.model.jobs import Job, Request, Task
from gpuyard.model.queues import Queue
from gpuyard.model.work import Work
from gpuyard.platform.clock import monotonic_ms
from gpuyard.service import manager as module
from gpuyard.service.manager import Manager
from gpuyard.wire.access import Caller, Grant, Role
from gpuyard.wire.agents import Desired, Hello, MachineFacts, ReadLog, Report
from gpuyard.worlds.standalone.events import ClusterFounded, SharedUserAccepted
from gpuyard.worlds.standalone.intents import AdmitNode, SetTeams, Submission, Submit
from gpuyard.worlds.standalone.store.memory import Fault, MemoryDisk, MemoryStore, Write
from gpuyard.worlds.standalone.store.opening import open_store
from tests.postgres import running_server

ROOT = Caller("root", (Grant(Role.ADMIN),))
SOON_S = 30.0


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REOPEN_MS", 10)
    monkeypatch.setattr(module, "CONFIRM_MS", 0)


class Cluster:
    """A manager with one machine that only listens."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.fault: Fault | None = None
        self.manager = Manager(MemoryStore(self.disk, self._fault))
        self.told: list[Desired] = []

    def _fault(self, write: Write) -> Fault | None:
        return self.fault

    async def start(self) -> None:
        await self.manager.start()
        await self.manager.record([ClusterFounded("test"), SharedUserAccepted()])
        await self.manager.do(SetTeams((Queue("vision"),)), ROOT)
        await self.manager.do(AdmitNode("a", "certificate"), ROOT)
        self.manager.agent_connected(Hello("a", "i", "b", "0", MachineFacts(cpu_milli=8_000)), self._tell)
        await self.renewed(1)

    def _tell(self, message: Desired | ReadLog) -> None:
        assert isinstance(message, Desired)
        self.told.append(message)

    async def renewed(self, stamp_ms: int) -> None:
        """A report of that stamp comes in, and is answered."""
        self.manager.agent_reported("a", Report(stamp_ms))
        await eventually(lambda: self.told and self.told[-1].echo_ms == stamp_ms)

    async def submit(self, key: str = "") -> str:
        form = Job("", "vision", (Task("", Request(devices=0, cpu_milli=100)),))
        intent = Submit(Submission("job", "ann", form, Work(("true",))), key, key)
        return (await self.manager.do(intent, ROOT)).jobs[0]


async def eventually(condition: Callable[[], object]) -> None:
    until_ms = monotonic_ms() + int(SOON_S * 1000)
    while not condition():
        assert monotonic_ms() < until_ms
        await asyncio.sleep(0.005)


def in_a_cluster(course: Callable[[Cluster], Awaitable[None]]) -> None:
    async def live() -> None:
        cluster = Cluster()
        await cluster.start()
        try:
            await course(cluster)
        finally:
            with suppress(StoreGoneError):
                await asyncio.wait_for(cluster.manager.stop(), SOON_S)

    asyncio.run(live())


def test_on_a_full_disk_what_runs_keeps_its_lease_and_nothing_new_is_begun_until_there_is_room() -> None:
    async def course(cluster: Cluster) -> None:
        before = cluster.told[-1]
        cluster.fault = Fault.FULL
        with pytest.raises(ServiceError, match="not recorded yet: the disk is full"):
            await cluster.submit("key")
        await cluster.renewed(2_000)
        await cluster.renewed(3_000)
        assert cluster.told[-1].assignments == before.assignments == ()
        with pytest.raises(ServiceError, match="nothing can be recorded now: the disk is full"):
            await cluster.submit("another key")
        cluster.fault = None
        await eventually(lambda: cluster.disk.last_seq == cluster.manager.state.seq)
        # Who asks again with the same key learns what became of it.
        id = await cluster.submit("key")
        await eventually(lambda: [one.id.job for one in cluster.told[-1].assignments] == [id])
        assert cluster.manager.state.jobs.keys() == {id}

    in_a_cluster(course)


def test_a_manager_whose_disk_is_full_can_be_stopped() -> None:

    async def course(cluster: Cluster) -> None:
        cluster.fault = Fault.FULL
        with pytest.raises(ServiceError):
            await cluster.submit()

    in_a_cluster(course)


def test_who_has_lost_the_database_to_another_manager_gives_no_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was to be written, so nobody noticed: machines went on under one manager and were lost to the other."""
    monkeypatch.setattr(module, "MAX_REOPEN_MS", 200)

    async def course(cluster: Cluster) -> None:
        before = len(cluster.told)
        other = MemoryStore(cluster.disk)
        cluster.disk.writer = None
        other.open()
        cluster.manager.agent_reported("a", Report(2_000))
        assert cluster.manager.failed is not None
        with pytest.raises(StoreGoneError):
            await asyncio.wait_for(asyncio.shield(cluster.manager.failed), SOON_S)
        assert len(cluster.told) == before
        other.close()

    in_a_cluster(course)


def test_who_finds_the_database_written_by_another_ends() -> None:
    async def course(cluster: Cluster) -> None:
        cluster.disk.last_seq += 1
        cluster.manager.agent_reported("a", Report(2_000))
        assert cluster.manager.failed is not None
        with pytest.raises(StoreConflictError, match="somebody else has written"):
            await asyncio.wait_for(asyncio.shield(cluster.manager.failed), SOON_S)

    in_a_cluster(course)


@pytest.mark.slow
def test_a_server_that_restarts_is_found_again_also_where_nothing_is_to_be_written() -> None:
    """Questions about the past were answered with an error until the next change."""
    with running_server() as server:

        async def live() -> None:
            cluster = Cluster()
            cluster.manager = Manager(open_store(server.url(server.make_database())))
            await cluster.start()
            server.restart()
            await cluster.renewed(2_000)
            assert [entry.kind for entry in await cluster.manager.history(kinds=("teams-set",))] == ["teams-set"]
            await cluster.submit()
            await cluster.manager.stop()

        asyncio.run(live())
