"""Carries out errands: notes first, deeds then; binds and evictions before words about them.

Place in the flow: world ─errands─▶ **writer** ─requests─▶ API server; how it went ─▶ world. Invariants: nothing is
written by who does not lead; no deed is done whose note could not be written; an answer that is lost is found out
about before anything is tried again, so that nothing is done twice; a place is given up only once it is known that
the pod is not there; what must be tried again keeps no worker from the work of others.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, Protocol

from gpuyard.errors import KubeError, KubeRefusedError
from gpuyard.kubeapi.client import CONFLICT, NOT_FOUND, STRATEGIC, KubeClient, decoded
from gpuyard.kubeapi.moments import text_of
from gpuyard.kubeapi.paths import path_of
from gpuyard.kubeapi.rate import Rate
from gpuyard.platform.clock import monotonic_ms, wall_ms
from gpuyard.worlds.kubernetes.objects import Pod, VolumeClaim
from gpuyard.worlds.kubernetes.places import save_places
from gpuyard.worlds.kubernetes.volumes import SELECTED_NODE, Given
from gpuyard.worlds.kubernetes.writes import BindPod, Errand, EvictPod, NominateNode, PodName, SavePlaces

WORKERS: Final = 24
"""Requests under way at once."""
PENS: Final = 64
"""Notes about pods that are written at once; those about the same pod share one."""
PATIENCE_MS: Final = 1_000
"""How long a worker stays with one request: what hangs, in somebody's webhook, goes on beside it."""
MOST_HANGING: Final = 256
"""So many of them; then the workers stay with theirs."""
DOUBTFUL_WORKERS: Final = 4
"""For binds that fail, or did so before: however long they take, the others do not wait for them."""
FIRST_RETRY_MS: Final = 100
MOST_RETRY_MS: Final = 2_000
NOTE_MS: Final = 30_000
"""How long a note is tried while the API server fails."""
BIND_MS: Final = 5_000
"""How long a bind is tried that the API server fails to do; after that its place is given up."""
EVICT_MS: Final = 10_000
"""How long an eviction that a disruption budget forbids is asked for."""
VOLUME_MS: Final = 120_000
"""How long the volume of a pod may take to be made."""
TOO_MANY: Final = 429
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
"""With this annotation a volume that was chosen for a claim may be taken from it again when the claim goes."""
GIVES_WAY: Final = "gpuyard.io/GivesWay"

DEED, WORD = 0, 1
"""What goes first when there is much to do."""

Work = Callable[[], Awaitable[None]]
Queue = asyncio.PriorityQueue[tuple[int, int, int, Work]]
"""By rank, then as they came; with the term in which they came."""

_TERM: ContextVar[int] = ContextVar("term")
"""The term of leadership in which the work under way was decided."""


class Fate(enum.Enum):
    """What has become of a pod that was to be bound."""

    BOUND = "bound"
    ELSEWHERE = "elsewhere"
    WAITING = "waiting"
    GONE = "gone"
    UNKNOWN = "unknown"


class Listener(Protocol):
    """Who is told how it went."""

    def bound(self, write: BindPod) -> None: ...
    def bind_failed(self, write: BindPod, why: str) -> None: ...
    def note_failed(self, write: NominateNode, why: str) -> None: ...
    def evicted(self, write: EvictPod) -> None: ...
    def eviction_failed(self, write: EvictPod, why: str, *, forbidden: bool) -> None: ...
    def deposed(self) -> None:
        """Something was not written, because we do not lead: what was decided no longer counts."""


class Deposed(Exception):  # noqa: N818 - no error: somebody else leads
    """Whoever does not lead may write nothing."""


class _Going:
    """A pod that is asked to go, as far as that has come."""

    def __init__(self, evict: EvictPod) -> None:
        self.evict = evict
        self.until_ms = monotonic_ms() + EVICT_MS
        self.marked = False
        self.lost = False
        """Whether it may have been done although nobody said so."""


class Writer:
    """A queue of work and the workers who do it."""

    def __init__(
        self, client: KubeClient, rate: Rate, namespace: str, listener: Listener, leads: Callable[[], bool]
    ) -> None:
        self._client = client
        self._rate = rate
        self._namespace = namespace
        self._listener = listener
        self._leads = leads
        self._work: Queue = asyncio.PriorityQueue()
        self._doubtful: Queue = asyncio.PriorityQueue()
        self._order = itertools.count()
        self._term = 0
        self._hanging: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._saving = asyncio.Lock()
        self._pens = tuple(asyncio.Lock() for _ in range(PENS))
        self._group = asyncio.TaskGroup()
        self.written = 0
        self.failed = 0

    def put(self, errand: Errand) -> None:
        """Deeds that need no note go to the workers at once; the others follow their notes."""
        if not errand.notes:
            for deed in errand.deeds:
                self._do(deed)
        else:
            self._later(DEED, lambda: self._errand(errand))

    def say(self, write: Work) -> None:
        """Something that may wait until all deeds are done: a condition, an event, a status."""
        self._later(WORD, write)

    @property
    def waiting(self) -> int:
        return self._work.qsize() + self._doubtful.qsize()

    async def run(self) -> None:
        """For ever; whatever it has begun ends with it."""
        async with self._group as group:
            for _ in range(WORKERS):
                group.create_task(self._labour(self._work, self._patiently))
            for _ in range(DOUBTFUL_WORKERS):
                group.create_task(self._labour(self._doubtful, self._worked))

    async def drop_all(self) -> None:
        """Forget what is still to be done, and wait for what is being done: whoever leads then decides anew."""
        self._term += 1
        for queue in (self._work, self._doubtful):
            while not queue.empty():
                queue.get_nowait()
        await self._at_rest.wait()

    async def _labour(self, queue: Queue, do: Callable[[Work], Awaitable[None]]) -> None:
        while True:
            _, _, term, work = await queue.get()
            _TERM.set(term)
            await do(work)

    async def _patiently(self, work: Work) -> None:
        """Until it is done, or hangs and may do so without a worker."""
        task = self._group.create_task(self._worked(work))
        await asyncio.wait((task,), timeout=PATIENCE_MS / 1000)
        if task.done():
            return
        if len(self._hanging) >= MOST_HANGING:
            await asyncio.wait((task,))
            return
        self._hanging.add(task)
        task.add_done_callback(self._hanging.discard)

    async def _worked(self, work: Work) -> None:
        try:
            await work()
        except Deposed:
            if _TERM.get() == self._term:
                self._listener.deposed()
        except KubeError:
            self.failed += 1

    def _do(self, deed: BindPod | EvictPod) -> None:
        self._later(DEED, self._deed(deed))

    def _later(self, rank: int, work: Work, queue: Queue | None = None) -> None:
        (queue or self._work).put_nowait((rank, next(self._order), self._term, work))

    async def request(self, send: Callable[[], Awaitable[bytes]]) -> bytes:
        """One request, if we lead, when the rate allows it."""
        await self._rate.permit()
        self._check_term()
        self.written += 1
        self._under_way += 1
        self._at_rest.clear()
        try:
            return await send()
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._at_rest.set()

    def _check_term(self) -> None:
        """Whoever has lost the lead since something was decided does no more about it, nor tells how it went."""
        if not self._leads() or _TERM.get() != self._term:
            raise Deposed

    # ---------------------------------------------------------------------------------------------------------- errands

    async def _errand(self, errand: Errand) -> None:
        unnoted: set[str] = set()
        for job in await asyncio.gather(*[self._note(note) for note in errand.notes]):
            if job is not None:
                unnoted.add(job)
        self._check_term()
        for deed in errand.deeds:
            if isinstance(deed, EvictPod) and (deed.reason.beneficiary in unnoted or "" in unnoted):
                self._listener.eviction_failed(deed, "the place could not be kept for whom it is", forbidden=False)
            else:
                self._do(deed)

    async def _note(self, note: NominateNode | SavePlaces) -> str | None:
        """The job whose note could not be written; empty where it concerns all of them."""
        try:
            if isinstance(note, SavePlaces):
                async with self._saving:
                    await self._again(lambda: save_places(self._client, self._namespace, note), NOTE_MS)
                return None
            # In the order they were decided: of two about the same pod the later one has to stand.
            async with self._pens[hash(note.pod.uid) % len(self._pens)]:
                await self._again(lambda: self._nominate(note), NOTE_MS)
        except KubeError as error:
            self._check_term()
            if isinstance(note, SavePlaces):
                return ""
            self._listener.note_failed(note, str(error))
            return note.job
        return None

    async def _nominate(self, note: NominateNode) -> bytes:
        status = {"nominatedNodeName": note.node or None}
        return await self._patch_status(note.pod, status)

    async def _patch_status(self, pod: PodName, status: dict[str, Any]) -> bytes:
        """Only of this very pod: one that was made anew under its name has another uid, and is refused."""
        path = path_of("pods", pod.name, namespace=pod.namespace, part="status")
        body = {"metadata": {"uid": pod.uid}, "status": status}
        return await self._client.merge(path, body, kind=STRATEGIC)

    async def _again(self, send: Callable[[], Awaitable[bytes]], within_ms: int) -> bytes:
        """Until it is done or refused; a server that does not answer, or cannot, is asked again for a while."""
        until_ms = monotonic_ms() + within_ms
        wait_ms = FIRST_RETRY_MS
        while True:
            try:
                return await self.request(send)
            except KubeError as error:
                if is_final(error) or monotonic_ms() > until_ms:
                    raise
            await asyncio.sleep(wait_ms / 1000)
            wait_ms = min(2 * wait_ms, MOST_RETRY_MS)

    # ------------------------------------------------------------------------------------------------------------ deeds

    def _deed(self, deed: BindPod | EvictPod) -> Callable[[], Awaitable[None]]:
        if isinstance(deed, EvictPod):
            return lambda: self._evict(deed)
        if deed.claims or deed.given:
            return lambda: self._bind_aside(deed)
        return lambda: self._bind(deed)

    async def _bind_aside(self, bind: BindPod) -> None:
        """A volume may take its time to be made."""
        self._beside(lambda: self._bind_with_volumes(bind))

    def _beside(self, work: Work) -> None:
        """Do what may take its time without keeping a worker from other pods."""
        self._group.create_task(self._worked(work))

    async def _bind_with_volumes(self, bind: BindPod) -> None:
        why = await self._why_no_volumes(bind)
        self._check_term()
        if why:
            self._listener.bind_failed(bind, why)
        else:
            await self._bind(bind)

    async def _why_no_volumes(self, bind: BindPod) -> str:
        """Have the volumes made for its node, or given to it; empty once they are there."""
        claims = (*bind.claims, *(one.claim for one in bind.given))
        try:
            for claim in bind.claims:
                await self._again(lambda claim=claim: self._choose_node(bind, claim), NOTE_MS)  # type: ignore[misc]
            for one in bind.given:
                await self._again(lambda one=one: self._give(bind, one), NOTE_MS)  # type: ignore[misc]
            until_ms = monotonic_ms() + VOLUME_MS
            while not all([await self._is_ready(bind, claim) for claim in claims]):
                if monotonic_ms() > until_ms:
                    return f"its volumes were not made within {VOLUME_MS // 1000} s"
                await asyncio.sleep(FIRST_RETRY_MS / 1000)
        except KubeError as error:
            return str(error)
        return ""

    async def _choose_node(self, bind: BindPod, claim: str) -> bytes:
        path = path_of("persistentvolumeclaims", claim, namespace=bind.pod.namespace)
        return await self._client.merge(path, {"metadata": {"annotations": {SELECTED_NODE: bind.node}}})

    async def _give(self, bind: BindPod, given: Given) -> bytes:
        """Only if nobody has changed the volume meanwhile; the rest is the volume controller's work."""
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": bind.pod.namespace}
        body = {
            "metadata": {"resourceVersion": given.version, "annotations": {BOUND_BY_CONTROLLER: "yes"}},
            "spec": {"claimRef": {**claim, "name": given.claim, "uid": given.claim_uid}},
        }
        return await self._client.merge(path_of("persistentvolumes", given.volume), body)

    async def _is_ready(self, bind: BindPod, claim: str) -> bool:
        path = path_of("persistentvolumeclaims", claim, namespace=bind.pod.namespace)
        content = await self._again(lambda: self._client.get(path), NOTE_MS)
        return decoded(content, VolumeClaim, path).status.phase == "Bound"

    async def _bind(self, bind: BindPod) -> None:
        """At once; what fails, or did so before, is left to those who do nothing else."""
        if bind.failures or not await self._try_bind(bind, gives_up=False):
            self._later(DEED, lambda: self._keep_binding(bind), self._doubtful)

    async def _keep_binding(self, bind: BindPod) -> None:
        until_ms = monotonic_ms() + BIND_MS
        wait_ms = FIRST_RETRY_MS
        while not await self._try_bind(bind, gives_up=monotonic_ms() > until_ms):
            await asyncio.sleep(wait_ms / 1000)
            wait_ms = min(2 * wait_ms, MOST_RETRY_MS)

    async def _try_bind(self, bind: BindPod, *, gives_up: bool) -> bool:
        """Whether that settled it."""
        path = path_of("pods", bind.pod.name, namespace=bind.pod.namespace, part="binding")
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": bind.pod.name, "namespace": bind.pod.namespace, "uid": bind.pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": bind.node},
        }
        try:
            await self.request(lambda: self._client.create(path, body))
        except KubeError as error:
            fate = await self._fate(bind, error)
            self._check_term()
            return self._is_settled(bind, error, fate, gives_up=gives_up)
        self._listener.bound(bind)
        return True

    def _is_settled(self, bind: BindPod, error: KubeError, fate: Fate, *, gives_up: bool) -> bool:
        """Whether there is nothing more to try; then it was told."""
        match fate:
            case Fate.UNKNOWN:
                return False
            case Fate.BOUND:
                self._listener.bound(bind)
                return True
            case Fate.ELSEWHERE:
                why = "somebody else was quicker"
            case Fate.GONE:
                why = "the pod is gone"
            case Fate.WAITING:
                if not gives_up and not is_final(error):
                    return False
                why = str(error)
        self.failed += 1
        self._listener.bind_failed(bind, why)
        return True

    async def _fate(self, bind: BindPod, error: KubeError) -> Fate:
        """After a bind whose answer was lost, or that somebody else was quicker with, what is true now counts."""
        if isinstance(error, KubeRefusedError) and error.status < 500 and error.status != CONFLICT:
            return Fate.GONE if error.status == NOT_FOUND else Fate.WAITING
        try:
            pod = await self._pod(bind.pod)
        except KubeError:
            return Fate.UNKNOWN
        if pod is None:
            return Fate.GONE
        if not pod.spec.node_name:
            return Fate.WAITING
        return Fate.BOUND if pod.spec.node_name == bind.node else Fate.ELSEWHERE

    async def _pod(self, name: PodName) -> Pod | None:
        """This very pod as it is now; None where it is there no more."""
        path = path_of("pods", name.name, namespace=name.namespace)
        try:
            pod = decoded(await self._client.get(path), Pod, path)
        except KubeRefusedError as refused:
            if refused.status == NOT_FOUND:
                return None
            raise
        return pod if pod.metadata.uid == name.uid else None

    async def _evict(self, evict: EvictPod) -> None:
        going = _Going(evict)
        if not await self._try_evict(going):
            self._beside(lambda: self._keep_evicting(going))

    async def _keep_evicting(self, going: _Going) -> None:
        """A disruption budget may allow it in a moment."""
        wait_ms = FIRST_RETRY_MS
        settled = False
        while not settled:
            await asyncio.sleep(wait_ms / 1000)
            wait_ms = min(2 * wait_ms, MOST_RETRY_MS)
            settled = await self._try_evict(going)

    async def _try_evict(self, going: _Going) -> bool:
        """Whether that settled it."""
        evict = going.evict
        try:
            if not going.marked:
                await self._mark(evict, GIVES_WAY, evict.reason.token.value)
                going.marked = True
            await self._ask_to_go(evict)
        except KubeError as error:
            if await self._has_gone(evict, error):
                if going.lost:
                    await self._has_been_evicted(evict)
                return True
            self._check_term()
            going.lost = going.lost or (going.marked and _may_be_done(error))
            if isinstance(error, KubeRefusedError) and (_is_hopeless(error) or monotonic_ms() > going.until_ms):
                await self._stays(evict, error)
                return True
            return False
        await self._has_been_evicted(evict)
        return True

    async def _ask_to_go(self, evict: EvictPod) -> None:
        path = path_of("pods", evict.pod.name, namespace=evict.pod.namespace, part="eviction")
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": evict.pod.name, "namespace": evict.pod.namespace},
            "deleteOptions": {"preconditions": {"uid": evict.pod.uid}},
        }
        await self.request(lambda: self._client.create(path, body))

    async def _has_been_evicted(self, evict: EvictPod) -> None:
        self._listener.evicted(evict)
        try:
            # The Eviction API writes a condition of its own over what stood there, without a word about why.
            await self._mark(evict, "DisruptionTarget", "PreemptionByScheduler")
        except KubeError:
            return  # It is gone already; the event has the words.

    async def _has_gone(self, evict: EvictPod, error: KubeError) -> bool:
        """Whether the pod is there no more, is on its way, or is another one under its name."""
        if not isinstance(error, KubeRefusedError) or error.status not in (NOT_FOUND, CONFLICT):
            return False
        if error.status == NOT_FOUND:
            return True
        try:
            pod = await self._pod(evict.pod)
        except KubeError:
            return False
        return pod is None or pod.metadata.deletion_timestamp is not None

    async def _stays(self, evict: EvictPod, error: KubeRefusedError) -> None:
        self._listener.eviction_failed(evict, str(error), forbidden=True)
        try:
            await self._mark(evict, GIVES_WAY, "Stays", holds=False)
        except KubeError:
            return  # What was to be taken back was not written either, or will be once it is asked to go again.

    async def _mark(self, evict: EvictPod, kind: str, reason: str, *, holds: bool = True) -> None:
        condition = {
            "type": kind,
            "status": "True" if holds else "False",
            "reason": reason,
            "message": evict.text,
            "lastTransitionTime": text_of(wall_ms()),
        }
        await self.request(lambda: self._patch_status(evict.pod, {"conditions": [condition]}))


def is_final(error: KubeError) -> bool:
    """Whether asking again is of no use."""
    return isinstance(error, KubeRefusedError) and error.status < 500 and error.status != TOO_MANY


def _is_hopeless(error: KubeRefusedError) -> bool:
    """Of an eviction: two writers may meet, and a disruption budget may allow it in a moment."""
    return is_final(error) and error.status != CONFLICT


def _may_be_done(error: KubeError) -> bool:
    """Whether what was asked for may have happened although the answer is no, or none."""
    return not isinstance(error, KubeRefusedError) or error.status >= 500
