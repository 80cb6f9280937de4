"""What the agent's core promises, whatever the network and the machine do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.agent.core import NOT_WANTED, Core, Identity
from gpuyard.model.nodes import Device
from gpuyard.wire.agents import AttemptId, Desired, MachineFacts, Phase, Report, Stop, Welcome
from tests.agent.core_world import LEASE_MS, MadeUpRuntime, World, an_assignment

JOB = AttemptId("job", 0, 1)

STEPS: dict[str, Callable[[World, int], None]] = {
    "wait": lambda world, number: world.wait(number * 20),
    "wait long": lambda world, number: world.wait(number * 200),
    "round": lambda world, number: world.round(),
    "report": lambda world, number: world.report(),
    "say": lambda world, number: world.say(),
    "carry up": lambda world, number: world.carry_up(number, again=False),
    "repeat up": lambda world, number: world.carry_up(number, again=True),
    "carry down": lambda world, number: world.carry_down(number, again=False),
    "repeat down": lambda world, number: world.carry_down(number, again=True),
    "lose up": lambda world, number: world.lose_up(),
    "lose down": lambda world, number: world.lose_down(),
    "submit": lambda world, number: world.manager.submit(),
    "stop": lambda world, number: world.manager.stop_one(),
    "task ends": lambda world, number: world.end_one(),
    "give up": lambda world, number: world.manager.give_up_on_machine(world.now_ms),
    "agent killed": lambda world, number: world.boot(),
    "reconnect": lambda world, number: world.connect(),
}

often = ["round", "round", "round", "submit", "wait", "wait long", "say", "carry down", "repeat down"]
lives = st.lists(st.tuples(st.sampled_from([*STEPS, *often]), st.integers(0, 50)), min_size=20, max_size=150)
"""Where nothing ever arrives nothing ever runs, so good rounds are drawn more often than faults."""


def live(life: list[tuple[str, int]], after_each: Callable[[World], None]) -> World:
    world = World()
    for name, number in life:
        STEPS[name](world, number)
        after_each(world)
    return world


@given(lives)
def test_no_attempt_is_started_twice(life: list[tuple[str, int]]) -> None:
    world = live(life, lambda world: None)
    assert all(count == 1 for count in Counter(world.runtime.starts).values())


@given(lives)
def test_no_two_attempts_of_a_task_run_at_once(life: list[tuple[str, int]]) -> None:
    def check(world: World) -> None:
        tasks = Counter((id.job, id.task) for id in world.runtime.living())
        assert all(count == 1 for count in tasks.values())

    live(life, check)


@given(lives)
def test_a_lease_is_over_here_before_the_manager_believes_it(life: list[tuple[str, int]]) -> None:
    def check(world: World) -> None:
        assert world.runtime.deadline_ms <= world.manager.lease_over_ms

    live(life, check)


@given(lives)
def test_once_faults_stop_what_is_wanted_runs_and_nothing_else(life: list[tuple[str, int]]) -> None:
    world = live(life, lambda world: None)
    world.settle()
    wanted = {id for id, assignment in world.manager.wanted.items() if assignment.stop is None}
    assert set(world.runtime.living()) == wanted
    assert not {id for id in world.runtime.known if id not in wanted}


# --------------------------------------------------------------------------------------------------- single promises


@pytest.fixture
def runtime() -> MadeUpRuntime:
    return MadeUpRuntime()


@pytest.fixture
def core(runtime: MadeUpRuntime) -> Core:
    """In a session, with a report that was sent at 100."""
    core = Core(Identity("node", "home", "boot", "0"), runtime, MachineFacts())
    core.connected(100)
    core.welcomed(Welcome("manager", "0", LEASE_MS))
    assert core.report(100) is not None
    return core


def test_the_lease_counts_from_the_stamp_that_came_back(core: Core, runtime: MadeUpRuntime) -> None:
    core.wants(Desired(100), 900)
    assert runtime.deadline_ms == 100 + LEASE_MS


def test_a_stamp_from_before_a_restart_of_the_machine_renews_nothing(core: Core, runtime: MadeUpRuntime) -> None:
    core.wants(Desired(5_000_000), 900)
    assert runtime.deadline_ms == 0
    assert runtime.starts == []


def test_what_the_manager_does_not_name_is_stopped(core: Core, runtime: MadeUpRuntime) -> None:
    core.wants(Desired(100, (an_assignment(JOB),)), 110)
    core.wants(Desired(100), 120)
    assert runtime.known[JOB].phase is Phase.STOPPING
    assert NOT_WANTED.grace_ms > 0


def test_an_attempt_that_is_to_stop_before_it_was_heard_of_ends_without_a_start(
    core: Core, runtime: MadeUpRuntime
) -> None:
    stopped = msgspec.structs.replace(an_assignment(JOB), stop=Stop("too late"))
    core.wants(Desired(100, (stopped,)), 110)
    assert runtime.starts == []
    assert runtime.known[JOB].phase is Phase.ENDED


def test_an_ending_is_reported_until_it_is_recorded(core: Core, runtime: MadeUpRuntime) -> None:
    core.wants(Desired(100, (an_assignment(JOB),)), 110)
    runtime.end(JOB)
    first = said(core, 200)
    assert [report.phase for report in first.attempts] == [Phase.ENDED]
    core.wants(Desired(200, (), (JOB,)), 210)
    assert said(core, 300).attempts == ()


def test_nothing_is_said_while_there_is_neither_news_nor_need(core: Core) -> None:
    assert core.report(101) is None
    assert core.report(100 + core.report_every_ms) is not None


def test_changed_facts_are_said_until_their_stamp_comes_back(core: Core) -> None:
    core.changed(MachineFacts(devices=(Device(healthy=False),)))
    assert said(core, 200).facts is not None
    assert said(core, 200 + core.report_every_ms).facts is not None, "the first may have been lost"
    core.wants(Desired(200), 2_000)
    assert said(core, 4_000).facts is None


def said(core: Core, now_ms: int) -> Report:
    report = core.report(now_ms)
    assert report is not None
    return report


def test_an_older_attempt_is_not_started_beside_a_newer_one(core: Core, runtime: MadeUpRuntime) -> None:
    newer = AttemptId("job", 0, 2)
    core.wants(Desired(100, (an_assignment(newer),)), 110)
    core.wants(Desired(100, (an_assignment(newer), an_assignment(JOB))), 120)
    assert runtime.starts == [newer]


def test_a_newer_attempt_waits_until_the_older_is_gone(core: Core, runtime: MadeUpRuntime) -> None:
    newer = AttemptId("job", 0, 2)
    core.wants(Desired(100, (an_assignment(JOB),)), 110)
    core.wants(Desired(100, (an_assignment(newer),)), 120)
    assert runtime.starts == [JOB]
    runtime.end(JOB)
    said(core, 130)
    assert runtime.starts == [JOB, newer]


def test_nothing_starts_beside_what_the_manager_has_given_up(core: Core, runtime: MadeUpRuntime) -> None:
    """A machine that was declared lost and is heard again still runs what it ran: its GPUs are not free yet."""
    other = AttemptId("other", 0, 1)
    core.wants(Desired(100, (an_assignment(JOB),)), 110)
    core.wants(Desired(100, (an_assignment(other),)), 120)
    assert runtime.starts == [JOB]
    runtime.end(JOB)
    said(core, 130)
    assert runtime.starts == [JOB, other]


def test_a_message_that_was_overtaken_changes_nothing(core: Core, runtime: MadeUpRuntime) -> None:
    said(core, 100 + core.report_every_ms)
    core.wants(Desired(100 + core.report_every_ms), 2_000)
    core.wants(Desired(100, (an_assignment(JOB),)), 2_010)
    assert runtime.starts == []
