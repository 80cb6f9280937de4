"""The agent of a machine, running: one process that listens, acts and tells, until it is ended.

Place in the flow: manager ◀─stream─▶ **daemon** ─▶ core ─▶ process_runtime ─▶ supervisors. Only what waits is in here.
Invariant: there is one agent in a home. Its end, however sudden, ends no task: the next one finds them all again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc.aio
import msgspec

import gpuyard
from gpuyard.agent import cgroups, logs, process_view, stream
from gpuyard.agent.attempts import Holding
from gpuyard.agent.core import Core, Identity
from gpuyard.agent.gpus import Yard
from gpuyard.agent.home import Home, incarnation, prepare
from gpuyard.agent.membership import joined
from gpuyard.agent.meter import measure
from gpuyard.agent.process_runtime import Measured, ProcessRuntime, prune
from gpuyard.agent.settings import DEFAULT_FAKE_GPUS, Settings
from gpuyard.errors import AgentError, GpuyardError, NvmlError
from gpuyard.nvml.gpus import devices
from gpuyard.nvml.library import ListeningNvml, NoNvml
from gpuyard.platform.clock import boot_id, boot_ms, wall_text
from gpuyard.platform.files import write_private
from gpuyard.platform.listening import host_name
from gpuyard.platform.locks import hold
from gpuyard.platform.network import LastWay
from gpuyard.wire.agents import (
    AgentMessage,
    AttemptId,
    Desired,
    Isolation,
    LogPiece,
    MachineFacts,
    ManagerMessage,
    ParcelPiece,
    ReadLog,
    Refused,
    Welcome,
)

LOOK_MS: Final = 500
"""How often the tasks are looked at without a knock, as when a supervisor was killed."""
MEASURE_S: Final = 2.0
HEALTH_S: Final = 5.0
HOME_S: Final = 1.0
FAKE_TRIES: Final = 5
FAKE_AGAIN_S: Final = 1.0
PRUNE_S: Final = 600.0
SILENCE_PARTS: Final = 3
"""The manager is gone when it was silent for this part of a lease: time is left to reach it again."""
LONGEST_LOG_WAIT_MS: Final = 30_000
LOG_LOOK_S: Final = 0.05
NEWS_MS: Final = 1_000
"""Within which we hear of an attempt that somebody asks about already."""
MAX_LOG_READS: Final = 64
MAX_KNOCKS: Final = 4096
HIDDEN_NAME: Final = "task"
"""What fake GPUs call every process where users must not learn of each other's command lines."""
LOW_DISK_MIB: Final = (64, 512)
FAILED: Final = 2
ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


if TYPE_CHECKING:
    from types import FrameType

    from gpuyard.agent.fakes import FakeGpus


class Daemon:
    """One agent at work."""

    def __init__(self, settings: Settings, home: Home, yard: Yard, fakes: FakeGpus | None) -> None:
        told = joined(home.root)
        self._settings = settings
        self._home = home
        self._yard = yard
        self._fakes = fakes
        self.manager = settings.manager or told.agents
        self.node = told.node or settings.node or host_name()
        if not self.manager:
            raise AgentError("it is not known where the manager is", fix="join it: gpuyard agent --join TOKEN@URL")
        self._way = LastWay(self.manager)
        self._secrets = stream.credentials(home.root)
        self._cgroups = cgroups.find(incarnation(home), settings.cgroup, own_cpu_milli())
        self._view = process_view.find(home, settings.kept_apart())
        self.runtime = ProcessRuntime(home, yard, settings.kept_apart(), self._cgroups, self._view.view)
        identity = Identity(self.node, incarnation(home), boot_id(), gpuyard.__version__)
        self.core = Core(identity, self.runtime, self._facts())
        self._news = asyncio.Event()
        self._used: dict[AttemptId, list[int]] = {}
        self._told: set[AttemptId] = set()
        """Tasks the fake GPUs know of."""
        self._beside: set[asyncio.Task[None]] = set()

    # --------------------------------------------------------------------------------------------------- its life

    async def run(self, ended: asyncio.Event) -> None:
        """Until `ended`, or until the manager wants us no more."""
        loop = asyncio.get_running_loop()
        knocks = os.open(self._home.wake, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        loop.add_reader(knocks, self._knocked, knocks)
        self.runtime.load()
        say(f"agent of {self.node}, {len(self._yard.gpus)} GPUs{' (fake)' * bool(self._fakes)}; {self._found()}")
        for part in (self._measure, self._watch_health, self._prune):
            self._start(self._again_and_again(part))
        keeping = asyncio.ensure_future(self._keep_session())
        watching = asyncio.ensure_future(self._watch_home())
        ending = asyncio.ensure_future(ended.wait())
        await asyncio.wait((keeping, watching, ending), return_when=asyncio.FIRST_COMPLETED)
        loop.remove_reader(knocks)
        os.close(knocks)
        for task in (keeping, watching, ending, *self._beside):
            task.cancel()
        ends = await asyncio.gather(keeping, watching, ending, *self._beside, return_exceptions=True)
        self.runtime.close()
        say(await self._farewell())
        for why in ends[:2]:
            if isinstance(why, Exception):
                raise why

    async def _farewell(self) -> str:
        """What is left behind, which is nothing of ours where nothing runs."""
        left = 0
        if self._home.lock.exists():  # Else the home is gone, and with it the lease of whatever ran.
            self.runtime.refresh()
            left = self.runtime.unended()
        if left:
            return f"down; {left} tasks go on under their lease"
        if self._fakes is not None:
            try:
                await asyncio.to_thread(self._fakes.down)
            except GpuyardError as error:
                return f"down; the fake GPUs are not: {error}"
        return "down; nothing runs"

    def _found(self) -> str:
        return f"{len(self.runtime.holdings())} tasks run"

    def _knocked(self, knocks: int) -> None:
        with suppress(BlockingIOError):
            os.read(knocks, MAX_KNOCKS)
        self._news.set()

    def _start(self, part: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(part)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _again_and_again(self, part: Callable[[], Coroutine[Any, Any, float]]) -> None:
        """Something that goes wrong beside the tasks is told, and tried again; it never ends the agent."""
        while True:
            try:
                pause_s = await part()
            except (GpuyardError, OSError) as error:
                say(f"{part.__name__.strip('_')}: {error}")
                pause_s = HEALTH_S
            await asyncio.sleep(pause_s)

    # --------------------------------------------------------------------------------------------------- sessions

    async def _keep_session(self) -> None:
        pause = stream.Pause()
        while True:
            session = Session(self, pause)
            try:
                await stream.converse(self.manager, self._secrets, session)
                why = "the manager closed it"
            except (grpc.aio.AioRpcError, TimeoutError, msgspec.MsgspecError, OSError) as error:
                why = stream.why_it_ended(error)
            finally:
                self.core.disconnected()
                self.runtime.parcels.disconnected()
                session.close()
            say(f"no session with {self.manager}: {why}")
            await asyncio.sleep(pause.take_ms() / 1000)

    async def news(self) -> None:
        """Until something has happened, or it is time to look."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), min(LOOK_MS, self.core.report_every_ms) / 1000)
        self._news.clear()
        self.runtime.refresh()
        self._tell_fakes()

    def wake(self) -> None:
        self._news.set()

    # ------------------------------------------------------------------------------------------------- the machine

    def _facts(self) -> MachineFacts:
        way = self._way.find()
        return MachineFacts(
            devices=devices(self._yard.gpus),
            cpu_milli=own_cpu_milli(),
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            labels=self._settings.labels,
            fake=self._fakes is not None,
            driver=self._yard.nvml.driver,
            isolation=self._settings.kept_apart(),
            address=self._settings.address or way.own,
            manager_address=way.theirs,
            trouble=self._trouble(),
            cores_kept=self._cgroups.cores,
            memory_kept=self._cgroups.memory,
            limits_note=self._cgroups.note,
            process_view=self._view.view,
            process_note=self._view.note,
        )

    def _trouble(self) -> tuple[str, ...]:
        disk = os.statvfs(self._home.root)
        low = low_disk(disk.f_bavail * disk.f_frsize)
        found = (low, self.runtime.trouble)
        return tuple(trouble for trouble in found if trouble)

    async def _watch_home(self) -> None:
        """Nothing can be kept or told without it, and its tasks have ended: a lease that is gone is over."""
        while self._home.lock.exists():
            await asyncio.sleep(HOME_S)
        raise AgentError(f"its home {self._home.root} is gone, so this agent has ended", fix="start it again, or join")

    async def _watch_health(self) -> float:
        self._yard.gpus = await asyncio.to_thread(self._yard.nvml.gpus)
        self.core.changed(await asyncio.to_thread(self._facts))
        self._news.set()
        return HEALTH_S

    async def _prune(self) -> float:
        await asyncio.to_thread(prune, self._home)
        return PRUNE_S

    async def _measure(self) -> float:
        """How busy the GPUs of each task are, and when it last saved its work: both may take a while."""
        holdings = self.runtime.holdings()
        found = await asyncio.to_thread(measure, holdings, self._yard.nvml)
        for holding, sample in zip(holdings, found, strict=True):
            samples = self._used.setdefault(holding.id, [])
            if sample.gpu_percent is not None:
                samples.append(sample.gpu_percent)
            mean = sum(samples) // len(samples) if samples else None
            self.runtime.measured(holding.id, Measured(mean, sample.saved_at_ms))
        self._used = {holding.id: self._used[holding.id] for holding in holdings}
        return MEASURE_S

    def reported(self) -> None:
        """From here on the use is counted anew."""
        for samples in self._used.values():
            del samples[:-1]

    def _tell_fakes(self) -> None:
        if self._fakes is None:
            return
        holdings = {holding.id: holding for holding in self.runtime.holdings()}
        self._told &= holdings.keys()
        for id in holdings.keys() - self._told:
            self._told.add(id)
            if holdings[id].devices:
                self._start(self._tell_fake(self._fakes, holdings[id]))

    async def _tell_fake(self, fakes: FakeGpus, holding: Holding) -> None:
        """Again for a while: the model sees only after a moment that a process has ended and let go of its GPU."""
        for _ in range(FAKE_TRIES):
            if await asyncio.to_thread(fakes.began, holding) or holding.id not in self._told:
                return
            await asyncio.sleep(FAKE_AGAIN_S)

    # -------------------------------------------------------------------------------------------------------- logs

    async def log_piece(self, asked: ReadLog) -> LogPiece:
        """What was asked for, as soon as there is something, or the wait is over."""
        asked_at_ms = boot_ms()
        until_ms = asked_at_ms + min(asked.wait_ms, LONGEST_LOG_WAIT_MS)
        while True:
            folder = self.runtime.log_folder(asked.id)
            if folder is None:
                # Its name may be known to others before it is given to us.
                patience_ms = until_ms if self.core.expects(asked.id) else asked_at_ms + NEWS_MS
                if boot_ms() < patience_ms:
                    await asyncio.sleep(LOG_LOOK_S)
                    continue
                return self._no_log(asked)
            # Asked before reading: what was said until the end is then read.
            over = self.runtime.has_ended(asked.id)
            offset = logs.offset_since(folder, asked.since_ms) if asked.since_ms else asked.offset
            part = logs.read_part(folder, offset, asked.limit)
            ended = over and part.offset + len(part.data) >= part.size
            if part.data or ended or boot_ms() >= until_ms:
                return LogPiece(asked.request, part.offset, part.data, part.size, ended)
            await asyncio.sleep(LOG_LOOK_S)

    def _no_log(self, asked: ReadLog) -> LogPiece:
        if self.core.expects(asked.id):
            return LogPiece(asked.request)
        return LogPiece(asked.request, problem=f"no log of {asked.id} is kept on {self.node}")


class Session:
    """One life of the stream: what goes out and what comes in."""

    def __init__(self, daemon: Daemon, pause: stream.Pause) -> None:
        self._daemon = daemon
        self._pause = pause
        self._pieces: asyncio.Queue[LogPiece] = asyncio.Queue()
        self._reading: set[asyncio.Task[None]] = set()

    async def outgoing(self) -> AsyncIterator[AgentMessage]:
        yield self._daemon.core.connected(boot_ms())
        while True:
            report = self._daemon.core.report(boot_ms())
            if report is not None:
                self._daemon.reported()
                yield report
            while not self._pieces.empty():
                yield self._pieces.get_nowait()
            for question in self._daemon.runtime.parcels.questions():
                yield question
            await self._daemon.news()

    def heard(self, message: ManagerMessage) -> None:
        match message:
            case Welcome():
                say(f"session with {message.manager} {message.version}, lease {message.lease_ms / 1000:g} s")
                self._pause.reset()
                self._daemon.core.welcomed(message)
            case Desired():
                self._daemon.core.wants(message, boot_ms())
            case ReadLog():
                self._read(message)
                return
            case ParcelPiece():
                self._daemon.runtime.parcels.arrived(message)
            case Refused():
                self._refused(message)
        self._daemon.wake()

    def _refused(self, refused: Refused) -> None:
        if not refused.again:
            raise AgentError(f"the manager refuses this machine: {refused.why}")
        raise ConnectionRefusedError(f"the manager refuses it: {refused.why}")

    def _read(self, asked: ReadLog) -> None:
        if len(self._reading) >= MAX_LOG_READS:
            self._answer(LogPiece(asked.request, problem=f"more than {MAX_LOG_READS} logs are being read here"))
            return
        task = asyncio.ensure_future(self._read_and_answer(asked))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _read_and_answer(self, asked: ReadLog) -> None:
        try:
            self._answer(await self._daemon.log_piece(asked))
        except OSError as error:
            self._answer(LogPiece(asked.request, problem=f"the log cannot be read: {error.strerror}"))

    def _answer(self, piece: LogPiece) -> None:
        self._pieces.put_nowait(piece)
        self._daemon.wake()

    def silence_s(self) -> float:
        return self._daemon.core.lease_ms / 1000 / SILENCE_PARTS

    def close(self) -> None:
        for task in self._reading:
            task.cancel()


# ------------------------------------------------------------------------------------------------------------ starting


def low_disk(free_bytes: int) -> str:
    """In rough steps: every change of it goes to the manager's log, which may lie on the same disk."""
    below_mib = next((mib for mib in LOW_DISK_MIB if free_bytes < mib << 20), 0)
    return f"less than {below_mib} MiB are free where the agent keeps its state and logs" if below_mib else ""


def own_cpu_milli() -> int:
    return 1000 * len(os.sched_getaffinity(0))


def say(text: str) -> None:
    """One entry of the log."""
    print(f"{wall_text()} {text}", flush=True)


def find_gpus(settings: Settings, home: Home) -> tuple[Yard, FakeGpus | None]:
    """Real ones, else fake ones; what was asked for goes first."""
    if not settings.fake_gpus:
        try:
            nvml = ListeningNvml()
        except NvmlError as error:
            say(str(error).partition("\n")[0])
        else:
            if nvml.gpus():
                return Yard(nvml, {}), None
    count = DEFAULT_FAKE_GPUS if settings.fake_gpus is None else settings.fake_gpus
    if count == 0:
        return Yard(NoNvml(), {}), None
    from gpuyard.agent.fakes import FakeGpus, Kind  # Only now: a machine with real ones does without.

    task_name = HIDDEN_NAME if settings.kept_apart() is Isolation.USERS else ""
    fakes = FakeGpus(home.fake, Kind(count, settings.fake_product), task_name)
    variables = fakes.up(say)
    return Yard(ListeningNvml(), variables), fakes


def run(settings: Settings) -> None:
    """Be the agent of this machine, until SIGTERM. AgentError says why it cannot be, or may no longer."""
    if settings.isolation is Isolation.USERS and os.geteuid() != 0:
        raise AgentError("only root can run each job as a user of its own", fix="start the agent as root")
    os.umask(0o022)  # What is not for everybody says so itself.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # Why a session ended we say ourselves.
    home = prepare(settings.home, settings.kept_apart())
    lock = hold(home.lock)
    if lock is None:
        raise AgentError(f"an agent runs in {home.root} already", fix="end it first, or choose another --home")
    write_private(home.pid, f"{os.getpid()}\n".encode(), keep=False)
    try:
        for number in ENDING_SIGNALS:
            signal.signal(number, end_at_once)
        yard, fakes = find_gpus(settings, home)
        asyncio.run(live(lambda: Daemon(settings, home, yard, fakes)))
    finally:
        home.pid.unlink(missing_ok=True)
        os.close(lock)


async def live(made: Callable[[], Daemon]) -> None:
    """A signal from here on is heard by the daemon, even if it is not made yet."""
    ended = asyncio.Event()
    for number in ENDING_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await made().run(ended)


def end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Finding GPUs may take long, as where fake ones are built: a signal ends us in the midst of it."""
    raise SystemExit(0)


def main(settings: Settings) -> int:
    try:
        run(settings)
    except GpuyardError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    return 0
