"""A manager with honest nodes whose jobs run, and one joined node whose agent says whatever a test makes it say.

The manager, its log, its planner and the door of agents are the production ones; the hostile agent speaks bytes to the
door, as over its certified connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from gpuyard.model.jobs import Job, LabelRule, Request, Task, Where
from gpuyard.model.quantities import GPU, MILLI
from gpuyard.model.queues import Queue, QueueShare
from gpuyard.model.work import Work
from gpuyard.platform.clock import monotonic_ms
from gpuyard.service.agents import Door
from gpuyard.service.certificates import Authority, fingerprint_of
from gpuyard.service.clock import Clock
from gpuyard.service.core import Core
from gpuyard.service.manager import Manager
from gpuyard.wire.access import Caller, Grant, Role
from gpuyard.wire.agents import (
    AttemptId,
    AttemptReport,
    Hello,
    MachineFacts,
    ManagerMessage,
    Phase,
    Refused,
    Report,
    encode,
)
from gpuyard.worlds.standalone.events import DECODER, ClusterFounded, SharedUserAccepted
from gpuyard.worlds.standalone.fold import fold
from gpuyard.worlds.standalone.intents import AdmitNode, SetTeams, Submission, Submit
from gpuyard.worlds.standalone.journal import load
from gpuyard.worlds.standalone.lifecycle import OVER, PLACED, JobState
from gpuyard.worlds.standalone.records import JobRecord, NodeRecord
from gpuyard.worlds.standalone.store.opening import open_store
from gpuyard.worlds.standalone.store.port import Entry
from tests.security.refused_facts import GOOD
from tests.service.yard import Machine

ROOT = Caller("root", (Grant(Role.ADMIN),))
LIAR = "liar"
HONEST = ("m1", "m2")
SOON_S = 60.0


class Line:
    """A connection with a certificate, as gRPC shows it."""

    def __init__(self, pem: bytes) -> None:
        self._pem = pem

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_common_name": [LIAR.encode()], "x509_pem_cert": [self._pem]}


class Conversation:
    """One session of the hostile agent with the door."""

    def __init__(self, door: Door, pem: bytes) -> None:
        self._says: asyncio.Queue[bytes] = asyncio.Queue()
        self.heard: list[ManagerMessage] = []
        self.over = False
        self._task = asyncio.create_task(self._live(door, Line(pem)))

    async def say(self, data: bytes) -> None:
        """Say it, and wait until it is taken in or the session is over."""
        await self._says.put(data)
        while not self.over and not self._says.empty():
            await asyncio.sleep(0)
        for _ in range(4):
            await asyncio.sleep(0)

    async def _messages(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._says.get()

    async def _live(self, door: Door, line: Line) -> None:
        try:
            async for message in door._session(self._messages(), line):
                self.heard.append(message)
        finally:
            self.over = True

    @property
    def refusal(self) -> Refused | None:
        return next((message for message in self.heard if isinstance(message, Refused)), None)

    async def end(self) -> None:
        """An exception out of the session is a failure of the test."""
        if not self.over:
            self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


class Besieged:
    """`start` first, `stop` last; then what is in the log can be read again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.manager = Manager(open_store(folder / "state.db"))
        self.door = Door(self.manager)
        self.machines: dict[str, Machine] = {}
        self.honest_jobs: tuple[str, ...] = ()
        self._pem = b""
        self._entries: list[Entry] = []

    async def start(self) -> None:
        manager = self.manager
        await manager.start()
        manager.core.journal.listeners.append(lambda _, entry: self._entries.append(entry))
        await manager.record([ClusterFounded("besieged"), SharedUserAccepted()])
        share = (QueueShare(GPU, 100 * MILLI),)
        await manager.do(SetTeams((Queue("vision", shares=share), Queue("speech", shares=share))), ROOT)
        for name in HONEST:
            await manager.do(AdmitNode(name, f"certificate of {name}"), ROOT)
            self.machines[name] = Machine(manager, name, 8)
            self.machines[name].join()
        self._pem = Authority.in_folder(self._folder / "ca", "besieged").machine_with_key(LIAR).certificate
        await manager.do(AdmitNode(LIAR, fingerprint_of(self._pem)), ROOT)
        self.honest_jobs = tuple([await self.run(node) for node in HONEST for _ in range(2)])

    async def run(self, node: str) -> str:
        """Submit a job for that node, and wait until it runs."""
        id = await self.submit(node)
        await self.until(lambda: self.manager.state.jobs[id].state is JobState.RUNNING, f"job {id} on {node}")
        return id

    async def submit(self, *nodes: str) -> str:
        where = Where(((LabelRule("hostname", values=nodes),),))
        form = Job("", "vision", (Task("", Request(devices=1, where=where)),), preemptible=False)
        return (await self.manager.do(Submit(Submission("job", "root", form, Work(("train",)))), ROOT)).jobs[0]

    def converse(self) -> Conversation:
        return Conversation(self.door, self._pem)

    def hello(self, facts: MachineFacts | None = None, incarnation: str = "i-1") -> bytes:
        return encode(Hello(LIAR, incarnation, "b", "0", facts or self.machines["m1"].facts))

    async def greet(self) -> Conversation:
        """A session with a hello that is in range."""
        conversation = self.converse()
        await conversation.say(self.hello())
        return conversation

    # --------------------------------------------------------------------------------------------------------- judging

    async def until(self, holds: Any, what: str) -> None:
        until_ms = monotonic_ms() + SOON_S * 1000
        while not holds():
            self.lives()
            assert monotonic_ms() < until_ms, f"{what} does not happen"
            await asyncio.sleep(0.002)

    def lives(self) -> None:
        failed = self.manager.failed
        if failed is not None and failed.done():
            raise AssertionError("the manager has ended") from failed.exception()
        assert self.manager.ready

    def honest_records(self) -> tuple[list[NodeRecord], list[JobRecord]]:
        """What no other node may change: of the honest nodes, and of what runs there."""
        state = self.manager.state
        return [state.nodes[name] for name in HONEST], [state.jobs[id] for id in self.honest_jobs]

    def attempts_on(self, *nodes: str) -> list[AttemptId]:
        return [
            AttemptId(job.id, index, task.attempt)
            for job in self.manager.state.jobs.values()
            if job.state not in OVER
            for index, task in enumerate(job.tasks)
            if task.phase in PLACED and task.place is not None and task.place.node in nodes
        ]

    async def goes_on(self) -> None:
        """A fresh job starts on an honest node, whatever else there is."""
        id = await self.submit(*HONEST)
        await self.until(lambda: self.manager.state.jobs[id].state is JobState.RUNNING, f"the start of job {id}")
        task = self.manager.state.jobs[id].tasks[0]
        assert task.place is not None
        self.machines[task.place.node].finish(AttemptId(id, 0, task.attempt))
        await self.until(lambda: self.manager.state.jobs[id].state is JobState.SUCCEEDED, f"the end of job {id}")

    async def stop(self) -> None:
        await self.manager.stop()

    def reads_again(self) -> None:
        """The log that was written gives the same state, and can be planned on."""
        store = open_store(self._folder / "state.db")
        store.open()
        try:
            journal = load(store)
            # What was decided as the manager stopped may not have been written any more.
            for entry in self._entries:
                if entry.seq > journal.state.seq:
                    fold(journal.state, DECODER.decode(entry.body), entry.seq, entry.at_ms)
            read, had = msgspec.structs.asdict(journal.state), msgspec.structs.asdict(self.manager.state)
            different = [f"{name}: {read[name]} instead of {had[name]}" for name in had if read[name] != had[name]]
            assert not different, f"the log gives another state: {different}"
            core = Core(journal, Clock(lambda: self.manager.state.at_ms, lambda: 0))
            core.loop.follow()
            core.loop.carry_out(core.loop.plan())
        finally:
            store.close()


# ------------------------------------------------------------------------------------------------------------- courses

Course = Callable[[Besieged], Awaitable[None]]


def live_through(course: Course, folder: Path) -> None:
    """Live through a course of events; then the log is read again."""

    async def live() -> None:
        cluster = Besieged(folder)
        await cluster.start()
        before = cluster.honest_records()
        try:
            await course(cluster)
            cluster.lives()
            assert cluster.honest_records() == before
            await cluster.goes_on()
        finally:
            await cluster.stop()
        cluster.reads_again()

    asyncio.run(live())


def node(cluster: Besieged) -> NodeRecord:
    return cluster.manager.state.nodes[LIAR]


async def at_work(cluster: Besieged) -> tuple[Conversation, AttemptReport]:
    """The node in good order, with a task of its own that runs."""
    conversation = cluster.converse()
    await conversation.say(cluster.hello(GOOD))
    await conversation.say(encode(Report(1)))
    id = await cluster.submit(LIAR)
    await cluster.until(lambda: cluster.manager.state.jobs[id].tasks[0].attempt, f"the start of job {id}")
    running = AttemptReport(AttemptId(id, 0, 1), Phase.RUNNING, started_at_ms=1)
    await conversation.say(encode(Report(2, (running,))))
    assert cluster.manager.state.jobs[id].state is JobState.RUNNING
    return conversation, running
