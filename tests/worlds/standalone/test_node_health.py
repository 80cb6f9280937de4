"""What an agent says of its node: refused where it is out of range, and entered only so often."""

from __future__ import annotations

from msgspec.structs import replace

from gpuyard.model.nodes import Device
from gpuyard.wire.agents import AttemptId, AttemptReport, Hello, Isolation, MachineFacts, Phase, Report
from gpuyard.worlds.standalone.lifecycle import JobState
from gpuyard.worlds.standalone.node_health import CHANGES_MS, CHANGES_TOO_OFTEN, MAX_CHANGES
from gpuyard.worlds.standalone.records import NodeRecord
from tests.worlds.standalone.yard import BEGIN_MS, Yard, facts

TOO_MANY = replace(facts(), devices=(Device(),) * 63)


def says(yard: Yard, said: MachineFacts | None, *attempts: AttemptReport, **more: str) -> NodeRecord:
    report = Report(yard.steady_ms + 1, attempts, said, **more)
    yard.journal.record(yard.hub.report("a", report, yard.steady_ms, yard.now_ms), yard.now_ms)
    return yard.state.nodes["a"]


def greets(yard: Yard, said: MachineFacts, incarnation: str = "first") -> NodeRecord:
    hello = Hello("a", incarnation, "boot-1", "0", said)
    yard.journal.record(yard.hub.hello(hello, yard.steady_ms), yard.now_ms)
    return yard.state.nodes["a"]


def run(id: str) -> AttemptReport:
    return AttemptReport(AttemptId(id, 0, 1), Phase.RUNNING, started_at_ms=BEGIN_MS)


def test_what_runs_on_an_unhealthy_node_runs_on_and_nothing_new_may_start() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    node = says(yard, TOO_MANY, run(id))
    assert "63 GPUs" in node.unhealthy
    assert node.facts == facts()
    assert yard.is_(id) is JobState.RUNNING
    assert [one.open for one in yard.ledger().snapshot().nodes] == [False, True]
    assert says(yard, None, run(id)).unhealthy, "a report without facts changes nothing"
    assert says(yard, facts(), run(id)).unhealthy == ""


def test_the_same_word_is_one_entry() -> None:
    yard = Yard()
    says(yard, TOO_MANY)
    before = yard.state.seq
    for _ in range(5):
        says(yard, TOO_MANY)
        greets(yard, TOO_MANY)
    assert yard.state.seq == before


def test_who_says_hello_out_of_range_is_who_it_says_it_is_with_the_facts_of_before() -> None:
    yard = Yard()
    node = greets(yard, TOO_MANY, "second")
    assert (node.incarnation, node.facts) == ("second", facts())
    assert node.unhealthy
    node = greets(yard, facts(), "second")
    assert (node.incarnation, node.unhealthy) == ("second", "")


def test_an_unhealthy_node_that_falls_silent_is_lost_as_any_other() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    says(yard, TOO_MANY, run(id))
    yard.wait(200_000)
    yard.tick()
    assert yard.state.nodes["a"].lost
    assert yard.is_(id) is JobState.WAITING


def test_in_a_flood_the_log_gets_some_changes_and_in_the_end_the_newest() -> None:
    yard = Yard()
    before = yard.state.seq
    for number in range(10 * MAX_CHANGES):
        node = says(yard, replace(facts(), cpu_milli=number))
    assert yard.state.seq - before == MAX_CHANGES + 1
    assert node.unhealthy == CHANGES_TOO_OFTEN
    yard.tick()
    assert yard.state.nodes["a"].unhealthy == CHANGES_TOO_OFTEN
    yard.wait(CHANGES_MS - 1)
    yard.report("a")
    yard.wait(1)
    yard.tick()
    node = yard.state.nodes["a"]
    assert (node.facts.cpu_milli, node.unhealthy) == (10 * MAX_CHANGES - 1, "")


def test_hellos_are_counted_too() -> None:
    yard = Yard()
    before = yard.state.seq
    for number in range(10 * MAX_CHANGES):
        greets(yard, replace(facts(), cpu_milli=number))
    assert yard.state.seq - before <= MAX_CHANGES + 1


def test_a_node_that_was_never_healthy_has_nothing_and_keeps_no_team_out() -> None:
    yard = Yard(machines=("b",))
    yard.state.nodes["a"] = NodeRecord("a", BEGIN_MS, fingerprint="of a")
    node = greets(yard, replace(TOO_MANY, isolation=Isolation.USERS))
    assert (node.facts, node.seen) == (MachineFacts(isolation=Isolation.USERS), True)
    assert node.unhealthy


def test_where_teams_must_not_share_a_user_no_report_takes_that_back() -> None:
    yard = Yard()
    apart = replace(facts(), isolation=Isolation.USERS)
    says(yard, apart)
    yard.state.shared_user_accepted = False
    assert "one and the same user" in says(yard, facts()).unhealthy
    assert yard.state.nodes["a"].facts.isolation is Isolation.USERS
    assert says(yard, apart).unhealthy == ""


def test_what_cannot_be_read_of_attempts_loses_none() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    assert "cannot be read" in says(yard, None, unreadable_attempts="Expected `int`").unhealthy
    assert yard.is_(id) is JobState.RUNNING
    assert says(yard, None, run(id)).unhealthy == ""


def test_how_busy_gpus_are_is_told_by_their_own_node_alone() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id, node="b")
    says(yard, None, replace(run(id), gpu_percent=0))
    assert yard.hub.contacts["a"].use == {}
    yard.report("b", replace(run(id), gpu_percent=70))
    assert yard.hub.contacts["b"].use == {(id, 0): 70}
    yard.hub.gone("b")
    assert yard.hub.contacts["b"].use == {}
