"""The manager in real time: one event loop around the core, a thread that writes, a thread that plans.

Place in the flow: REST and agents ─▶ **manager** ─▶ core ─Batch─▶ store (durable) ─▶ answers, agents, watchers.
The core is touched by the event loop's thread alone; planning and questions run in a thread of their own while the
ledger stands still (`_books`). Invariant: nobody is answered, and no machine told, before the log has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from gpuyard.errors import RefusedError, ServiceError, StoreError, StoreGoneError, StoreReadOnlyError, StoreWaitError
from gpuyard.loop.containment import Trouble
from gpuyard.model.difference import Difference
from gpuyard.model.explanation import Explanation, Forecast, QueueStanding
from gpuyard.model.plan import Plan
from gpuyard.model.reasons import Reason
from gpuyard.model.snapshot import Change, Snapshot
from gpuyard.platform.clock import boot_id, monotonic_ms, wall_ms
from gpuyard.policies.policy import DEFAULT, Policy
from gpuyard.service.artifacts import piece_for
from gpuyard.service.clock import Clock
from gpuyard.service.core import Batch, Core
from gpuyard.service.days import all_sums
from gpuyard.service.issues import Issues
from gpuyard.service.log_requests import LogRequests, Send, SessionEndedError
from gpuyard.service.port import Done, DryRun, ParcelSource
from gpuyard.service.questions import Questions, candidate, copy_of
from gpuyard.service.readiness import Cause, Readiness
from gpuyard.service.sentences import sentence
from gpuyard.service.soundness import Soundness
from gpuyard.service.stats import Stats
from gpuyard.service.upkeep import Upkeep
from gpuyard.service.watching import Watching
from gpuyard.wire.access import Caller, Permission
from gpuyard.wire.agents import (
    DEFAULT_LEASE_MS,
    AttemptId,
    Desired,
    Hello,
    LogPiece,
    ParcelPiece,
    ReadParcel,
    Report,
)
from gpuyard.worlds.standalone.events import ClockJumped, Event, Noted
from gpuyard.worlds.standalone.intents import Intent, RunSchedule, Submission, Submit
from gpuyard.worlds.standalone.journal import is_written, load
from gpuyard.worlds.standalone.records import State
from gpuyard.worlds.standalone.snapshot_draft import SnapshotDraft
from gpuyard.worlds.standalone.store.checks import not_next
from gpuyard.worlds.standalone.store.port import DailySum, Entry, Store
from gpuyard.worlds.standalone.submitting import submitted_before
from gpuyard.worlds.standalone.uids import UidRange

TICK_MS: Final = 1_000
REPLAN_MS: Final = 5_000
"""Where somebody waits a cycle is due after so long even if nothing has changed: limits and delays run out."""
MAX_FOLLOWED_AT_ONCE: Final = 200
"""Changes that the event loop itself takes over into the ledger."""
FAILING_S: Final = 0.25
"""Between cycles while nothing can be planned."""
LEAST_WAIT_MS: Final = 100
"""Between two cycles of which the first has failed."""
LONG_CYCLE_MS: Final = 10
LONGEST_PAUSE_MS: Final = 250
REOPEN_MS: Final = 1_000
MAX_REOPEN_MS: Final = 60_000
"""A database that is away for longer ends the manager: somebody must look at it."""
CONFIRM_MS: Final = 2_000
"""Where nothing is written, the database is asked so often whether it is still ours: less than the margin which another
manager that has taken it over leaves the leases we give."""
KEPT_FOR_WATCHERS: Final = 20_000
"""Entries kept in memory for those who watch; who is further behind reads the log."""
MAX_BEHIND: Final = 10_000
"""A watcher that is so many entries behind is cut off; it may come back with its last one."""
ANSWER_S: Final = 30.0
"""An agent has so long to answer, beyond what it was asked to wait."""

_log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Manager:
    """The running manager. `start` first, `stop` last."""

    def __init__(
        self,
        store: Store,
        *,
        policy: Policy = DEFAULT,
        lease_ms: int = DEFAULT_LEASE_MS,
        clock: Clock | None = None,
        uids: UidRange | None = None,
    ) -> None:
        self.store = store
        self.clock = clock or Clock(wall_ms, monotonic_ms, boot_id())
        self.policy = policy
        self.lease_ms = lease_ms
        self._uids = uids
        self.stats = Stats()
        self.ready = False
        self.parcels: ParcelSource | None = None
        self.failed: asyncio.Future[None] | None = None
        self._writing = ThreadPoolExecutor(1, "gpuyard-store")
        self._thinking = ThreadPoolExecutor(1, "gpuyard-plan")
        self._checking = ThreadPoolExecutor(1, "gpuyard-check")
        self._books = asyncio.Lock()
        self._dirty = asyncio.Event()
        self._due = asyncio.Event()
        self._advanced: asyncio.Future[None] | None = None
        self._recent: deque[Entry] = deque(maxlen=KEPT_FOR_WATCHERS)
        self._senders: dict[str, Send] = {}
        self._log_requests = LogRequests()
        self._tasks: list[asyncio.Task[None]] = []
        self._confirmed_ms = 0
        """When the database was last known to be ours."""
        self._unwritten = ""
        """Why nothing can be written at the moment; empty: it can."""
        self._readiness = Readiness()
        self._standings: tuple[QueueStanding, ...] = ()

    @property
    def state(self) -> State:
        return self.core.state

    @property
    def unready(self) -> str:
        """Why new entries cannot be recorded, in words for everybody; empty: they can."""
        return self._readiness.cause if self.ready else Cause.NOT_RUNNING

    @property
    def now_ms(self) -> Callable[[], int]:
        return self.clock.wall_ms

    @property
    def database(self) -> str:
        return self.store.description

    # ---------------------------------------------------------------------------------------------------- start, stop

    async def start(self) -> None:
        """Open the store, load the state, and begin to plan."""
        loop = asyncio.get_running_loop()
        await self._in(self._writing, self.store.open)
        journal = await self._in(self._writing, lambda: load(self.store))
        self.soundness = Soundness(self.store, journal, lambda write: self._upkeep.keep(write))
        self.soundness.tell()
        journal.listeners.append(self._count)
        self.core = Core(journal, self.clock, self.policy, self.lease_ms, self._uids)
        self._upkeep = Upkeep(self.core, self.store, self._readiness, partial(self._in, self._writing))
        self.core.loop.containment.reports.listen(self._log_trouble)
        self.questions = Questions(self.core.loop, self.state)
        self.failed = loop.create_future()
        self._advanced = loop.create_future()
        self.stats.started_at_ms = self.clock.wall_ms()
        self._tasks = [asyncio.create_task(self._guard(part)) for part in self._parts]
        self.ready = True
        self._changed()

    @property
    def _parts(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        return self._write, self._plan, self._tick, self.soundness.look_at_the_rest

    async def stop(self) -> None:
        """Write what is pending and let go of the store."""
        self.ready = False
        if self._tasks:
            while self.core.journal.pending and not self._unwritten and not (self.failed and self.failed.done()):
                self._dirty.set()
                await asyncio.sleep(0.005)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._wake_waiting()
        await self._in(self._writing, self.store.close)
        for pool in (self._writing, self._thinking, self._checking):
            pool.shutdown()

    async def _guard(self, part: Callable[[], Awaitable[None]]) -> None:
        """What ends a part of the manager ends the manager: half of one is worse than none."""
        try:
            await part()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.ready = False
            if self.failed is not None and not self.failed.done():
                self.failed.set_exception(error)
            self._wake_waiting()

    def _wake_waiting(self) -> None:
        """Whoever waits for the log learns that it goes no further."""
        if self._advanced is not None and not self._advanced.done():
            self._advanced.set_result(None)

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    # ------------------------------------------------------------------------------------------------------- writing

    async def _write(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            batch = self.core.take()
            if batch.entries:
                began = monotonic_ms()
                await self._append(batch)
                self.stats.journal_times.add(monotonic_ms() - began)
            elif batch.messages or self._readiness.is_away:
                await self._confirm()
            self._publish(batch)
            await self._keep_snapshot(batch.snapshot)

    async def _append(self, batch: Batch) -> None:
        """Write, and where the database goes away, find it again and learn whether it was written."""
        entries = list(batch.entries)
        while True:
            asked_ms = monotonic_ms()
            try:
                await self._in(self._writing, lambda: self.store.append(entries))
                break
            except StoreGoneError as gone:
                self._note_gone(gone)
                if is_written(entries, await self._last_seq_again(gone)):
                    break
            except StoreWaitError as refusal:
                await self._wait_out(refusal)
        self._confirmed_ms, self._unwritten = asked_ms, ""
        self._readiness.written()

    async def _last_seq_again(self, gone: StoreGoneError) -> int:
        """Reopen the store; the number of its last entry."""
        until_ms = monotonic_ms() + MAX_REOPEN_MS
        while monotonic_ms() < until_ms:
            await asyncio.sleep(REOPEN_MS / 1000)
            try:
                await self._in(self._writing, self.store.open)
                return await self._in(self._writing, self.store.last_seq)
            except StoreError:
                continue
        raise gone

    def _note_gone(self, gone: StoreGoneError) -> None:
        """Who waits for an entry that may be written for long yet is told so; no lease is given meanwhile."""
        self._readiness.refused(gone)
        if isinstance(gone, StoreReadOnlyError):
            self._unwritten = gone.what
            self._advance()

    async def _wait_out(self, refusal: StoreWaitError) -> None:
        """Nothing is begun or answered while the disk is full, but what runs keeps its lease."""
        if not self._unwritten:
            _log.warning("%s; nothing new is begun until it can be written again", refusal.what)
        self._unwritten = refusal.what
        self._readiness.refused(refusal)
        self._advance()
        for node, message in self.core.hub.renewals():
            self._send(node, message)
        await asyncio.sleep(REOPEN_MS / 1000)

    async def _confirm(self) -> None:
        """A lease is given only by who holds the database: another manager would not know of it."""
        asked_ms = monotonic_ms()
        if asked_ms - self._confirmed_ms < CONFIRM_MS:
            return
        last_seq = await self._last_seq()
        if last_seq != self.core.journal.durable_seq:
            raise not_next(self.core.journal.durable_seq + 1)
        self._confirmed_ms = asked_ms
        self._readiness.answered()

    async def _last_seq(self) -> int:
        while True:
            try:
                return await self._in(self._writing, self.store.last_seq)
            except StoreGoneError as gone:
                self._readiness.refused(gone)
                return await self._last_seq_again(gone)
            except StoreWaitError:
                await asyncio.sleep(REOPEN_MS / 1000)

    async def _keep_snapshot(self, snapshot: SnapshotDraft | None) -> None:
        """Save it; where it cannot be encoded, the log alone has to do."""
        if snapshot is None:
            return
        try:
            stored = await self._in(self._writing, snapshot.stored)
        except Exception as error:
            self.core.contained.failed("snapshot", error)
            return
        await self._upkeep.keep(lambda: self.store.save_snapshot(stored))

    def _publish(self, batch: Batch) -> None:
        self.core.published(batch)
        self._recent.extend(batch.entries)
        self.stats.journal_waiting = len(self.core.journal.pending)
        for node, message in batch.messages.items():
            self._send(node, message)
        if batch.entries:
            self._advance()

    def _advance(self) -> None:
        """Whoever waits for the log looks again."""
        if self._advanced is not None:
            advanced, self._advanced = self._advanced, asyncio.get_running_loop().create_future()
            advanced.set_result(None)

    def _send(self, node: str, message: Desired) -> None:
        send = self._senders.get(node)
        if send is not None:
            self.core.contained.run(f"stream {node}", lambda: send(message), pause=False)

    def _changed(self) -> None:
        """The core was touched: there may be something to write, and something to plan."""
        self._dirty.set()
        if self.core.world.changed:
            self._due.set()

    async def _durable(self, seq: int) -> None:
        while self.core.journal.durable_seq < seq:
            assert self._advanced is not None
            if not self.ready:
                raise ServiceError("the manager is stopping; whether this was recorded is not known", fix="ask again")
            if self._unwritten:
                raise ServiceError(f"this is not recorded yet: {self._unwritten}", fix="ask again")
            await asyncio.shield(self._advanced)

    # ------------------------------------------------------------------------------------------------------ planning

    async def _plan(self) -> None:
        self._due.set()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), self._longest_wait_s())
            self._due.clear()
            async with self._books:
                began = monotonic_ms()
                await self._follow()
                decided = await self._in(self._thinking, self.core.loop.plan)
                await self._follow()
                self.core.loop.carry_out(decided)
                took_ms = monotonic_ms() - began
                self.stats.cycle_done(took_ms)
            self._changed()
            if self.core.loop.containment.waiting:
                # What has changed may stay unread meanwhile, and would be a reason for the next cycle at once.
                await asyncio.sleep(FAILING_S)
            elif took_ms >= LONG_CYCLE_MS:
                # Half of the time is left to those who ask: in a flood more is taken together, by fewer cycles.
                await asyncio.sleep(min(took_ms, LONGEST_PAUSE_MS) / 1000)

    def _longest_wait_s(self) -> float | None:
        """How long planning may wait for a change; None: until there is one."""
        waits = self.core.loop.why_waiting or self.core.loop.containment.pause
        due_ms = self.core.loop.due_ms
        longest_ms = REPLAN_MS if waits or due_ms is not None else None
        if due_ms is None or longest_ms is None:
            return None if longest_ms is None else longest_ms / 1000
        return min(max(due_ms - self.clock.steady_ms(), LEAST_WAIT_MS), longest_ms) / 1000

    def _log_trouble(self, trouble: Trouble) -> None:
        """Once for each exception, however often it comes."""
        _log.error("%s\n%s", trouble.text, trouble.fault.trace)

    async def _ask(self, question: Callable[[], Result]) -> Result:
        """Ask the core while nobody changes its books."""
        async with self._books:
            await self._follow()
            if self.core.loop.stale:
                raise ServiceError("the cluster cannot be planned on at the moment", fix="gpuyard doctor")
            return await self._in(self._thinking, question)

    async def _follow(self) -> None:
        """Bring the ledger up to date, by the thread that plans where that takes a while; `_books` is held."""
        loop = self.core.loop
        changes = loop.observe()
        if len(changes) <= MAX_FOLLOWED_AT_ONCE:
            loop.take_over(changes)
        else:
            await self._in(self._thinking, lambda: loop.take_over(changes))
        loop.mend()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self.core.tick()
            await self._upkeep.tick()
            self._changed()

    def _count(self, event: Event, _: Entry) -> None:
        self.stats.count(event)
        if isinstance(event, ClockJumped):
            _log.warning("%s", sentence(event))

    # -------------------------------------------------------------------------------------------------------- intents

    async def do(self, intent: Intent, caller: Caller) -> Done:
        if isinstance(intent, Submit | RunSchedule):
            before = submitted_before(self.state, intent.key, intent.fingerprint)
            if before is not None:
                await self._durable(self.state.seq)
                return Done(self.state.seq, before)
        if self._unwritten:
            raise ServiceError(f"nothing can be recorded now: {self._unwritten}", fix="try again")
        first = self.state.seq
        seq = self.core.do(intent, caller.user)
        jobs = self._touched(first)
        self._changed()
        await self._durable(seq)
        return Done(seq, jobs)

    def _touched(self, after_seq: int) -> tuple[str, ...]:
        objects = [name for entry in self.core.journal.pending if entry.seq > after_seq for name in entry.objects]
        return tuple(dict.fromkeys(name.removeprefix("job/") for name in objects if name.startswith("job/")))

    async def record(self, events: Sequence[Event], actor: str = "") -> int:
        """Enter facts that are no intents, such as the founding of the cluster."""
        seq = self.core.record(events, actor)
        self._changed()
        await self._durable(seq)
        return seq

    async def note(self, about: str, what: str, team: str, caller: Caller) -> None:
        await self.record([Noted(about, what, team)], caller.user)

    async def dry_run(self, intent: Intent, caller: Caller) -> DryRun:
        scratch, now_ms = copy_of(self.state), self.core.recorded.now_ms()
        blind = not caller.may(Permission.SEE_JOBS)
        return await self._ask(lambda: self.questions.dry_run(scratch, intent, now_ms, blind))

    # ------------------------------------------------------------------------------------------------------ questions

    async def explain(self, job: str) -> Explanation:
        return await self._ask(lambda: self.questions.explain(job))

    async def plan_with(self, submission: Submission, caller: Caller) -> tuple[Plan, Snapshot]:
        blind = not caller.may(Permission.SEE_JOBS)
        return await self._ask(lambda: self.questions.plan_with(submission, blind))

    async def never(self, submission: Submission) -> tuple[Reason, ...]:
        """What keeps it from ever running; where that cannot be worked out it is taken, and waits."""
        empty, form = self.questions.empty_cluster(), submission.form
        known = empty.known(form) if empty is not None else ()
        if empty is None or known is not None:
            return known or ()
        asked = candidate(submission, self.clock.wall_ms())
        try:
            return await self._in(self._checking, lambda: empty.never(form, asked))
        except Exception as error:
            self.core.contained.failed("never", error)
            return ()

    async def what_if(self, changes: tuple[Change, ...]) -> Difference:
        return await self._ask(lambda: self.questions.what_if(changes))

    async def forecasts(self, jobs: Sequence[str]) -> dict[str, Forecast]:
        return await self._ask(lambda: self.questions.forecasts(jobs))

    def waiting_reasons(self, job: str) -> tuple[Reason, ...]:
        return self.core.loop.why_waiting.get(job, ())

    def gpu_use(self) -> dict[tuple[str, int], int]:
        return {task: percent for contact in self.core.hub.contacts.values() for task, percent in contact.use.items()}

    async def snapshot(self) -> Snapshot:
        return await self._ask(self.core.loop.ledger.snapshot)

    def issues(self) -> Issues:
        loop = self.core.loop
        failing = tuple(sorted(self.core.contained.failing.items()))
        return Issues(loop.containment.pause, tuple(loop.containment.left), failing, loop.containment.failures)

    def standing(self) -> tuple[QueueStanding, ...]:
        """As of now, or where a plan is just being made, as of the one before."""
        if not self._books.locked():
            self._standings = self.questions.standings()
        return self._standings

    async def standing_now(self) -> tuple[QueueStanding, ...]:
        return await self._ask(self.questions.standings)

    # -------------------------------------------------------------------------------------------------------- history

    async def history(
        self,
        *,
        object: str = "",
        kinds: Sequence[str] = (),
        actor: str = "",
        teams: Sequence[str] | None = None,
        since_ms: int = 0,
        until_ms: int | None = None,
        before_seq: int | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        return await self._in(
            self._writing,
            lambda: self.store.history(
                object=object,
                kinds=kinds,
                actor=actor,
                teams=teams,
                since_ms=since_ms,
                until_ms=until_ms,
                before_seq=before_seq,
                limit=limit,
            ),
        )

    async def sums(self, since_day: str, until_day: str) -> list[DailySum]:
        kept = await self._in(self._writing, lambda: self.store.sums(since_day, until_day))
        sums = all_sums(self.state, kept, self.core.recorded.now_ms())
        return [one for one in sums if since_day <= one.day <= until_day]

    def subscribe(self, after_seq: int | None) -> Watching:
        return Watching(self.entries_after, self.core.journal.durable_seq if after_seq is None else after_seq)

    async def entries_after(self, seq: int) -> list[Entry] | None:
        """Durable entries after that one, as soon as there are some; None where the manager stops."""
        while self.core.journal.durable_seq <= seq:
            if not self.ready or self._advanced is None:
                return None
            await asyncio.shield(self._advanced)
        if self._recent and self._recent[0].seq <= seq + 1:
            back = self._recent[-1].seq - seq
            size = len(self._recent)
            return [self._recent[index] for index in range(max(size - back, 0), min(size - back + MAX_BEHIND, size))]
        return await self._in(self._writing, lambda: self.store.read(seq, MAX_BEHIND)) or None

    # --------------------------------------------------------------------------------------------------------- agents

    def agent_connected(self, hello: Hello, send: Send) -> None:
        """An agent speaks for its machine; what it is told goes through `send`."""
        self._senders[hello.node] = send
        self.stats.agents = len(self._senders)
        self.core.hello(hello)
        self._changed()

    def hears(self, node: str) -> bool:
        """Whether the stream of that machine's agent is open."""
        return node in self._senders

    def heard_at_ms(self, node: str) -> int:
        """By the wall clock; after a restart, the moment of that."""
        contact = self.core.hub.contacts.get(node)
        return self.clock.wall_ms() - (self.clock.steady_ms() - contact.heard_ms if contact else 0)

    def agent_reported(self, node: str, report: Report) -> None:
        self.core.report(node, report)
        self._changed()

    def agent_gone(self, node: str, send: Send) -> None:
        self._log_requests.session_ended(send)
        if self._senders.get(node) == send:
            del self._senders[node]
            self.stats.agents = len(self._senders)
            self.core.hub.gone(node)

    async def read_log(self, id: AttemptId, offset: int, limit: int, wait_ms: int, since_ms: int = 0) -> LogPiece:
        """A part of a log, from the machine that has it."""
        record = self.state.jobs.get(id.job)
        node = self.node_of_attempt(id)
        send = self._senders.get(node) if record is not None else None
        if send is None:
            raise RefusedError(
                "MachineAway",
                f"the machine that has this log is not connected{f': {node}' if node else ''}",
                fix="later",
            )
        asked = self._log_requests.ask(send, id, offset, limit, wait_ms, since_ms)
        try:
            return await asyncio.wait_for(asked, wait_ms / 1000 + ANSWER_S)
        except (TimeoutError, SessionEndedError):
            raise RefusedError("MachineAway", f'machine "{node}" does not answer', fix="later") from None

    def log_piece(self, send: Send, piece: LogPiece) -> None:
        """An answer of the agent that is told things through `send`."""
        self._log_requests.answered(send, piece)

    async def parcel_piece(self, node: str, asked: ReadParcel) -> ParcelPiece:
        return await piece_for(self.state, self.parcels, node, asked)

    def node_of_attempt(self, id: AttemptId) -> str:
        """The machine an attempt is or was on."""
        record = self.state.jobs.get(id.job)
        if record is None or not 0 <= id.task < len(record.tasks):
            return ""
        return next((node for attempt, node in record.tasks[id.task].ran_on if attempt == id.attempt), "")
