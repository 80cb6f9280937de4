"""Leases: what ran on a machine is called lost only when it must have ended, and what each agent is told."""

from __future__ import annotations

import pytest

from gpuyard.errors import RefusedError
from gpuyard.model.work import OnNodeLost
from gpuyard.wire.agents import AttemptId, AttemptReport, Ending, Phase
from gpuyard.worlds.standalone.events import LeaseSet
from gpuyard.worlds.standalone.hub import MARGIN_MS, Hub
from gpuyard.worlds.standalone.intents import RemoveNode
from gpuyard.worlds.standalone.lifecycle import JobState, TaskPhase
from gpuyard.worlds.standalone.records import State
from tests.worlds.standalone.yard import BEGIN_MS, GRACE_MS, LEASE_MS, Yard, an_ending

CERTAIN_MS = LEASE_MS + GRACE_MS + MARGIN_MS


def a_run(id: str) -> AttemptReport:
    return AttemptReport(AttemptId(id, 0, 1), Phase.RUNNING, started_at_ms=BEGIN_MS)


def test_a_machine_is_silent_after_its_lease_and_lost_after_grace_and_margin() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    yard.wait(LEASE_MS + 1)
    yard.tick()
    assert yard.state.nodes["a"].silent_since_ms is not None
    assert not yard.ledger().snapshot().nodes[0].open
    yard.wait(CERTAIN_MS - LEASE_MS - 1)
    yard.tick()
    assert yard.is_(id) is JobState.RUNNING
    yard.wait(1)
    yard.tick()
    assert (yard.state.nodes["a"].lost, yard.is_(id)) == (True, JobState.WAITING)


def test_a_machine_that_is_back_in_time_has_lost_nothing() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    yard.wait(LEASE_MS + 1)
    yard.tick()
    yard.hello("a")
    yard.wait(CERTAIN_MS - LEASE_MS)
    yard.tick()
    assert (yard.state.nodes["a"].silent_since_ms, yard.is_(id)) == (None, JobState.RUNNING)


def test_a_job_that_waits_for_its_machine_keeps_its_place_while_that_is_lost() -> None:
    yard = Yard()
    id = yard.submit(on_node_lost=OnNodeLost.WAIT)
    yard.run(id)
    yard.wait(CERTAIN_MS + 1)
    yard.tick()
    assert (yard.state.nodes["a"].lost, yard.is_(id)) == (True, JobState.RUNNING)


@pytest.mark.parametrize("first", ["lost", "asked"])
@pytest.mark.parametrize(("verb", "state"), [("cancel", JobState.CANCELLED), ("requeue", JobState.WAITING)])
def test_a_job_that_waits_for_its_machine_and_is_told_to_stop_waits_no_more(
    verb: str, state: JobState, first: str
) -> None:
    """What ran there has ended for certain: cancelled, it would have been stopping until somebody declared it lost."""
    yard = Yard()
    id = yard.submit(on_node_lost=OnNodeLost.WAIT)
    yard.run(id)
    if first == "asked":
        yard.steer(verb, id)
    yard.wait(CERTAIN_MS)
    yard.tick()
    if first == "lost":
        yard.wait(1)
        yard.tick()
        yard.steer(verb, id)
    assert yard.is_(id) is JobState.STOPPING
    yard.wait(1)
    yard.tick()
    assert yard.is_(id) is state


@pytest.mark.parametrize("choice", OnNodeLost)
def test_what_a_former_agent_ran_is_over_when_its_lease_must_be(choice: OnNodeLost) -> None:
    yard = Yard()
    id = yard.submit(on_node_lost=choice)
    yard.run(id)
    yard.hello("a", incarnation="second")
    yard.wait(CERTAIN_MS)
    yard.report("a")
    yard.tick()
    assert yard.is_(id) is JobState.RUNNING
    yard.wait(1)
    yard.tick()
    assert yard.task(id).ending is Ending.LOST


def test_after_a_restart_of_the_manager_every_machine_gets_a_whole_lease_again() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    yard.wait(CERTAIN_MS)
    yard.hub = Hub(yard.state, yard.steady_ms, LEASE_MS)
    yard.wait(LEASE_MS)
    yard.tick()
    assert (yard.state.nodes["a"].silent_since_ms, yard.is_(id)) == (None, JobState.RUNNING)


def test_a_machine_may_be_declared_lost_only_when_its_lease_is_over_also_after_a_restart() -> None:
    """What it was given may run until then, whatever the operator thinks (simulated seeds 70269, 70505, 70566)."""
    yard = Yard()
    yard.report("a")
    yard.wait(LEASE_MS - 1)
    with pytest.raises(RefusedError, match="may still run there, for another 1 s"):
        yard.hub.refuse_while_leased("a", yard.steady_ms)
    restarted = Hub(yard.state, yard.steady_ms, LEASE_MS)
    yard.wait(2)
    yard.hub.refuse_while_leased("a", yard.steady_ms)
    with pytest.raises(RefusedError):
        restarted.refuse_while_leased("a", yard.steady_ms)


def test_leases_of_a_manager_before_count_also_where_this_one_gives_shorter_ones() -> None:
    """Else a machine that is cut off would run what was started elsewhere (simulated seed 1005)."""
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    short = yard.hub = Hub(yard.state, yard.steady_ms, LEASE_MS // 10)
    assert list(short.opening()) == []
    yard.wait(LEASE_MS)
    yard.tick()
    assert not yard.state.nodes["a"].lost
    with pytest.raises(RefusedError):
        short.refuse_while_leased("a", yard.steady_ms)
    yard.wait(GRACE_MS + MARGIN_MS + 1)
    yard.tick()
    assert yard.state.nodes["a"].lost


def test_the_log_has_the_longest_lease_that_machines_may_have() -> None:
    """A longer one before it is given; a shorter one when the longer ones must be over, however often it restarts."""
    yard = Yard()
    longer = Hub(yard.state, yard.steady_ms, 2 * LEASE_MS)
    yard.enter(*longer.opening())
    assert yard.state.lease_ms == 2 * LEASE_MS
    for _ in range(3):
        yard.hub = Hub(yard.state, yard.steady_ms, LEASE_MS)
        yard.enter(*yard.hub.opening())
        yard.wait(LEASE_MS)
        yard.tick()
        assert yard.state.lease_ms == 2 * LEASE_MS
    yard.wait(LEASE_MS + 1)
    yard.tick()
    assert yard.state.lease_ms == LEASE_MS
    assert list(Hub(State(), 0).opening()) == []
    assert list(Hub(State(), 0, 5_000).opening()) == [LeaseSet(5_000)]


def test_a_removed_machine_that_still_speaks_changes_nothing() -> None:
    yard = Yard()
    yard.do(RemoveNode("a"))
    before = yard.state.seq
    yard.report("a", an_ending("1", 0, 1, Ending.EXITED, 0))
    yard.tick()
    assert yard.state.seq == before
    assert "a" not in yard.hub.due()


def test_an_agent_is_told_what_should_run_there_and_the_stamp_it_sent_last() -> None:
    yard = Yard()
    id = yard.submit()
    yard.place(id)
    yard.wait(500)
    yard.report("a")
    told = yard.hub.due()
    assert list(told) == ["a"]
    assert told["a"].echo_ms == yard.steady_ms + 1
    assert [assignment.id.job for assignment in told["a"].assignments] == [id]
    assert yard.hub.due() == {}


def test_what_was_given_to_a_former_agent_is_not_given_to_the_next() -> None:
    yard = Yard()
    id = yard.submit()
    yard.place(id)
    yard.hello("a", incarnation="second")
    yard.report("a")
    assert yard.hub.due()["a"].assignments == ()
    assert yard.task(id).phase is TaskPhase.ASSIGNED


def test_nobody_is_told_anything_while_not_connected() -> None:
    yard = Yard()
    yard.hub.gone("a")
    yard.hub.touch("a")
    assert "a" not in yard.hub.due()


def test_while_nothing_can_be_written_an_agent_is_told_again_what_it_was_told_for_a_further_lease() -> None:
    yard = Yard()
    running = yard.submit()
    yard.run(running)
    yard.report("a", a_run(running))
    sent = yard.hub.due()
    yard.hub.sent(sent)
    assert list(yard.hub.renewals()) == []
    yard.wait(500)
    yard.place(yard.submit(), node="a")
    yard.report("a", a_run(running))
    unsent = yard.hub.due()["a"]
    ((name, told),) = yard.hub.renewals()
    assert (name, told.assignments, told.recorded) == ("a", sent["a"].assignments, sent["a"].recorded)
    assert told.echo_ms == unsent.echo_ms == yard.steady_ms + 1
    assert list(yard.hub.renewals()) == []
    # Once it is written, and from then on, that counts.
    yard.hub.sent({"a": unsent})
    yard.wait(500)
    yard.report("a", a_run(running))
    assert [told.assignments for _, told in yard.hub.renewals()] == [unsent.assignments]


def test_who_has_connected_since_is_told_nothing_of_what_the_agent_before_it_was_told() -> None:
    """It may be another one, which would start what the former one still runs."""
    yard = Yard()
    yard.run(yard.submit())
    yard.report("a")
    sent = yard.hub.due()
    yard.hub.sent(sent)
    late = yard.hub.due()
    yard.hello("a", incarnation="second")
    yard.hub.sent({**late, **sent})
    yard.wait(500)
    yard.report("a")
    assert list(yard.hub.renewals()) == []
