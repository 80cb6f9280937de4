"""The life of a job is one table, and docs/lifecycle.md shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuyard.errors import LedgerError, RefusedError
from gpuyard.worlds.standalone.intents import VERBS
from gpuyard.worlds.standalone.lifecycle import OVER, TRANSITIONS, Happening, JobState, after, can
from tests.worlds.standalone.yard import Yard, a_form

DOCUMENT = Path(__file__).parents[3] / "docs/lifecycle.md"
ALL = [(state, happening) for state in JobState for happening in Happening]


def test_nothing_leads_out_of_what_is_over() -> None:
    assert not [state for state, _ in TRANSITIONS if state in OVER]


def test_every_state_can_be_reached_and_can_be_left_unless_it_is_over() -> None:
    assert set(TRANSITIONS.values()) | {JobState.BLOCKED} == set(JobState)
    assert {state for state, _ in TRANSITIONS} == set(JobState) - OVER


@pytest.mark.parametrize(("state", "happening"), [pair for pair in ALL if pair not in TRANSITIONS])
def test_what_is_not_in_the_table_is_found_at_once(state: JobState, happening: Happening) -> None:
    assert not can(state, happening)
    with pytest.raises(LedgerError, match=f"a job that is {state} cannot be {happening}"):
        after(state, happening)


def test_the_picture_in_the_documents_is_the_table() -> None:
    drawn = re.findall(r"^    (\w+) --> (\w+): ([\w-]+)$", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(drawn) == sorted((state, to, happening) for (state, happening), to in TRANSITIONS.items())


# ------------------------------------------------------------------------------------------------ every verb everywhere


def in_state(yard: Yard, state: JobState) -> str:
    """A job that is in that state."""
    match state:
        case JobState.BLOCKED:
            return yard.submit(after=(yard.submit(),))
        case JobState.HELD:
            return yard.submit(held=True)
    id = yard.submit(a_form(tasks=2))
    if state is JobState.WAITING:
        return id
    if state is JobState.SUSPENDED:
        yard.steer("suspend", id)
        return id
    if state is JobState.CANCELLED:
        yard.steer("cancel", id)
        return id
    yard.place(id) if state is JobState.STARTING else yard.run(id)
    match state:
        case JobState.STOPPING:
            yard.steer("requeue", id)
        case JobState.SUCCEEDED | JobState.FAILED:
            yard.end(id, 0, code=0 if state is JobState.SUCCEEDED else 1)
            yard.end(id, 1)
    return id


@pytest.mark.parametrize("state", JobState)
def test_a_job_can_be_brought_into_every_state(state: JobState) -> None:
    yard = Yard()
    assert yard.is_(in_state(yard, state)) is state


LEADS_TO = {
    "cancel": JobState.CANCELLED,
    "hold": JobState.HELD,
    "release": JobState.WAITING,
    "suspend": JobState.SUSPENDED,
    "resume": JobState.WAITING,
    "requeue": JobState.WAITING,
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", JobState)
def test_every_verb_is_refused_or_leads_where_it_says_once_everything_has_stopped(state: JobState, verb: str) -> None:
    yard = Yard()
    id = in_state(yard, state)
    if state not in VERBS[verb]:
        with pytest.raises(RefusedError, match=f"job {id} is {state}"):
            yard.steer(verb, id)
        assert yard.is_(id) is state
        return
    yard.steer(verb, id)
    for index, task in enumerate(yard.job(id).tasks):
        if task.place is not None:
            yard.stopped(id, index)
    assert yard.is_(id) is LEADS_TO[verb]


@pytest.mark.parametrize("verb", ["cancel", "hold", "suspend", "requeue"])
def test_a_running_job_with_nothing_to_stop_goes_at_once(verb: str) -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2, least=1))
    yard.run(id)
    yard.evict(id, (1,), whole=False)
    yard.stopped(id, 1)
    yard.scale(id, 3, 3)
    yard.end(id, 0)
    assert yard.is_(id) is JobState.RUNNING
    yard.steer(verb, id)
    assert yard.is_(id) is LEADS_TO[verb]
