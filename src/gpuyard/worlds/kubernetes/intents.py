"""What was decided and is not yet seen in the cluster: pods being bound, evicted, promised a place, moved, held back.

Place in the flow: world ─decided─▶ **intents** ─▶ jobs (as if it were so already); writer ─done or failed─▶ world ─▶
**intents**. Invariants: an intent about a pod goes when the cluster shows it done, or when it has failed, and always
with its pod; of every place of a moved pod there is one, until its successor is bound there or its time is over.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuyard.model.jobs import Request, TaskGroup
from gpuyard.model.reasons import Reason
from gpuyard.worlds.kubernetes.grouping import Grouping

PLACE_MS: Final = 120_000
"""How long the place of a moved pod is kept for the pod that is made in its stead."""
FIRST_BACKOFF_MS: Final = 1_000
MOST_BACKOFF_MS: Final = 300_000
CALM_MS: Final = 600_000
"""After so long without a failure the next one is the first again."""
MANY: Final = 1_000
"""With so many back-offs those are forgotten that no longer count."""
PROTECTED_MS: Final = 30_000
"""How long a pod is left alone after its disruption budget has refused its eviction."""


class Binding(msgspec.Struct, frozen=True, gc=False):
    """A pod that was told to start on a node."""

    node: str
    since_ms: int
    was_promised: bool = False
    """Whether its status says that the place is kept for it."""


class Eviction(msgspec.Struct, frozen=True, gc=False):
    """A pod that was told to go."""

    reason: Reason
    since_ms: int


class Place(msgspec.Struct, frozen=True, gc=False):
    """A place on a node for the pod that somebody will make in the stead of one that was moved."""

    job: str
    heir: str
    """How that pod will be known: the key of its grouping."""
    node: str
    left: str
    """The uid of the pod that was told to go."""
    name: str
    """And what it was called."""
    source: str
    leaf: str
    """Its group in the job."""
    form: Grouping
    """What the job is, where it has no pod at all for a while."""
    request: Request
    reason: Reason
    until_ms: int


def form_of(grouping: Grouping) -> Grouping:
    """The same without its tree, which may be large: of what has no pod nothing starts together."""
    return msgspec.structs.replace(grouping, group=TaskGroup(), notes=())


class Backoff(msgspec.Struct, frozen=True, gc=False):
    """A job whose pods could not be started: until when it is not tried again, after how many failures, and why."""

    until_ms: int
    failures: int
    why: str


class Memory(msgspec.Struct, frozen=True, gc=False):
    """What happened to a job, as far as it matters for what happens next."""

    stale_since_ms: int | None = None
    together: int = 0
    """The largest minimum of its gang that was in place since it was last started."""
    last_evicted_at_ms: int | None = None
    last_eviction: Reason | None = None


class Intents:
    """All of them, by the uid of the pod or the id of the job."""

    def __init__(self) -> None:
        self.binding: dict[str, Binding] = {}
        self.evicting: dict[str, Eviction] = {}
        self.promised: dict[str, str] = {}
        """Pod to node; the pod's status says the same, so that it outlives us."""
        self.places: list[Place] = []
        self.backoff: dict[str, Backoff] = {}
        self.protected: dict[str, int] = {}
        """Pods whose disruption budget said no, and until when they are left alone."""
        self.memory: dict[str, Memory] = {}

    def forget_pod(self, uid: str) -> None:
        """It is gone; the place of a moved one stays for its successor."""
        for known in (self.binding, self.evicting, self.promised, self.protected):
            known.pop(uid, None)

    def forget_job(self, job: str) -> None:
        self.memory.pop(job, None)
        self.backoff.pop(job, None)

    def failed(self, job: str, why: str, now_ms: int) -> Backoff:
        """A pod of this job could not be started: the next try waits longer, so that it keeps nobody from theirs.

        Pods that fail together are one failure.
        """
        if len(self.backoff) >= MANY:
            self.backoff = {id: one for id, one in self.backoff.items() if now_ms - one.until_ms < CALM_MS}
        before = self.backoff.get(job)
        if before and before.until_ms > now_ms:
            return before
        failures = before.failures + 1 if before and now_ms - before.until_ms < CALM_MS else 1
        wait_ms = min(FIRST_BACKOFF_MS << min(failures - 1, 16), MOST_BACKOFF_MS)
        self.backoff[job] = Backoff(now_ms + wait_ms, failures, why)
        return self.backoff[job]

    def holds_back(self, job: str, now_ms: int) -> Backoff | None:
        known = self.backoff.get(job)
        return known if known and known.until_ms > now_ms else None

    def places_of(self, job: str) -> list[Place]:
        return [place for place in self.places if place.job == job]

    def drop_places(self, gone: list[Place]) -> None:
        self.places = [place for place in self.places if place not in gone]

    def together_of(self, job: str) -> int:
        memory = self.memory.get(job)
        return 0 if memory is None else memory.together

    def remember(self, job: str, **what: object) -> None:
        self.memory[job] = msgspec.structs.replace(self.memory.get(job, Memory()), **what)
