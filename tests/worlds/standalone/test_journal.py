"""What is recorded together is entered as a whole or not at all, wherever it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from gpuyard.errors import NotRecordedError, RefusedError
from gpuyard.model.queues import Queue
from gpuyard.model.work import Array
from gpuyard.wire.access import Grant, Role, Scope
from gpuyard.wire.agents import AttemptId, AttemptReport, Ending, Phase
from gpuyard.worlds.standalone import journal as journal_module
from gpuyard.worlds.standalone.events import (
    DayClosed,
    Event,
    IdleNoticed,
    JobsForgotten,
    NodeDrained,
    NodeHeard,
    NodeLost,
    NodeRemoved,
    NodeSilent,
    Noted,
    UserRemoved,
)
from gpuyard.worlds.standalone.intents import CreateToken, SetTeams, SetUser
from gpuyard.worlds.standalone.journal import Journal
from gpuyard.worlds.standalone.meter import day_of
from gpuyard.worlds.standalone.records import Place, State
from gpuyard.worlds.standalone.undo import WatchedDict
from tests.worlds.standalone.yard import LEASE_MS, Yard, a_form, an_ending

DAY_MS = 86_400_000


class BrokenError(Exception):
    """Raised by a write on purpose."""


class Breaking:
    """Lets the write number `at`, counted from 0, fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = -1
        self.count = 0
        note = WatchedDict._note

        def counted(held: WatchedDict, key: object) -> None:
            self.count += 1
            if self.count - 1 == self.at:
                raise BrokenError(f"write {self.at}")
            note(held, key)

        monkeypatch.setattr(WatchedDict, "_note", counted)

    def set(self, at: int) -> None:
        self.at, self.count = at, 0


def as_written(state: State) -> State:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State)


def running(job: str, task: int) -> AttemptReport:
    return AttemptReport(AttemptId(job, task, 1), Phase.RUNNING, started_at_ms=1)


def a_busy_life(yard: Yard) -> Iterator[Callable[[], object]]:
    """Things that happen, each of which writes something else."""
    yield yard.submit
    yield lambda: yard.submit(a_form(tasks=2, least=1), after=("1",))
    yield lambda: yard.submit(array=Array((0, 1, 2), 1))
    yield lambda: yard.submit(a_form(tasks=2), afterok=("1",), held=True)
    yield lambda: yard.place("1")
    yield lambda: yard.report("a", an_ending("1", 0, 1, Ending.EXITED, 0))
    yield lambda: yard.place("2", node="b")
    yield lambda: yard.report("b", running("2", 0), running("2", 1))
    yield lambda: yard.enter(IdleNoticed("2", yard.now_ms))
    yield lambda: yard.evict("2", (1,), whole=False, next=Place("a", ()))
    yield lambda: yard.wait(DAY_MS)
    yield lambda: yard.stopped("2", 1)
    yield lambda: yard.place("3_0")
    yield lambda: yard.report("a", running("3_0", 0))
    yield lambda: yard.end("3_0")
    yield lambda: yard.steer("cancel", "3_1")
    yield lambda: yard.do(SetTeams((*yard.state.queues, Queue("third"))))
    yield lambda: yard.do(SetUser("bob", (Grant(Role.ADMIN),)))
    yield lambda: yard.do(CreateToken("t1", "", "bob", "0" * 64, Scope.FULL, yard.now_ms + DAY_MS))
    yield lambda: yard.enter(UserRemoved("bob"), NodeDrained("b"), NodeSilent("b"), NodeHeard("b"))
    yield lambda: yard.wait(10 * LEASE_MS)
    yield yard.tick
    yield lambda: yard.enter(NodeLost("b"), JobsForgotten(tuple(yard.state.finished)))
    yield lambda: yard.enter(DayClosed(day_of(yard.now_ms - DAY_MS)), NodeRemoved("b"))


def test_a_write_that_fails_undoes_everything_recorded_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each thing that happens, each of its writes fails once; then it happens, as if none had failed."""
    yard, untroubled, broken = Yard(), Yard(), Breaking(monkeypatch)
    told: list[Event] = []
    yard.journal.listeners.append(lambda event, _: told.append(event))
    failed = 0
    for happens, untroubled_happens in zip(a_busy_life(yard), a_busy_life(untroubled), strict=True):
        before, pending, heard = as_written(yard.state), list(yard.journal.pending), len(told)
        at = 0
        while True:
            broken.set(at)
            try:
                happens()
            except (NotRecordedError, BrokenError):
                failed += 1
                assert as_written(yard.state) == before
                assert (yard.journal.pending, len(told)) == (pending, heard)
                at += 1
                continue
            break
        broken.set(-1)
        untroubled_happens()
        assert as_written(yard.state) == as_written(untroubled.state)
    assert [entry.body for entry in yard.journal.pending] == [entry.body for entry in untroubled.journal.pending]
    assert failed > 80


def test_what_follows_from_an_event_is_entered_with_it_or_neither_is(monkeypatch: pytest.MonkeyPatch) -> None:
    yard = Yard()
    yard.submit()
    yard.run("1")
    before, pending = as_written(yard.state), len(yard.journal.pending)

    def fails(*_: object) -> Iterator[Event]:
        raise KeyError("1")

    monkeypatch.setattr(journal_module, "follow_ups", fails)
    with pytest.raises(NotRecordedError, match="cannot be recorded: what follows from it: KeyError"):
        yard.end("1")
    assert (as_written(yard.state), len(yard.journal.pending)) == (before, pending)
    monkeypatch.undo()
    yard.end("1")
    assert yard.job("1").over


def test_a_refusal_in_the_middle_takes_back_what_came_before_it() -> None:
    yard = Yard()
    before, pending = as_written(yard.state), list(yard.journal.pending)

    def events() -> Iterator[Event]:
        yield NodeDrained("a")
        assert yard.state.nodes["a"].drained  # The state is as after what was yielded so far.
        raise RefusedError("WrongState", "not now")

    with pytest.raises(RefusedError, match="not now"):
        yard.journal.record(events(), yard.now_ms)
    assert (as_written(yard.state), yard.journal.pending) == (before, pending)


def test_an_event_about_what_is_not_there_is_not_entered() -> None:
    yard = Yard()
    before, seq = as_written(yard.state), yard.state.seq
    with pytest.raises(NotRecordedError, match="a node-drained event cannot be recorded: KeyError: 'nowhere'"):
        yard.enter(NodeDrained("a"), NodeDrained("nowhere"))
    assert (as_written(yard.state), yard.state.seq) == (before, seq)


def test_listeners_hear_of_events_once_all_of_them_are_entered() -> None:
    journal = Journal(State())
    heard: list[tuple[int, int]] = []
    journal.listeners.append(lambda _, entry: heard.append((entry.seq, journal.state.seq)))
    journal.record([Noted("x", "first"), Noted("x", "second")], 1)
    assert heard == [(1, 2), (2, 2)]
