"""What agents report becomes events: only news, only of their own machine, only of what they were given."""

from __future__ import annotations

import pytest

from gpuyard.wire.agents import AttemptId, AttemptReport, Ending, Phase
from gpuyard.worlds.standalone.lifecycle import JobState, TaskPhase
from gpuyard.worlds.standalone.reports import CHECKPOINT_STEP_MS, recorded
from tests.worlds.standalone.yard import BEGIN_MS, Yard, an_ending


def running(id: str, attempt: int = 1, checkpoint_at_ms: int = 0) -> AttemptReport:
    return AttemptReport(
        AttemptId(id, 0, attempt), Phase.RUNNING, started_at_ms=BEGIN_MS, checkpoint_at_ms=checkpoint_at_ms
    )


def test_a_report_that_is_repeated_tells_nothing_new() -> None:
    yard = Yard()
    id = yard.submit()
    yard.place(id)
    yard.report("a", running(id))
    assert yard.is_(id) is JobState.RUNNING
    before = yard.state.seq
    yard.report("a", running(id))
    assert yard.state.seq == before


def test_a_machine_speaks_only_for_what_lies_on_it() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id, node="a")
    before = yard.state.seq
    yard.report("b", an_ending(id, 0, 1, Ending.EXITED, 0), an_ending("99", 0, 1, Ending.EXITED, 0))
    assert yard.state.seq == before


def test_an_older_attempt_says_nothing_about_the_newest() -> None:
    yard = Yard()
    id = yard.submit(retries=1)
    yard.run(id)
    yard.end(id, code=1)
    yard.place(id)
    yard.report("a", an_ending(id, 0, 1, Ending.EXITED, 0))
    assert yard.task(id).phase is TaskPhase.ASSIGNED


def test_what_ran_and_is_no_longer_known_to_its_agent_is_lost() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    yard.report("a")
    assert (yard.is_(id), yard.task(id).ending) == (JobState.WAITING, Ending.LOST)


def test_what_its_agent_has_not_begun_yet_is_not_lost() -> None:
    yard = Yard()
    id = yard.submit()
    yard.place(id)
    yard.report("a")
    assert yard.task(id).phase is TaskPhase.ASSIGNED


def test_an_agent_that_was_set_up_anew_has_no_say_in_what_a_former_one_was_given() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    yard.hello("a", incarnation="second")
    never_started = an_ending(id, 0, 1, Ending.STOPPED)
    yard.report("a", never_started)
    assert yard.task(id).phase is TaskPhase.RUNNING
    assert recorded(yard.state, "a", yard.hub.contacts["a"].report) == (never_started.id,)


def test_an_ending_may_be_forgotten_once_it_is_entered_and_not_before() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    ending = an_ending(id, 0, 1, Ending.EXITED, 0)
    report = yard.hub.contacts["a"].report
    yard.report("a", ending)
    assert report.attempts == ()
    assert recorded(yard.state, "a", yard.hub.contacts["a"].report) == (ending.id,)


def test_only_a_checkpoint_that_is_much_newer_is_worth_an_entry() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    yard.report("a", running(id, checkpoint_at_ms=BEGIN_MS))
    assert yard.task(id).checkpoint_at_ms == BEGIN_MS
    yard.report("a", running(id, checkpoint_at_ms=BEGIN_MS + CHECKPOINT_STEP_MS - 1))
    assert yard.task(id).checkpoint_at_ms == BEGIN_MS


def test_a_hello_that_says_nothing_new_makes_no_entry() -> None:
    yard = Yard()
    before = yard.state.seq
    yard.hello("a")
    assert yard.state.seq == before
    yard.hello("a", gpus=3)
    assert (yard.state.seq, len(yard.state.nodes["a"].facts.devices)) == (before + 1, 3)


HOUR_MS = 3_600_000


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS])
def test_a_machine_whose_clock_is_wrong_cannot_make_a_job_start_or_end_at_another_time(ahead_ms: int) -> None:
    yard = Yard()
    id = yard.submit()
    yard.place(id)
    placed_ms = yard.now_ms
    yard.wait(300)
    began_ms = yard.now_ms
    moment_ms = began_ms + ahead_ms
    yard.report("a", AttemptReport(AttemptId(id, 0, 1), Phase.RUNNING, moment_ms, checkpoint_at_ms=moment_ms))
    assert placed_ms <= yard.task(id).started_at_ms <= began_ms
    assert yard.task(id).checkpoint_at_ms <= began_ms
    yard.wait(60_000)
    ended = AttemptReport(
        *(AttemptId(id, 0, 1), Phase.ENDED),
        started_at_ms=moment_ms,
        ended_at_ms=yard.now_ms + ahead_ms,
        ending=Ending.EXITED,
        exit_code=1,
    )
    yard.report("a", ended)
    assert yard.task(id).ended_at_ms == yard.now_ms
