"""The scheduler of a Kubernetes cluster, as a process: follow, lead, plan, write.

Place in the flow: API server ─follow─▶ picture ─▶ world ─▶ loop ─▶ world ─errands─▶ writer ─▶ API server; beside it the
words: conditions, events, statuses, the decision log. Event-driven: a cycle runs when something has changed, after a
short gather. Invariants: only who leads plans and writes; whoever begins to lead starts from what the cluster says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from gpuyard.errors import KubeError
from gpuyard.kube.decisions import DecisionLog
from gpuyard.kube.lease import Alone, Leadership
from gpuyard.kube.published import ANNOTATION, published_text
from gpuyard.kube.sources import Source, sources
from gpuyard.kube.statuses import Statuses
from gpuyard.kube.unsupported import Unsupported
from gpuyard.kubeapi.client import KubeClient
from gpuyard.kubeapi.follow import Follower
from gpuyard.kubeapi.rate import Rate
from gpuyard.loop.contained import Contained
from gpuyard.loop.containment import Reports
from gpuyard.loop.loop import Loop
from gpuyard.loop.stand_ins import Kind
from gpuyard.model.plan import Action
from gpuyard.model.text import waiting_text
from gpuyard.platform.clock import boot_ms, monotonic_ms, wall_ms
from gpuyard.policies.policy import DEFAULT, Policy
from gpuyard.worlds.kubernetes.intents import Intents
from gpuyard.worlds.kubernetes.membership import DOUBT_MS, OwnerKind
from gpuyard.worlds.kubernetes.objects import Owner
from gpuyard.worlds.kubernetes.owners import owner_path
from gpuyard.worlds.kubernetes.picture import Picture
from gpuyard.worlds.kubernetes.places import saved_places
from gpuyard.worlds.kubernetes.podrecord import Held
from gpuyard.worlds.kubernetes.settings import Settings
from gpuyard.worlds.kubernetes.telling import Teller, word_for
from gpuyard.worlds.kubernetes.world import Kubernetes
from gpuyard.worlds.kubernetes.writer import Writer
from gpuyard.worlds.kubernetes.writes import BindPod, EvictPod, NominateNode

GATHER_MS: Final = 5
"""How long a cycle waits after the first change for those that come with it."""
MOST_GATHER_MS: Final = 50
SHORT_PLAN_MS: Final = 20
"""Plans that took longer are made beside everything else, so that the lease is renewed meanwhile."""
TICK_MS: Final = 1_000
"""How often time alone is a reason to plan, where somebody waits or is incomplete."""
IDLE_TICK_MS: Final = 10_000
END_S: Final = 5
"""How long the last requests are waited for at the end."""
PODS: Final = "pods"
SEE_S: Final = 0.02
FAILING_S: Final = 0.25
"""Between cycles while nothing can be planned."""
UNSUPPORTED_S: Final = 30
"""How often objects are looked for that are not acted on."""
MAX_ODD_ONES: Final = 1_000
"""Objects that cannot be read as they are, of which each is told once."""
TELL_MS: Final = 200
"""How often people are told what is new."""


class Options(msgspec.Struct, frozen=True):
    """How it is started."""

    settings: Settings = Settings()
    policy: Policy = DEFAULT
    identity: str = "gpuyard"
    elect: bool = True
    per_second: float = 200.0
    burst: int = 400


class Scheduler:
    """One of the processes that may lead."""

    def __init__(
        self, client: KubeClient, options: Options, say: Callable[[str], None], log: DecisionLog | None = None
    ) -> None:
        self._client = client
        self.options = options
        self._say = say
        self._log = log
        self.picture = Picture(options.settings)
        told = {ANNOTATION: published_text(options.settings, options.policy)}
        namespace, told_by = options.settings.namespace, say if options.elect else _silently
        election = Leadership(client, namespace, options.identity, told_by, annotations=told)
        self.leadership: Leadership | Alone = election if options.elect else Alone(election)
        rate = Rate(options.per_second, options.burst)
        self.writer = Writer(client, rate, options.settings.namespace, self, self.leadership.holds)
        self.teller = Teller(client, self.writer, self.picture, options.identity, wall_ms)
        self.statuses = Statuses(client, self.writer, self.picture, options.identity, wall_ms)
        self.unsupported = Unsupported(client, self.writer, self.picture)
        self.world = Kubernetes(self.picture, Intents(), wall_ms)
        self.loop: Loop | None = None
        self.reports = Reports()
        self.reports.listen(lambda trouble: say(f"{trouble.text}\n{trouble.fault.trace}"))
        self.contained = Contained(self.reports, monotonic_ms)
        """Parts beside planning that raise."""
        self.counts: Counter[str] = Counter()
        self.cycles = 0
        self.plan_ms = 0
        self.cycle_ms = 0
        self._sources = sources(options.settings.namespace)
        self._followed: set[OwnerKind] = set()
        self._wake = asyncio.Event()
        self._whole = asyncio.Event()
        self._as_of_ms: dict[str, int] = {}
        """Kinds, and when all there was of each was asked for."""
        self._led_until_ms = 0
        self._stale = asyncio.Event()
        """Set where pods are to be listed anew."""
        self._books = asyncio.Lock()
        """Held while the books are planned on, which may be in another thread, or read from."""
        self._out: dict[str, str] = {}
        self._odd_ones: set[tuple[str, str]] = set()
        self._deposed = False
        """Whether something that was decided could not be written, because we did not lead at that moment."""

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                if source.kind != PODS:
                    group.create_task(self._follow(source))
            group.create_task(self.leadership.run())
            group.create_task(self._follow_pods(group))
            group.create_task(self.writer.run())
            group.create_task(self._follow_owners(group))
            group.create_task(self._tell_for_ever())
            group.create_task(self._tell_unsupported_for_ever())
            try:
                await self._lead_for_ever()
            finally:
                await self._stop()

    async def _stop(self) -> None:
        """Let somebody else lead, once what we have asked for is done or refused: not while it may still happen."""
        self.leadership.stand_down()
        try:
            async with asyncio.timeout(END_S):
                await self.writer.drop_all()
        except TimeoutError:
            return
        await self.leadership.release()

    @property
    def ready(self) -> bool:
        """Whether all there is has been seen once."""
        return self._whole.is_set()

    # ---------------------------------------------------------------------------------------------------------- follow

    async def _follow(self, source: Source) -> None:
        follower: Follower[object] = Follower(
            self._client,
            source.path,
            source.object,
            outage=lambda error: self._outage(source.kind, error),
            selectors=dict(source.selectors),
            optional=source.optional,
            oddity=lambda said: self._odd(source.kind, said),
        )
        asked_at_ms = boot_ms()
        async for change in follower.changes():
            self.picture.take(source.kind, change, wall_ms())
            self._as_of_ms[source.kind] = asked_at_ms
            self._forget_where_nobody_looks()
            if not self._whole.is_set() and self.picture.is_whole(each.kind for each in self._sources):
                self._whole.set()
            self._wake.set()

    async def _follow_pods(self, group: asyncio.TaskGroup) -> None:
        """Like the others, but listed anew by whoever begins to lead: what the leader before us has bound last may
        not have reached us yet, and would be given to others.
        """
        await self.leadership.tried.wait()
        (source,) = [each for each in self._sources if each.kind == PODS]
        while True:
            following = group.create_task(self._follow(source))
            await self._stale.wait()
            self._stale.clear()
            following.cancel()

    async def _see_things_as_they_are(self) -> None:
        """Wait until all pods have been asked for since we lead, or led last, and it is known who made them."""
        since_ms = max(self.leadership.gained_at_ms, self._led_until_ms)
        if self._as_of_ms.get(PODS, 0) < since_ms:
            self._stale.set()
        while self.leadership.holds() and self._as_of_ms.get(PODS, 0) < since_ms:
            await asyncio.sleep(SEE_S)
        until_ms = monotonic_ms() + DOUBT_MS
        while (
            self.leadership.holds() and self.picture.membership.next_doubt_ms is not None and monotonic_ms() < until_ms
        ):
            await asyncio.sleep(SEE_S)

    async def _follow_owners(self, group: asyncio.TaskGroup) -> None:
        """Kinds of owners, from the first pod on that has one."""
        while True:
            for kind in [kind for kind in self.picture.membership.wanted_kinds if kind not in self._followed]:
                self._followed.add(kind)
                group.create_task(self._follow_owner(kind))
            await asyncio.sleep(0.05)

    async def _follow_owner(self, kind: OwnerKind) -> None:
        path = owner_path(*kind)
        assert path is not None
        name = "/".join(kind)
        follower = Follower(
            self._client,
            path,
            Owner,
            outage=lambda error: self._outage(name, error),
            optional=True,
            oddity=lambda said: self._odd(name, said),
        )
        async for change in follower.changes():
            self.picture.take_owner(kind, change, wall_ms())
            self._wake.set()

    def _forget_where_nobody_looks(self) -> None:
        """Whoever begins to lead reads all of the picture; until then what has changed in it concerns nobody."""
        if self.loop is None:
            self.picture.looked_at()
            self.picture.gone_pods.clear()

    def _outage(self, kind: str, error: KubeError | None) -> None:
        """Told once when it begins, and once when it is over."""
        known = self._out.get(kind, "")
        if error is None:
            if self._out.pop(kind, ""):
                self._say(f"{kind}: the API server answers again")
        elif known != str(error):
            self._out[kind] = str(error)
            self._say(f"{kind}: {error}")

    def _odd(self, kind: str, said: str) -> None:
        """Told once of each object; of many only some."""
        if (kind, said) not in self._odd_ones and len(self._odd_ones) < MAX_ODD_ONES:
            self._odd_ones.add((kind, said))
            self._say(f"{kind}: {said}")

    # ------------------------------------------------------------------------------------------------------------ lead

    async def _lead_for_ever(self) -> None:
        while True:
            await self._whole.wait()
            await self.leadership.gained.wait()
            await self._see_things_as_they_are()
            if not self.leadership.holds():
                # Lost again; whether for good turns out with the next try.
                await asyncio.sleep(SEE_S)
                continue
            try:
                saved = await saved_places(self._client, self.options.settings.namespace)
            except KubeError as error:
                self._say(str(error))
                await asyncio.sleep(1)
                continue
            self.world = Kubernetes(self.picture, Intents(), wall_ms)
            self.world.adopt(saved)
            self.world.on_act = self._acting
            self.loop = None
            self.teller.forget()
            self.statuses.forget()
            self._deposed = False
            while self.leadership.holds() and not self._deposed:
                async with self._books:
                    await self._cycle()
                if self._cannot_plan():
                    # What has changed may stay unread meanwhile, and would be a reason for the next cycle at once.
                    await asyncio.sleep(FAILING_S)
                await self._something_new()
            await self.writer.drop_all()
            self.loop = None
            self._led_until_ms = boot_ms()

    def _cannot_plan(self) -> bool:
        return self.loop is not None and self.loop.containment.waiting

    async def _something_new(self) -> None:
        """Wait until something has changed, or time alone may have; then a little longer, for what comes with it."""
        timeout_ms = self._tick_ms()
        began_ms = monotonic_ms()
        while not self.picture.changed:
            self._wake.clear()
            left_ms = timeout_ms - (monotonic_ms() - began_ms)
            if left_ms <= 0 or not self.leadership.holds():
                return
            try:
                # Not wait_for, which forgets in Python 3.11 that it was cancelled when what it waits for comes then.
                async with asyncio.timeout(min(left_ms, TICK_MS) / 1000):
                    await self._wake.wait()
            except TimeoutError:
                continue
        await asyncio.sleep(min(max(GATHER_MS, self.cycle_ms), MOST_GATHER_MS) / 1000)

    def _tick_ms(self) -> int:
        loop = self.loop
        busy = loop is not None and (loop.last.waiting or loop.ledger.incomplete or loop.ledger.promised)
        tick_ms = TICK_MS if busy else IDLE_TICK_MS
        look_ms = self.world.next_look_ms
        due_ms = loop.due_ms if loop is not None else None
        if due_ms is not None:
            tick_ms = min(tick_ms, max(due_ms - monotonic_ms(), 0) + GATHER_MS)
        return tick_ms if look_ms is None else min(tick_ms, max(look_ms - wall_ms(), 0) + 1)

    async def _cycle(self) -> None:
        began_ms = monotonic_ms()
        if self.loop is None:
            self.loop = Loop(self.world, self.options.policy)
            self.loop.containment.reports.listen(self.reports.add)
        elif self.picture.topologies_changed and not self.loop.stale:
            self.loop.make_books()
        loop = self.loop
        loop.follow()
        self._report_unreadable()
        self.contained.run("decision log", lambda: self._note_jobs(loop))
        plan = await asyncio.to_thread(loop.plan) if self.plan_ms > SHORT_PLAN_MS else loop.plan()
        self.plan_ms = monotonic_ms() - began_ms
        if not self.leadership.holds():
            return
        loop.carry_out(plan)
        if self._log is not None:
            log, acted = self._log, self._acted
            self.contained.run("decision log", lambda: log.decided(plan, acted, loop.ledger))
        self._acted = ()
        while self.world.errands:
            self.writer.put(self.world.errands.popleft())
        self.cycles += 1
        self.cycle_ms = monotonic_ms() - began_ms

    _acted: Sequence[Action] = ()

    def _acting(self, actions: Sequence[Action]) -> None:
        self._acted = tuple(actions)

    def _report_unreadable(self) -> None:
        self.contained.now_failing("reading", {**self.world.broken, **self.picture.broken})

    def left_out(self) -> dict[str, Held]:
        """Jobs that are left out of planning, and why."""
        reasons = self.loop.containment.left.reasons() if self.loop is not None else {}
        return {job: Held(word_for(why), waiting_text(why)) for job, why in reasons.items()}

    def nodes_left_out(self) -> dict[str, str]:
        left = self.loop.containment.left if self.loop is not None else ()
        return {one.subject.name: f"it is {one.text}" for one in left if one.subject.kind is Kind.NODE}

    def _note_jobs(self, loop: Loop) -> None:
        """Who came and who went: for the log, and for those whose workload was read otherwise than they may think."""
        new, self.world.new_jobs = self.world.new_jobs, []
        gone, self.world.gone_jobs = self.world.gone_jobs, []
        noted, self.world.noted_jobs = self.world.noted_jobs, []
        for id in noted:
            self.teller.job_notes(id)
        if self._log is None:
            return
        for id in gone:
            self._log.gone(id)
        jobs = [job for id in new if (job := loop.ledger.jobs.get(id)) is not None]
        self._log.submitted(jobs, self.picture.tree)

    async def _tell_for_ever(self) -> None:
        """What is new since people were last told; the newest state of each only."""
        told = written = 0
        while True:
            await asyncio.sleep(TELL_MS / 1000)
            async with self._books:
                loop = self.loop
                if loop is None or not self.leadership.holds():
                    continue
                if told != self.cycles:
                    told = self.cycles
                    self.contained.run("conditions of pods", partial(self._tell_pods, loop))
                    self.contained.run("notes of queues", lambda: self.teller.queue_notes(self.picture.tree))
                    self.contained.run("notes of nodes", lambda: self.teller.node_notes(self.nodes_left_out()))
                if written != self.cycles and self._write_statuses(loop):
                    written = self.cycles

    def _tell_pods(self, loop: Loop) -> None:
        self.teller.waiting(loop.last, self.left_out() | self.world.held_jobs(), self.world.pods_held())

    def _write_statuses(self, loop: Loop) -> bool:
        """Whether all were written, or cannot be worked out."""
        written: list[bool] = []
        self.contained.run("statuses", lambda: written.append(self.statuses.write(loop)))
        return all(written)

    async def _tell_unsupported_for_ever(self) -> None:
        while True:
            if self.ready and self.leadership.holds():
                await self.unsupported.tell()
            await asyncio.sleep(UNSUPPORTED_S if self.ready else 1)

    # ------------------------------------------------------------------------------------------------------ how it went

    def bound(self, write: BindPod) -> None:
        self.counts["bound"] += 1
        self.teller.bound(write)
        if self._log is not None:
            self._log.bound(write.job, write.pod.name, write.node)

    def bind_failed(self, write: BindPod, why: str) -> None:
        self.counts["bind_failed"] += 1
        self.world.bind_failed(write, why)
        self.teller.bind_failed(write, why)
        self._say(f"{write.job}: {write.pod.name} could not be bound to {write.node}: {why}")
        if self._log is not None:
            self._log.failed(write.job, write.pod.name, write.node, why)
        self._wake.set()

    def note_failed(self, write: NominateNode, why: str) -> None:
        self.world.note_failed(write, why)
        self._wake.set()

    def evicted(self, write: EvictPod) -> None:
        self.counts[f"evicted:{write.reason.token}"] += 1
        self.teller.evicted(write)

    def deposed(self) -> None:
        self._deposed = True
        self._wake.set()

    def eviction_failed(self, write: EvictPod, why: str, *, forbidden: bool) -> None:
        self.counts["eviction_failed"] += 1
        self.world.eviction_failed(write, why, forbidden=forbidden)
        self.teller.eviction_failed(write, why)
        self._wake.set()


def _silently(line: str) -> None:
    """Whoever runs without an election does not hear how one goes."""
