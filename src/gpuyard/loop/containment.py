"""What becomes of an exception in planning: its cause is left out, or planning waits; the process goes on.

Place in the flow: loop ─exception─▶ **containment** ─books without the cause─▶ loop; ─reports─▶ whoever runs it: the
manager, the Kubernetes scheduler, the simulation. No I/O: clock and listeners are given.
Invariants: nothing but the cause is affected; an exception is reported once, however often it comes.
"""

from __future__ import annotations

import traceback
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from gpuyard.errors import NotRecordedError
from gpuyard.loop.disabled import Disabled, Fault, Left
from gpuyard.loop.evidence import suspects
from gpuyard.loop.search import Found, Search
from gpuyard.loop.stand_ins import Kind, Subject
from gpuyard.model.plan import Plan
from gpuyard.model.snapshot import Change, JobSeen, NodeSeen, QueuesSet, Snapshot
from gpuyard.scheduler.ledger import Ledger

FIRST_PAUSE_MS: Final = 1_000
MAX_PAUSE_MS: Final = 60_000
"""Where the cause cannot be told planning is tried again after this, at the latest."""
MAX_WHY: Final = 300
"""Characters of an exception that people are shown; the log has all of it."""
MAX_TRACE: Final = 20_000
"""Characters of a traceback; its end is kept."""
MAX_REPORTED: Final = 1_000
"""Exceptions of which it is remembered that they were reported."""
MAX_RECENT: Final = 100_000
"""Objects of which it is remembered that they have changed since planning last worked."""

PlanOn = Callable[[Ledger], Plan]
"""Plan on these books, and verify the plan on them; whatever fails raises."""


class Trouble(msgspec.Struct, frozen=True):
    """One exception as it is reported: once."""

    fault: Fault
    left_out: tuple[Disabled, ...] = ()
    """What is left out because of it; empty: the cause could not be told, or is gone already."""
    waits: bool = False
    """Nothing is planned for a while."""
    item: str = ""
    """What failed, where that is no part of planning."""

    @property
    def text(self) -> str:
        """As a line of a log."""
        head = f"{self.fault.step} failed ({self.fault.id}): {self.fault.why}"
        if self.item:
            return f"{self.item}: {head}; everything else goes on, and it is tried again"
        if self.left_out:
            return f"{head}; left out of planning: {', '.join(str(one.subject) for one in self.left_out)}"
        if self.waits:
            return f"{head}; the cause cannot be told: what runs goes on, nothing new starts, and it is tried again"
        return f"{head}; it worked on books made again"


class Pause(msgspec.Struct, frozen=True):
    """Planning fails, and nothing can be told to be the cause."""

    fault: Fault
    since_ms: int
    failures: int
    retry_ms: int

    @property
    def text(self) -> str:
        """As a sentence for people."""
        return (
            f"planning fails, so that nothing new starts: {self.fault.step}: {self.fault.why} "
            f"({self.fault.id} in the log, {self.failures} times); what runs goes on; report it"
        )


class Reports:
    """Tells listeners of each trouble once."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[Trouble], None]] = []
        self._unheard: list[Trouble] = []
        """What was reported while nobody listened."""
        self._reported: set[str] = set()

    def listen(self, listener: Callable[[Trouble], None]) -> None:
        """Be told of every trouble, also of those before."""
        self.listeners.append(listener)
        unheard, self._unheard = self._unheard, []
        for trouble in unheard:
            listener(trouble)

    def add(self, trouble: Trouble) -> None:
        out = [one.subject for one in trouble.left_out]
        key = f"{trouble.fault.id} {out} {trouble.waits} {trouble.item}"
        if key in self._reported or len(self._reported) >= MAX_REPORTED:
            return
        self._reported.add(key)
        if not self.listeners:
            self._unheard.append(trouble)
        for listener in self.listeners:
            listener(trouble)


class Containment:
    """What is known of a loop's exceptions. `now_ms` is steady: it never jumps."""

    def __init__(self, plan_on: PlanOn, now_ms: Callable[[], int]) -> None:
        self.left = Left()
        self.pause: Pause | None = None
        self.reports = Reports()
        self.failures = 0
        """Exceptions since the start."""
        self._plan_on = plan_on
        self._now_ms = now_ms
        self._recent: dict[Subject, None] = {}

    @property
    def waiting(self) -> bool:
        """Whether planning is not to be tried now."""
        return self.pause is not None and self._now_ms() < self.pause.retry_ms

    @property
    def due_ms(self) -> int | None:
        """When something is to be tried again."""
        times = [one.retry_ms for one in self.left.failing.values()]
        return min(times if self.pause is None else [*times, self.pause.retry_ms], default=None)

    def admit(self, changes: Sequence[Change]) -> list[Change]:
        """The changes as they are planned on."""
        admitted = self.left.admit(changes, self._now_ms())
        if len(self._recent) < MAX_RECENT:
            self._recent.update(dict.fromkeys(_subjects(admitted)))
        return admitted

    def worked(self) -> None:
        """A whole cycle has worked: what was tried again is all right."""
        self.pause = None
        self._recent.clear()
        self.left.settled()

    # ---------------------------------------------------------------------------------------------------------- books

    def books(self, real: Snapshot) -> Ledger | None:
        """Return the books of a world, or where they cannot be made of all of it, of the rest; None where of none."""
        planned = self.left.snapshot(real)
        try:
            return Ledger.of(planned)
        except Exception as error:
            self.failures += 1
            found = self._search(planned, lambda snapshot: _nothing_planned(Ledger.of(snapshot)), error)
            if found is None:
                self.wait(error, "follow")
                return None
            return self._leave_out(found, real, fault_of(error, "follow"))

    def recover(self, ledger: Ledger, error: Exception, step: str) -> tuple[Ledger, Plan] | None:
        """Return books made again and a plan on them, if need be without the cause of the exception.

        None where the cause cannot be told: nothing is planned for a while then.
        """
        self.failures += 1
        real = self.left.real(ledger.snapshot())
        planned = self.left.snapshot(real)
        try:
            fresh = Ledger.of(planned)
            decided = self._plan_on(fresh)
        except Exception as again:
            found = self._search(planned, lambda snapshot: self._plan_on(Ledger.of(snapshot)), again)
            if found is None:
                self.wait(again, step)
                return None
            return self._leave_out(found, real, fault_of(again, step)), found.plan
        self.reports.add(Trouble(fault_of(error, step)))
        return fresh, decided

    def mended(self, error: Exception, step: str) -> None:
        """The books could not follow a change, and were made again."""
        self.failures += 1
        if self.pause is None:
            self.reports.add(Trouble(fault_of(error, step)))

    def _search(self, planned: Snapshot, plan_on: Callable[[Snapshot], Plan], error: Exception) -> Found | None:
        if isinstance(error, MemoryError):
            return None  # To plan again and again would only make it worse.

        def works(snapshot: Snapshot) -> Plan | None:
            try:
                return plan_on(snapshot)
            except Exception:
                return None

        search = Search(planned, works, suspects=suspects(error), recent=self._recent, steady_ms=self._now_ms)
        found = search.run()
        # One that comes and goes by itself is not the fault of what was left out when it went.
        return found if found is not None and works(planned) is None else None

    def _leave_out(self, found: Found, real: Snapshot, fault: Fault) -> Ledger:
        self.left.leave_out(found.subjects, fault, real, self._now_ms(), stripped=found.stripped)
        left_out = tuple(self.left.failing[subject] for subject in found.subjects)
        books = Ledger.of(self.left.snapshot(real))
        self.reports.add(Trouble(fault, left_out))
        return books

    # -------------------------------------------------------------------------------------------------------- reports

    def blame(self, job: str, ledger: Ledger, error: Exception, step: str) -> Ledger | None:
        """Leave out the job with which something failed."""
        self.failures += 1
        real = self.left.real(ledger.snapshot())
        fault = fault_of(error, step)
        self.left.leave_out([Subject(Kind.JOB, job)], fault, real, self._now_ms(), stripped=False)
        self.reports.add(Trouble(fault, (self.left.failing[Subject(Kind.JOB, job)],)))
        return self.books(real)

    def wait(self, error: Exception, step: str) -> None:
        """Plan nothing for a while: twice as long with every failure."""
        self.failures += 1
        now_ms, before = self._now_ms(), self.pause
        failures = 1 if before is None else before.failures + 1
        pause_ms = min(FIRST_PAUSE_MS << min(failures - 1, 16), MAX_PAUSE_MS)
        fault = fault_of(error, step)
        self.pause = Pause(fault, now_ms if before is None else before.since_ms, failures, now_ms + pause_ms)
        self.reports.add(Trouble(fault, waits=True))


def fault_of(error: Exception, step: str) -> Fault:
    """An exception as a value. Its number is made of its kind and of the lines it came through."""
    lines = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-8:]]
    number = zlib.crc32(f"{type(error).__name__} {lines}".encode())
    why = f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))[-MAX_TRACE:]
    return Fault(f"{step}-{number:08x}", why if len(why) <= MAX_WHY else f"{why[:MAX_WHY]}...", step, trace)


def job_of(error: Exception) -> str:
    """The job with which an action failed; empty where the exception does not say."""
    return error.job if isinstance(error, NotRecordedError) else ""


def _nothing_planned(_: Ledger) -> Plan:
    return Plan()


def _subjects(changes: Iterable[Change]) -> Iterable[Subject]:
    for change in changes:
        match change:
            case NodeSeen(node):
                yield Subject(Kind.NODE, node.name)
            case JobSeen(job):
                yield Subject(Kind.JOB, job.id)
            case QueuesSet(queues):
                yield from (Subject(Kind.QUEUE, queue.name) for queue in queues)
