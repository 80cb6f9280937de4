"""A manager with REST on a real socket, people of every role, and a machine that is made up but answers as one does.

The manager, its store and its HTTP server are the real ones and run in a thread of their own; the machine starts what
it is told at once and keeps short logs. `Yard.call` runs something in the manager's thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import uvicorn

from gpuyard.files.place import Place
from gpuyard.files.queues import QueueTree
from gpuyard.files.teams import read_teams
from gpuyard.files.tree import parse
from gpuyard.loop.containment import Trouble
from gpuyard.model.nodes import Device
from gpuyard.platform.clock import monotonic_ms, wall_ms
from gpuyard.platform.listening import listening
from gpuyard.service.app import App, build_app
from gpuyard.service.call import Settings
from gpuyard.service.certificates import Authority
from gpuyard.service.clock import Clock
from gpuyard.service.faces import Ground
from gpuyard.service.manager import Manager
from gpuyard.service.protocol import BoundedHttp
from gpuyard.service.settings import Address
from gpuyard.service.settings import Settings as DaemonSettings
from gpuyard.service.signin import new_token
from gpuyard.vdk.control.face import ControlFace
from gpuyard.vdk.serving.face import PoolFace
from gpuyard.wire.access import Caller, Grant, Role, Scope
from gpuyard.wire.agents import (
    AttemptId,
    AttemptReport,
    Desired,
    Ending,
    Hello,
    LogPiece,
    MachineFacts,
    Phase,
    ReadLog,
    Report,
)
from gpuyard.worlds.standalone.events import ClusterFounded, SharedUserAccepted
from gpuyard.worlds.standalone.intents import AdmitNode, Intent, SetTeams, SetUser
from gpuyard.worlds.standalone.store.opening import open_store

Result = TypeVar("Result")

TEAMS = """
queues:
  research: {children: {vision: {quota: 4, limit: 8, idle_limit: 30m}, speech: {quota: 2}}}
  product: {quota: 2}
"""

PEOPLE: dict[str, tuple[Grant, ...]] = {
    "root": (Grant(Role.ADMIN),),
    "olga": (Grant(Role.OPERATOR),),
    "lea": (Grant(Role.LEAD, "vision"),),
    "max": (Grant(Role.MEMBER, "vision"),),
    "mia": (Grant(Role.MEMBER, "vision"),),
    "vic": (Grant(Role.VIEWER, "vision"),),
    "sam": (Grant(Role.MEMBER, "speech"),),
    "sue": (Grant(Role.LEAD, "speech"),),
    "ida": (Grant(Role.VIEWER, "research"),),
    "new": (),
}
"""vision is the team most tests are about; sam and sue are of another one."""

SYSTEM = Caller("root", (Grant(Role.ADMIN),))


class MovedClock:
    """The wall clock, and how far a test has moved it ahead."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return wall_ms() + self.ahead_ms


class StandingClock(MovedClock):
    """A wall clock that goes on only as a test moves it: no minute ends, and no hour, while a slow machine works."""

    HOUR_MS = 3_600_000
    IN_THE_HOUR_MS = 15 * 60_000 + 20_000

    def __init__(self) -> None:
        super().__init__()
        self._began_ms = wall_ms() // self.HOUR_MS * self.HOUR_MS + self.IN_THE_HOUR_MS

    def wall_ms(self) -> int:
        return self._began_ms + self.ahead_ms


class Machine:
    """Starts what it is told, stops what it is told, says so at once."""

    def __init__(self, manager: Manager, name: str, gpus: int) -> None:
        self.manager = manager
        self.name = name
        self.facts = MachineFacts(
            devices=tuple(Device("A100", 80_000, f"GPU-{name}-{index}") for index in range(gpus)),
            cpu_milli=64_000,
            memory_bytes=1 << 40,
            labels={"zone": "a"},
            fake=True,
        )
        self.running: dict[AttemptId, AttemptReport] = {}
        self.logs: dict[AttemptId, bytes] = {}
        self.over: set[AttemptId] = set()
        self.silent = False
        """It does not answer who asks for a log."""
        self._clock = 1

    def join(self) -> None:
        self.manager.agent_connected(Hello(self.name, "i-1", "b-1", "0", self.facts), self.told)
        self.report()

    def told(self, message: Desired | ReadLog) -> None:
        """Called in the manager's thread; the answer comes a moment later, as over a network."""
        soon = asyncio.get_running_loop().call_soon
        if isinstance(message, ReadLog):
            if not self.silent:
                soon(self._read, message)
        else:
            soon(self._follow, message)

    def _follow(self, desired: Desired) -> None:
        now = self.manager.now_ms()
        before = dict(self.running)
        for done in desired.recorded:
            self.running.pop(done, None)
        for one in desired.assignments:
            known = self.running.get(one.id)
            if one.stop is not None and (known is None or known.phase is not Phase.ENDED):
                ended = AttemptReport(one.id, Phase.ENDED, 1, now, now, Ending.STOPPED, 143, one.stop.why)
                self.running[one.id] = ended
                self.over.add(one.id)
            elif known is None:
                self.running[one.id] = AttemptReport(one.id, Phase.RUNNING, 1, now)
                self.logs[one.id] = f"{' '.join(one.command)}\n".encode()
        if self.running != before:
            self.report()

    def finish(self, id: AttemptId, exit_code: int = 0) -> None:
        now = self.manager.now_ms()
        self.running[id] = AttemptReport(id, Phase.ENDED, 1, now, now, Ending.EXITED, exit_code)
        self.over.add(id)
        self.report()

    def report(self) -> None:
        self._clock += 1
        self.manager.agent_reported(self.name, Report(self._clock, tuple(self.running.values())))

    def _read(self, asked: ReadLog) -> None:
        log = self.logs.get(asked.id)
        if log is None:
            self.manager.log_piece(self.told, LogPiece(asked.request, problem="the log is gone"))
            return
        offset = max(len(log) + asked.offset, 0) if asked.offset < 0 else asked.offset
        data = log[offset : offset + asked.limit]
        piece = LogPiece(asked.request, offset, data, len(log), asked.id in self.over)
        if data or not asked.wait_ms or asked.id in self.over:
            self.manager.log_piece(self.told, piece)
        else:
            asyncio.get_running_loop().call_later(0.02, self._read, asked)


class Yard:
    """Everything, running."""

    def __init__(self, folder: Path, *, gpus: int = 8, store: str = "", clock: MovedClock | None = None) -> None:
        self._folder = folder
        self._gpus = gpus
        self.clock = clock or MovedClock()
        self._store = store or str(folder / "state.db")
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._stop: asyncio.Event
        self._error: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop
        self.manager: Manager
        self.machine: Machine
        self.app: App
        self.pool: PoolFace
        self.control: ControlFace
        self.url = ""
        self.tokens: dict[str, str] = {}
        self._clients: dict[str, httpx2.Client] = {}
        self.poisoned = False
        """Whether a test lets the manager survive exceptions on purpose; elsewhere each of them is a bug."""
        self.troubles: list[Trouble] = []

    def __enter__(self) -> Yard:
        self._thread.start()
        self._ready.wait(30)
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.close()
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(90)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        assert self.poisoned or not self.troubles, "\n".join(one.fault.trace for one in self.troubles)

    async def _run(self) -> None:
        try:
            await self._live()
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _live(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.manager = Manager(open_store(self._store), clock=Clock(self.clock.wall_ms, monotonic_ms))
        await self.manager.start()
        self.manager.core.loop.containment.reports.listen(self.troubles.append)
        self.authority = Authority.in_folder(self._folder / "ca", "test")
        self.pool = PoolFace(Address("127.0.0.1", 0))
        settings = Settings("1.2.3", authority=self.authority, agents="127.0.0.1:1")
        self.control = ControlFace()
        self.app = build_app(self.manager, settings, [self.pool, self.control])
        for face in (self.pool, self.control):
            await face.open(self._ground())
        listener = listening("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            self.app,
            http=BoundedHttp,
            log_level="warning",
            lifespan="off",
            server_header=False,
            ws="none",
            proxy_headers=False,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        await self._found()
        self._ready.set()
        await self._stop.wait()
        server.should_exit = server.force_exit = True
        await self.manager.stop()
        await serving
        await self.pool.close()
        await self.control.close()

    def _ground(self) -> Ground:
        """What the daemon would give to a face."""
        anywhere = Address("127.0.0.1", 0)
        settings = DaemonSettings(self._folder, anywhere, anywhere, database=self._store)
        pair = self.authority.server(("127.0.0.1",))
        return Ground(self.app.service, settings, self.authority, pair, lambda what, text: None)

    async def _found(self) -> None:
        await self.manager.record([ClusterFounded("test"), SharedUserAccepted()])
        tree: QueueTree = read_teams(Place("teams.yaml", parse(TEAMS, "teams.yaml"))).tree
        await self.manager.do(SetTeams(tree.queues, summed=tuple(tree.summed)), SYSTEM)
        for name, grants in PEOPLE.items():
            await self.manager.do(SetUser(name, grants), SYSTEM)
            self.tokens[name] = await self._token(name, Scope.FULL)
        if self._gpus:
            await self.manager.do(AdmitNode("m1", ""), SYSTEM)
            self.machine = Machine(self.manager, "m1", self._gpus)
            self.machine.join()

    async def _token(self, user: str, scope: Scope, expires_in_ms: int = 3_600_000) -> str:
        made = new_token(user, "test", scope, self.manager.now_ms() + expires_in_ms)
        await self.manager.do(made.intent, SYSTEM)
        return made.secret

    # ------------------------------------------------------------------------------------------------ from the outside

    def token(self, user: str, scope: Scope = Scope.FULL, expires_in_ms: int = 3_600_000) -> str:
        return self.call(lambda: self._token(user, scope, expires_in_ms))

    def call(self, work: Callable[[], Awaitable[Result]]) -> Result:
        async def run() -> Result:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(30)

    def do(self, intent: Intent) -> Any:
        return self.call(lambda: self.manager.do(intent, SYSTEM))

    @contextmanager
    def client(self, user: str = "", *, token: str = "", **headers: str) -> Iterator[httpx2.Client]:
        credential = token or self.tokens.get(user, "")
        said = {"Authorization": f"Bearer {credential}"} if credential else {}
        with self._client({**said, **headers}) as client:
            yield client

    def _client(self, headers: dict[str, str]) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False, verify=False)

    def ask(self, user: str, method: str, path: str, **options: Any) -> httpx2.Response:
        """A request of that person, over a connection that is kept."""
        if user not in self._clients:
            credential = {"Authorization": f"Bearer {self.tokens[user]}"} if user else {}
            self._clients[user] = self._client(credential)
        return self._clients[user].request(method, path, **options)

    def submit(self, user: str, **fields: Any) -> str:
        """The id of a new job."""
        body = {"command": ["true"], **fields}
        response = self.ask(user, "POST", "/v1/jobs", json=body)
        assert response.status_code == 201, response.text
        return str(response.json()["jobs"][0]["id"])

    def wait_for(self, job: str, *states: str) -> dict[str, Any]:
        """The job, once it is in one of these states."""

        async def wait() -> None:
            watching = self.manager.subscribe(None)
            entries = aiter(watching)
            while self.manager.state.jobs[job].state not in states:
                await asyncio.wait_for(anext(entries), 10)

        self.call(wait)
        found: dict[str, Any] = self.ask("root", "GET", f"/v1/jobs/{job}").json()
        return found
