"""A journal with machines and teams in it, in which a test lets things happen one by one."""

from __future__ import annotations

import msgspec

from gpuyard.model.jobs import DeviceShare, Job, Request, Task, TaskGroup, on_nodes
from gpuyard.model.nodes import Device
from gpuyard.model.quantities import GPU, MILLI
from gpuyard.model.queues import Queue, QueueShare
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.work import Array, OnNodeLost, Work
from gpuyard.scheduler.ledger import Ledger
from gpuyard.wire.agents import AttemptId, AttemptReport, Ending, Hello, MachineFacts, Phase, Report
from gpuyard.worlds.standalone.decide import decide
from gpuyard.worlds.standalone.events import (
    AttemptBegan,
    AttemptEnded,
    Event,
    Leaving,
    Placing,
    SharedUserAccepted,
    TasksPlaced,
    TasksStopped,
)
from gpuyard.worlds.standalone.hub import Hub
from gpuyard.worlds.standalone.intents import AdmitNode, Intent, ScaleJob, SetTeams, Steer, Submission, Submit
from gpuyard.worlds.standalone.journal import Journal
from gpuyard.worlds.standalone.lifecycle import JobState, TaskPhase
from gpuyard.worlds.standalone.records import JobRecord, Place, State, TaskRecord, Then
from gpuyard.worlds.standalone.snapshot import snapshot_of

LEASE_MS = 60_000
GRACE_MS = 1_000
MEMORY_MIB = 16_000
BEGIN_MS = 1_700_000_000_000
FOR_ANOTHER = Reason(Token.RECLAIMED, beneficiary="other")


def facts(gpus: int = 4) -> MachineFacts:
    devices = tuple(Device(memory_mib=MEMORY_MIB) for _ in range(gpus))
    return MachineFacts(devices, cpu_milli=64_000, memory_bytes=1 << 40)


def a_form(team: str = "vision", tasks: int = 1, least: int | None = None, gpus: int = 1, **more: object) -> Job:
    one = Task("", Request(devices=gpus))
    group = TaskGroup(min_tasks=tasks if least is None else least)
    return msgspec.structs.replace(Job("", team, (one,) * tasks, group), **more)


def on_nodes_form(nodes: int, per_node: int, least: int | None = None) -> Job:
    """So many tasks on each of so many nodes, at least on `least` of them."""
    group = on_nodes(nodes, per_node, nodes if least is None else least)
    tasks = (Task("", Request(devices=1), child.name) for child in group.children for _ in range(per_node))
    return Job("", "vision", tuple(tasks), group)


def an_ending(id: str, task: int, attempt: int, ending: Ending, code: int | None = None) -> AttemptReport:
    return AttemptReport(
        AttemptId(id, task, attempt), Phase.ENDED, started_at_ms=BEGIN_MS, ending=ending, exit_code=code
    )


class Yard:
    """Machines `a` and `b`, with teams `vision` and `speech`; time stands still unless `wait` is called."""

    def __init__(self, machines: tuple[str, ...] = ("a", "b")) -> None:
        self.journal = Journal(State())
        self.now_ms = BEGIN_MS
        self.hub = Hub(self.state, 0, LEASE_MS)
        self.enter(SharedUserAccepted())
        self.do(SetTeams(tuple(Queue(name, shares=(QueueShare(GPU, 2 * MILLI),)) for name in ("vision", "speech"))))
        for name in machines:
            self.do(AdmitNode(name, f"certificate of {name}"))
            self.hello(name)

    @property
    def state(self) -> State:
        return self.journal.state

    @property
    def steady_ms(self) -> int:
        return self.now_ms - BEGIN_MS

    def wait(self, how_long_ms: int) -> None:
        self.now_ms += how_long_ms

    # ------------------------------------------------------------------------------------------------- what happens

    def do(self, intent: Intent) -> None:
        self.journal.record(decide(self.state, intent, self.now_ms), self.now_ms, "ann")

    def enter(self, *events: Event) -> None:
        self.journal.record(events, self.now_ms)

    def submit(
        self,
        form: Job | None = None,
        *,
        after: tuple[str, ...] = (),
        afterok: tuple[str, ...] = (),
        array: Array | None = None,
        retries: int = 0,
        on_node_lost: OnNodeLost = OnNodeLost.RESTART,
        held: bool = False,
    ) -> str:
        """Its id; of an array, that of the array."""
        work = Work(("train",), retries=retries, on_node_lost=on_node_lost, grace_ms=GRACE_MS)
        id = str(self.state.next_job)
        self.do(Submit(Submission("job", "ann", form or a_form(), work, array, after, afterok, held)))
        return id

    def steer(self, verb: str, id: str) -> None:
        self.do(Steer(id, verb))

    def scale(self, id: str, tasks: int, least: int | None = None) -> None:
        self.do(ScaleJob(id, tasks, least))

    def place(self, id: str, tasks: tuple[int, ...] | None = None, node: str = "a") -> None:
        """A plan gives these tasks a GPU each, beginning with the first of the machine."""
        chosen = tuple(range(len(self.job(id).tasks))) if tasks is None else tasks
        placings = tuple(
            Placing(
                task,
                Place(node, (DeviceShare(position % 8, MILLI, MEMORY_MIB),)),
                Reason(Token.PLACED),
                self.task(id, task).attempt + 1,
            )
            for position, task in enumerate(chosen)
        )
        self.enter(TasksPlaced(id, self.state.cycle + 1, placings))

    def run(self, id: str, tasks: tuple[int, ...] | None = None, node: str = "a") -> None:
        """Placed and begun."""
        self.place(id, tasks, node)
        for task in range(len(self.job(id).tasks)) if tasks is None else tasks:
            self.enter(AttemptBegan(id, task, self.task(id, task).attempt, node, self.now_ms))

    def evict(self, id: str, tasks: tuple[int, ...], *, whole: bool, next: Place | None = None) -> None:
        leaving = tuple(Leaving(task, FOR_ANOTHER, next) for task in tasks)
        self.enter(TasksStopped(id, leaving, self.state.cycle + 1, Then.REQUEUE if whole else None))

    def end(self, id: str, task: int = 0, *, code: int | None = 0, ending: Ending = Ending.EXITED) -> None:
        record = self.task(id, task)
        assert record.place is not None
        done = ending is Ending.EXITED and code == 0
        self.enter(
            AttemptEnded(id, task, record.attempt, record.place.node, ending, self.now_ms, exit_code=code, done=done)
        )

    def stopped(self, id: str, task: int = 0) -> None:
        """It was asked to stop and has."""
        self.end(id, task, code=None, ending=Ending.STOPPED)

    # ------------------------------------------------------------------------------------------------------ of agents

    def hello(self, name: str, incarnation: str = "first", boot: str = "boot-1", gpus: int = 4) -> None:
        said = Hello(name, incarnation, boot, "0", facts(gpus))
        self.journal.record(self.hub.hello(said, self.steady_ms), self.now_ms, f"node/{name}")

    def report(self, name: str, *attempts: AttemptReport) -> None:
        told = Report(self.steady_ms + 1, attempts)
        self.journal.record(self.hub.report(name, told, self.steady_ms, self.now_ms), self.now_ms, f"node/{name}")

    def tick(self) -> None:
        self.journal.record(self.hub.tick(self.steady_ms, self.now_ms), self.now_ms)

    # --------------------------------------------------------------------------------------------------- how it stands

    def job(self, id: str) -> JobRecord:
        return self.state.jobs[id]

    def is_(self, id: str) -> JobState:
        return self.job(id).state

    def task(self, id: str, task: int = 0) -> TaskRecord:
        return self.job(id).tasks[task]

    def phases(self, id: str) -> list[TaskPhase]:
        return [task.phase for task in self.job(id).tasks]

    def ledger(self) -> Ledger:
        return Ledger.of(snapshot_of(self.state, self.now_ms))
