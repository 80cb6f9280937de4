"""What the REST side asks of the manager: the state, intents, questions to the core, history, logs.

Place in the flow: HTTP ─handlers─▶ **ManagerPort** ─▶ manager. The REST side reads `state` and never writes to it:
everything that changes anything is an intent. Who may ask is settled before, in authorise.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from gpuyard.model.difference import Difference
from gpuyard.model.explanation import Explanation, Forecast, QueueStanding
from gpuyard.model.plan import Plan
from gpuyard.model.reasons import Reason
from gpuyard.model.snapshot import Change, Snapshot
from gpuyard.service.issues import Issues
from gpuyard.service.soundness import Soundness
from gpuyard.service.stats import Stats
from gpuyard.wire.access import Caller
from gpuyard.wire.agents import AttemptId, LogPiece
from gpuyard.worlds.standalone.intents import Intent, Submission
from gpuyard.worlds.standalone.records import JobRecord, State
from gpuyard.worlds.standalone.store.port import DailySum, Entry


class Done(msgspec.Struct, frozen=True):
    """An intent that is durable."""

    revision: int
    """The last entry of the log it led to."""
    jobs: tuple[str, ...] = ()
    """The jobs it made or touched."""


class DryRun(msgspec.Struct, frozen=True):
    """What an intent would do."""

    difference: Difference
    jobs: tuple[JobRecord, ...] = ()
    """Those it would submit, by the ids they would get now."""


class Subscription(Protocol):
    """What happens from some entry on. It ends when the manager stops, or when its reader was too slow."""

    last_seq: int
    """The last entry that was handed out."""

    def __aiter__(self) -> AsyncIterator[Entry]: ...

    def close(self) -> None:
        """Nobody reads any more. May be called twice."""


ParcelSource = Callable[[str], Awaitable[bytes | None]]
"""Whoever keeps what jobs bring along: by digest; None where it is not kept (any more)."""


class ManagerPort(Protocol):
    """The manager, as the REST side sees it."""

    @property
    def state(self) -> State:
        """Everything, newest; only to read."""

    @property
    def now_ms(self) -> Callable[[], int]: ...

    @property
    def stats(self) -> Stats: ...

    @property
    def database(self) -> str:
        """What the state is kept in, for people."""

    @property
    def soundness(self) -> Soundness:
        """Whether the database holds what was written."""

    @property
    def ready(self) -> bool:
        """The state is loaded and the loop runs."""

    @property
    def unready(self) -> str:
        """Why nothing new can be recorded, in words that say nothing else; empty: it can."""

    def heard_at_ms(self, node: str) -> int:
        """When a machine was last heard of; after a restart, when that was."""

    parcels: ParcelSource | None
    """Set by the face that keeps some; machines get from there what the jobs given to them bring along."""

    async def do(self, intent: Intent, caller: Caller) -> Done:
        """Durable when it returns; RefusedError where the state refuses it."""

    async def note(self, about: str, what: str, team: str, caller: Caller) -> None:
        """For the audit: what somebody did beside the state. Durable when it returns."""

    async def dry_run(self, intent: Intent, caller: Caller) -> DryRun:
        """Who would start, stop or wait. Nothing is done; refused as `do` would."""

    async def explain(self, job: str) -> Explanation: ...

    async def plan_with(self, submission: Submission, caller: Caller) -> tuple[Plan, Snapshot]:
        """The next plan with this job in it, and what it was made from."""

    async def never(self, submission: Submission) -> tuple[Reason, ...]:
        """What keeps it from ever running on this cluster; empty where it can."""

    async def what_if(self, changes: tuple[Change, ...]) -> Difference: ...

    async def forecasts(self, jobs: Sequence[str]) -> dict[str, Forecast]: ...

    def waiting_reasons(self, job: str) -> tuple[Reason, ...]:
        """Of the last cycle."""

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
        """Newest first, as `Store.history`."""

    async def sums(self, since_day: str, until_day: str) -> list[DailySum]:
        """Use by day, the running day included."""

    def subscribe(self, after_seq: int | None) -> Subscription:
        """Durable entries after that one; None: from now on."""

    async def read_log(self, id: AttemptId, offset: int, limit: int, wait_ms: int, since_ms: int = 0) -> LogPiece: ...

    def gpu_use(self) -> Mapping[tuple[str, int], int]:
        """(job, task) → per cent its GPUs were used, as its machine last said."""

    async def snapshot(self) -> Snapshot:
        """The state as the core sees it."""

    def issues(self) -> Issues:
        """What cannot be planned on or done at the moment."""

    def standing(self) -> tuple[QueueStanding, ...]:
        """What each queue is owed, holds and wants; where a plan is just being made, before it."""

    async def standing_now(self) -> tuple[QueueStanding, ...]:
        """The same, after whatever is just being planned."""
