"""An exception in planning takes out its cause and nothing else, and never leaves the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.errors import NotRecordedError
from gpuyard.loop import loop as loop_module
from gpuyard.loop.containment import FIRST_PAUSE_MS, MAX_PAUSE_MS, Pause, Trouble
from gpuyard.loop.disabled import RETRY_MS
from gpuyard.loop.loop import Loop
from gpuyard.loop.stand_ins import Kind, Subject, without
from gpuyard.model.jobs import Job, TaskState
from gpuyard.model.nodes import Device, Node
from gpuyard.model.plan import Action, Bind, Plan, Promise
from gpuyard.model.queues import Queue
from gpuyard.model.reasons import Token
from gpuyard.model.snapshot import Change, JobGone, JobSeen, NodeSeen, QueuesSet, Snapshot, TimePassed
from gpuyard.policies.policy import DEFAULT, Policy
from gpuyard.scheduler import cycle as cycle_module
from gpuyard.scheduler import verify as verify_module
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.nodestate import NodeFrame, NodeState
from gpuyard.scheduler.placement import Placer
from gpuyard.scheduler.queuebook import QueueBook
from tests.builders import a_cluster, a_job
from tests.strategies import clusters


class PoisonedError(Exception):
    """Raised by a function of the scheduler on purpose."""


class OneWorld:
    """A world that a test changes by hand; what is done in it is noted, and tasks that are bound run."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now = snapshot
        self.changes: list[Change] = []
        self.acted: list[Action] = []
        self.fails: Callable[[Sequence[Action]], None] = lambda _: None

    def snapshot(self) -> Snapshot:
        self.changes.clear()
        return self.now

    def observe(self) -> Sequence[Change]:
        changes, self.changes = self.changes, []
        return [TimePassed(self.now.now_ms), *changes]

    def act(self, actions: Sequence[Action]) -> None:
        self.fails(actions)
        self.acted += actions
        for action in actions:
            if isinstance(action, Bind):
                job = next(job for job in self.now.jobs if job.id == action.job)
                tasks = tuple(
                    replace(task, state=TaskState.RUNNING, node=action.node, shares=action.shares)
                    if task.id == action.task
                    else task
                    for task in job.tasks
                )
                self.job(replace(job, tasks=tasks))

    def job(self, job: Job) -> None:
        self.now = replace(self.now, jobs=(*(one for one in self.now.jobs if one.id != job.id), job))
        self.changes.append(JobSeen(job))

    def job_gone(self, id: str) -> None:
        self.now = replace(self.now, jobs=tuple(one for one in self.now.jobs if one.id != id))
        self.changes.append(JobGone(id))

    def node(self, node: Node) -> None:
        self.now = replace(self.now, nodes=(*(one for one in self.now.nodes if one.name != node.name), node))
        self.changes.append(NodeSeen(node))

    def queues(self, queues: tuple[Queue, ...]) -> None:
        self.now = replace(self.now, queues=queues)
        self.changes.append(QueuesSet(queues))

    @property
    def bound(self) -> dict[str, str]:
        return {action.job: action.node for action in self.acted if isinstance(action, Bind)}


class Yard:
    """A loop on one world, with a clock that a test sets."""

    def __init__(self, snapshot: Snapshot, policy: Policy = DEFAULT) -> None:
        self.world = OneWorld(snapshot)
        self.steady_ms = 0
        self.loop = Loop(self.world, policy, lambda: self.steady_ms)
        self.told: list[Trouble] = []
        self.loop.containment.reports.listen(self.told.append)

    @property
    def out(self) -> list[str]:
        return [str(one.subject) for one in self.loop.containment.left]


def poison_job(monkeypatch: pytest.MonkeyPatch, *ids: str) -> None:
    place = Placer.place

    def poisoned(self: Placer, waiter: Waiter) -> bool:
        if waiter.job.id in ids:
            raise PoisonedError(waiter.job.id)
        return place(self, waiter)

    monkeypatch.setattr(Placer, "place", poisoned)


def poison_node(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    less = NodeState.less

    def poisoned(self: NodeState, request: object, shares: object, frame: NodeFrame) -> NodeState:
        if frame.node.name in names:
            raise PoisonedError(frame.node.name)
        return less(self, request, shares, frame)  # type: ignore[arg-type]

    monkeypatch.setattr(NodeState, "less", poisoned)


def poison_queue(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    claim = QueueBook._claim

    def poisoned(self: QueueBook, frame: object, position: int, resource: str) -> object:
        if frame.name == name:  # type: ignore[attr-defined]
            raise PoisonedError(name)
        return claim(self, frame, position, resource)  # type: ignore[arg-type]

    monkeypatch.setattr(QueueBook, "_claim", poisoned)


def three_jobs() -> Snapshot:
    cluster = a_cluster().nodes(2, gpus=2).queue("vision", quota=2).queue("speech", quota=2)
    jobs = (a_job(id).team(team).gpus(1) for id, team in (("a", "vision"), ("b", "vision"), ("c", "speech")))
    return cluster.jobs(*jobs).snapshot()


# --------------------------------------------------------------------------------------------------- who is the cause


def test_a_job_that_makes_planning_fail_is_left_out_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_job(monkeypatch, "b")
    yard = Yard(three_jobs())
    yard.loop.cycle()
    assert sorted(yard.world.bound) == ["a", "c"]
    assert yard.out == ["job b"]
    (reason,) = yard.loop.why_waiting["b"]
    assert reason.token is Token.PLANNING_FAILED
    assert reason.subject.startswith("job b: PoisonedError (plan-")
    assert yard.loop.containment.pause is None


def test_a_node_that_makes_planning_fail_counts_as_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_node(monkeypatch, "node-1")
    yard = Yard(three_jobs())
    yard.loop.cycle()
    assert yard.out == ["node node-1"]
    assert set(yard.world.bound.values()) == {"node-2"}
    assert len(yard.world.bound) == 2


def test_a_single_job_is_not_blamed_for_a_node_it_could_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without either of them planning works; without the node the job runs."""
    poison_node(monkeypatch, "node-1")
    yard = Yard(a_cluster().nodes(2, gpus=2).queue("team", quota=4).jobs(a_job("only").gpus(1)).snapshot())
    yard.loop.cycle()
    assert (yard.out, yard.world.bound) == (["node node-1"], {"only": "node-2"})


def test_a_queue_that_makes_planning_fail_is_left_out_with_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_queue(monkeypatch, "vision")
    yard = Yard(three_jobs())
    yard.loop.cycle()
    assert (yard.out, sorted(yard.world.bound)) == (["queue vision"], ["c"])
    assert all(yard.loop.why_waiting[id][0].token is Token.PLANNING_FAILED for id in ("a", "b"))


def test_several_jobs_may_be_the_cause_together(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_job(monkeypatch, "a", "c")
    yard = Yard(three_jobs())
    yard.loop.cycle()
    assert (yard.out, sorted(yard.world.bound)) == (["job a", "job c"], ["b"])


def test_what_runs_of_a_job_that_is_left_out_keeps_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster().nodes(1, gpus=2).queue("team", quota=2)
    runs = a_job("runs").gpus(1).tasks(2, gang=1).on("node-1", 0)
    yard = Yard(cluster.jobs(runs, a_job("new").gpus(2)).snapshot())
    poison_job(monkeypatch, "runs")
    yard.loop.cycle()
    assert yard.out == ["job runs"]
    assert (yard.world.bound, "new" in yard.loop.why_waiting) == ({}, True)
    assert not any(isinstance(action, Bind | Promise) for action in yard.world.acted)


# ----------------------------------------------------------------------------------------------------- out of range


def test_a_node_out_of_range_in_a_stored_state_is_left_out_from_the_first_cycle_on() -> None:
    """As a database of today may hold it: 64 devices, CPU and memory of 2^64-1."""
    devices = tuple(Device(memory_mib=80_000) for _ in range(64))
    liar = Node("liar", devices, cpu_milli=(1 << 64) - 1, memory_bytes=(1 << 64) - 1, labels={"hostname": "liar"})
    snapshot = three_jobs()
    yard = Yard(replace(snapshot, nodes=(*snapshot.nodes, liar)))
    yard.loop.cycle()
    assert sorted(yard.world.bound) == ["a", "b", "c"]
    assert "liar" not in yard.world.bound.values()
    assert yard.out == ["node liar"]
    assert yard.loop.containment.failures == 0
    yard.world.node(replace(liar, devices=devices[:1], cpu_milli=1, memory_bytes=1))
    yard.loop.cycle()
    assert yard.out == []


def test_a_job_out_of_range_waits_and_nobody_else_does() -> None:
    snapshot = three_jobs()
    bad = next(job for job in snapshot.jobs if job.id == "a")
    bad = replace(bad, tasks=(replace(bad.tasks[0], request=replace(bad.tasks[0].request, memory_bytes=1 << 80)),))
    yard = Yard(snapshot)
    yard.world.job(bad)
    yard.loop.cycle()
    assert (yard.out, sorted(yard.world.bound)) == (["job a"], ["b", "c"])
    assert "memory of a task" in yard.loop.why_waiting["a"][0].subject


# ------------------------------------------------------------------------------------------------- trying again


def test_what_was_left_out_is_tried_again_after_a_while_and_then_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    yard = Yard(three_jobs())
    with monkeypatch.context() as patch:
        poison_job(patch, "b")
        yard.loop.cycle()
        yard.steady_ms = RETRY_MS - 1
        yard.loop.cycle()
        assert yard.loop.containment.failures == 1
        assert yard.loop.due_ms == RETRY_MS
        yard.steady_ms = RETRY_MS
        yard.loop.cycle()
        assert (yard.out, yard.loop.containment.failures) == (["job b"], 2)
        assert yard.loop.due_ms == RETRY_MS + 2 * RETRY_MS
    yard.steady_ms = 3 * RETRY_MS
    yard.loop.cycle()
    assert (yard.out, sorted(yard.world.bound)) == ([], ["a", "b", "c"])
    assert len(yard.told) == 1, "the same exception with the same cause is told once"


def test_an_object_that_has_changed_is_tried_again_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    yard = Yard(three_jobs())
    with monkeypatch.context() as patch:
        poison_job(patch, "b")
        yard.loop.cycle()
    yard.steady_ms = 15_000
    yard.loop.cycle()
    assert yard.out == ["job b"]
    job = next(job for job in yard.world.now.jobs if job.id == "b")
    yard.world.job(replace(job, priority=job.priority + 1))
    yard.loop.cycle()
    assert (yard.out, "b" in yard.world.bound) == ([], True)


def test_a_job_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_job(monkeypatch, "b")
    yard = Yard(three_jobs())
    yard.loop.cycle()
    yard.world.job_gone("b")
    yard.loop.cycle()
    assert (yard.out, "b" in yard.loop.why_waiting) == ([], False)


# --------------------------------------------------------------------------------------- where the cause cannot be told


def test_planning_that_always_fails_waits_longer_and_longer_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def always(ledger: Ledger, policy: Policy) -> Plan:
        nonlocal calls
        calls += 1
        raise RecursionError("no way")

    yard = Yard(three_jobs())
    with monkeypatch.context() as patch:
        patch.setattr(loop_module, "plan", always)
        yard.loop.cycle()
        assert yard.loop.containment.pause is not None
        assert "RecursionError: no way" in yard.loop.containment.pause.text
        asked = calls
        yard.loop.cycle()
        assert calls == asked, "it is not tried before its time"
        pauses = []
        for _ in range(10):
            assert yard.loop.due_ms is not None
            pauses.append(yard.loop.due_ms - yard.steady_ms)
            yard.steady_ms = yard.loop.due_ms
            yard.loop.cycle()
        assert pauses[:3] == [FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 4 * FIRST_PAUSE_MS]
        assert max(pauses) == MAX_PAUSE_MS
        assert (yard.out, yard.world.bound, len(yard.told)) == ([], {}, 1)
    yard.steady_ms = yard.loop.due_ms or 0
    yard.loop.cycle()
    assert (pause_of(yard), len(yard.world.bound)) == (None, 3)


def pause_of(yard: Yard) -> Pause | None:
    return yard.loop.containment.pause


def test_what_fails_on_every_second_call_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, calls = cycle_module.plan, 0

    def every_second(ledger: Ledger, policy: Policy) -> Plan:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise PoisonedError("now and then")
        return plan(ledger, policy)

    monkeypatch.setattr(loop_module, "plan", every_second)
    yard = Yard(three_jobs())
    for _ in range(4):
        yard.loop.cycle()
    assert (yard.out, len(yard.world.bound), len(yard.told)) == ([], 3, 1)


def test_books_that_cannot_follow_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Ledger, changes: Iterable[Change]) -> None:
        self.jobs.clear()
        raise PoisonedError("half done")

    monkeypatch.setattr(Ledger, "apply", broken)
    yard = Yard(three_jobs())
    for _ in range(3):
        yard.loop.cycle()
    assert len(yard.world.bound) == 3
    assert yard.loop.ledger.facts() == Ledger.of(yard.world.snapshot()).facts()
    assert [trouble.fault.step for trouble in yard.told] == ["follow"]


def test_books_that_cannot_be_made_with_a_job_are_made_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Ledger._account

    def poisoned(self: Ledger, job: Job) -> object:
        if job.id == "b" and any(task.state is TaskState.PENDING for task in job.tasks):
            raise PoisonedError("b")
        return account(self, job)

    monkeypatch.setattr(Ledger, "_account", poisoned)
    other = a_job("b").team("vision").fraction("0.5").job()
    yard = Yard(replace(three_jobs(), jobs=(*(job for job in three_jobs().jobs if job.id != "b"), other)))
    yard.loop.cycle()
    assert (yard.out, sorted(yard.world.bound)) == (["job b"], ["a", "c"])


def test_a_plan_that_cannot_be_verified_is_not_carried_out_and_its_cause_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verify_on = verify_module.verify_on

    def poisoned(plan: Plan, ledger: Ledger) -> object:
        if any(action.job == "b" for action in plan.actions):
            raise PoisonedError("b")
        return verify_on(plan, ledger)

    monkeypatch.setattr(loop_module, "verify_on", poisoned)
    yard = Yard(three_jobs())
    yard.loop.cycle()
    assert (yard.world.bound, yard.loop.due_ms) == ({}, 0)
    yard.loop.cycle()
    assert (yard.out, sorted(yard.world.bound)) == (["job b"], ["a", "c"])


def test_a_job_whose_actions_cannot_be_recorded_is_left_out() -> None:
    yard = Yard(three_jobs())

    def refuses(actions: Sequence[Action]) -> None:
        if any(action.job == "b" for action in actions):
            raise NotRecordedError("tasks-placed", "no", "b")

    yard.world.fails = refuses
    yard.loop.cycle()
    assert yard.world.bound == {}
    yard.loop.cycle()
    assert (yard.out, sorted(yard.world.bound)) == (["job b"], ["a", "c"])


def test_a_world_that_cannot_be_read_is_read_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:

        def fails(_: object) -> object:
            raise PoisonedError("unreadable")

        patch.setattr(OneWorld, "snapshot", fails)
        patch.setattr(OneWorld, "observe", fails)
        yard = Yard(three_jobs())
        yard.loop.cycle()
        assert yard.loop.stale
        assert yard.told
    yard.steady_ms = yard.loop.due_ms or 0
    yard.loop.cycle()
    assert len(yard.world.bound) == 3
    assert not yard.loop.stale


# ------------------------------------------------------------------------------------------------------------ property


@pytest.mark.slow
@given(clusters(), st.data())
def test_jobs_that_do_not_need_a_poisoned_job_get_the_plan_they_had_without_it(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    tried: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        watch_tries(patch, tried)
        schedule(snapshot)
    if not tried:
        return
    bad = data.draw(st.sampled_from(sorted(set(tried))))
    yard = Yard(snapshot)
    with pytest.MonkeyPatch.context() as patch:
        poison_job(patch, bad)
        decided = yard.loop.plan()
    assert yard.out == [f"job {bad}"]
    expected = schedule(without_job(snapshot, bad))
    assert decided.actions == expected.actions
    assert decided.waiting == expected.waiting


@pytest.mark.slow
@given(clusters(), st.data())
def test_jobs_get_the_plan_they_had_without_a_poisoned_node(snapshot: Snapshot, data: st.DataObject) -> None:
    used = sorted({action.node for action in schedule(snapshot).actions if isinstance(action, Bind)})
    if not used:
        return
    bad = data.draw(st.sampled_from(used))
    yard = Yard(snapshot)
    with pytest.MonkeyPatch.context() as patch:
        poison_node(patch, bad)
        decided = yard.loop.plan()
    closed = tuple(replace(node, ready=False) if node.name == bad else node for node in snapshot.nodes)
    expected = schedule(replace(snapshot, nodes=closed))
    (out, *others) = yard.loop.containment.left
    if out.subject == Subject(Kind.NODE, bad) and not out.stripped:
        assert (decided, others) == (expected, [])
    elif out.subject.kind is Kind.JOB:
        # Left out in its stead, and nobody else has less by it.
        assert placed(decided) >= placed(expected)


def placed(plan: Plan) -> int:
    return sum(isinstance(action, Bind | Promise) for action in plan.actions)


def watch_tries(patch: pytest.MonkeyPatch, tried: list[str]) -> None:
    place = Placer.place

    def noted(self: Placer, waiter: Waiter) -> bool:
        tried.append(waiter.job.id)
        return place(self, waiter)

    patch.setattr(Placer, "place", noted)


def without_job(snapshot: Snapshot, id: str) -> Snapshot:
    return without(snapshot, [Subject(Kind.JOB, id)], stripped=False)
