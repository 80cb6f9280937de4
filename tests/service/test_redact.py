"""Nobody learns of a job they may not see: not its id, not its name, in no answer of the scheduler.

Clusters are drawn at random, with jobs whose ids and names occur nowhere else; every answer is encoded and searched.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.model.difference import Difference
from gpuyard.model.jobs import Job
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.recurrence import Recurrence
from gpuyard.model.snapshot import JobGone, Snapshot
from gpuyard.model.work import Array, Work
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.explain import explain
from gpuyard.scheduler.what_if import what_if
from gpuyard.service.lines import difference_lines, explanation_lines, plan_lines
from gpuyard.service.redact import Veil
from gpuyard.service.sentences import sentence
from gpuyard.wire.access import Caller, Grant, Role, Scope
from gpuyard.wire.agents import Ending, MachineFacts
from gpuyard.worlds.standalone import events
from gpuyard.worlds.standalone.intents import Submission
from gpuyard.worlds.standalone.lifecycle import Happening, JobState
from gpuyard.worlds.standalone.records import (
    ArrayRecord,
    ClockReading,
    JobRecord,
    Place,
    Receipt,
    SkipReason,
    State,
    SuspendReason,
    TaskRecord,
    TokenRecord,
    UserRecord,
)
from gpuyard.worlds.standalone.store.port import Quarantined
from gpuyard.worlds.standalone.store.quarantine import EntriesQuarantined, EntriesReleased
from tests.service.yard import Yard
from tests.strategies import clusters

pytestmark = pytest.mark.slow


def state_of(snapshot: Snapshot) -> State:
    """The records of a drawn cluster's jobs."""
    return State(
        queues=snapshot.queues,
        jobs={
            job.id: JobRecord(job.id, f"name-of-{job.id}", "ann", job, Work(("x",)), JobState.WAITING, (TaskRecord(),))
            for job in snapshot.jobs
        },
    )


def renamed(snapshot: Snapshot) -> Snapshot:
    """Ids that occur nowhere by chance."""

    def long(job: Job) -> Job:
        tasks = tuple(msgspec.structs.replace(task, id=f"id-of-{task.id}") for task in job.tasks)
        last = job.last_eviction
        if last is not None and last.beneficiary:
            last = msgspec.structs.replace(last, beneficiary=f"id-of-{last.beneficiary}")
        return msgspec.structs.replace(job, id=f"id-of-{job.id}", tasks=tasks, last_eviction=last)

    return msgspec.structs.replace(snapshot, jobs=tuple(map(long, snapshot.jobs)))


def hidden_words(state: State, veil: Veil) -> set[str]:
    hidden = [job for job in state.jobs.values() if not veil.sees(job.id)]
    return {word for job in hidden for word in (job.id, job.name)}


def occurring(words: set[str], *answers: object) -> list[str]:
    text = b"".join(map(msgspec.json.encode, answers)).decode()
    # An id may begin like a longer one, which may be seen.
    return [word for word in words if f'"{word}"' in text or f"{word} " in text or f'{word}\\"' in text]


@st.composite
def seen_clusters(draw: st.DrawFn) -> tuple[Snapshot, State, Veil]:
    snapshot = renamed(draw(clusters()))
    state = state_of(snapshot)
    teams = sorted({job.queue for job in snapshot.jobs}) or ["none"]
    role = draw(st.sampled_from([Role.LEAD, Role.MEMBER, Role.VIEWER]))
    caller = Caller("somebody", (Grant(role, draw(st.sampled_from(teams))),))
    return snapshot, state, Veil(state, caller)


@given(seen_clusters())
def test_explanations_name_nobody_who_is_hidden(drawn: tuple[Snapshot, State, Veil]) -> None:
    snapshot, state, veil = drawn
    for job in [one for one in snapshot.jobs if veil.sees(one.id)][:3]:
        seen = veil.explanation(explain(snapshot, job.id))
        lines = list(explanation_lines(seen, snapshot.now_ms))
        assert occurring(hidden_words(state, veil), seen, lines) == []


@given(seen_clusters())
def test_plans_name_nobody_who_is_hidden(drawn: tuple[Snapshot, State, Veil]) -> None:
    snapshot, state, veil = drawn
    plan = schedule(snapshot)
    seen = veil.plan(plan)
    mine = [job.id for job in snapshot.jobs if veil.sees(job.id)]
    lines = [line for id in mine for line in plan_lines(seen, id, id)]
    assert occurring(hidden_words(state, veil), seen, lines) == []
    assert (len(seen.actions), len(seen.waiting)) == (len(plan.actions), len(plan.waiting))


@given(seen_clusters())
def test_differences_name_nobody_who_is_hidden(drawn: tuple[Snapshot, State, Veil]) -> None:
    snapshot, state, veil = drawn
    difference = what_if(snapshot, (JobGone(snapshot.jobs[0].id),)) if snapshot.jobs else Difference()
    seen = veil.difference(difference)
    assert occurring(hidden_words(state, veil), seen, list(difference_lines(seen))) == []


def test_who_may_see_everything_is_shown_everything() -> None:
    veil = Veil(State(), Caller("root", (Grant(Role.ADMIN),)))
    assert veil.name("17") == "17"


# -------------------------------------------------------------------------------------------------------------- events

HIDDEN = "id-of-hidden"
WHY = Reason(Token.RECLAIMED, subject="vision", beneficiary=HIDDEN)
FORM = Job("mine", "vision", ())
MINE = JobRecord("mine", "mine", "ann", FORM, Work(("x",)), JobState.WAITING, (), after=(HIDDEN,))
PLACE = Place("m1")
THEIRS = Submission("job", "eve", FORM, Work(("secret-of-theirs",), (("KEY", "secret-of-theirs"),)))
"""Of another member of the team, whose commands are not for everybody."""

EVERY_EVENT: list[events.Event] = [
    events.ClusterFounded("c"),
    events.SharedUserAccepted(),
    events.Restored(),
    events.UidRangeSet(20_000, 29_999),
    events.LeaseSet(20_000),
    events.TeamsSet((), {}),
    events.UserSet(UserRecord("ann", (Grant(Role.LEAD, "vision"),))),
    events.UserRemoved("ann"),
    events.TokenCreated(TokenRecord("t", "", "ann", "hash-of-it", Scope.FULL, 1, 2)),
    events.TokenRevoked("t"),
    events.TokenUsed("t"),
    events.NodeJoined("m1", "f"),
    events.NodeSeen("m1", MachineFacts(), "i", "b", "v"),
    events.NodeUnhealthy("m1", "it reports 64 GPUs"),
    events.NodeSilent("m1"),
    events.NodeHeard("m1"),
    events.NodeLost("m1", declared=True),
    events.NodeDrained("m1"),
    events.NodeResumed("m1"),
    events.NodeLabelled("m1", (("a", "b"),)),
    events.NodeRemoved("m1"),
    events.JobSubmitted(MINE),
    events.ArraySubmitted(ArrayRecord("1", Array((0,)), ("1_0",))),
    events.ArrayReleased("1", 2, 1),
    events.RequestKept("k", Receipt("f", (HIDDEN,), 1)),
    *(events.JobWent("mine", happening, why=WHY, message="m", exit_code=1) for happening in Happening),
    events.JobScaled("mine", 2, 1),
    events.TasksPlaced("mine", 1, (events.Placing(0, PLACE, WHY, 1),)),
    events.TasksPromised("mine", 1, (events.Placing(0, PLACE, WHY),)),
    events.PromiseDropped("mine", 1, (0,), WHY),
    events.TasksStopped("mine", (events.Leaving(0, WHY, PLACE), events.Leaving(1, None)), 1),
    events.AttemptBegan("mine", 0, 1, "m1", 5),
    events.AttemptEnded("mine", 0, 1, "m1", Ending.EXITED, 5, 1, "m"),
    events.Checkpointed("mine", 0, 5),
    events.IdleNoticed("mine", 5),
    events.IdleNoticed("mine", None),
    events.IdleWarned("mine", 5000),
    events.IdleReclaimable("mine", 5000),
    events.DayClosed("2026-11-16"),
    events.JobNumbered("mine", 20_000),
    events.DayClosing("2026-11-16", (("vision", "ann", "mine", "held", "", 5),)),
    events.ClockRead(ClockReading("boot", 5000)),
    events.ClockJumped(-5000, ClockReading("boot", 0)),
    EntriesQuarantined((Quarantined(7, "node-seen", "it reports 64 GPUs"),)),
    EntriesReleased((7,)),
    events.JobsForgotten(("mine",)),
    events.Noted("data-job/vision/train-model", "made", "vision"),
    events.ScheduleSet("vision/nightly", Recurrence("@daily"), THEIRS, "secret-of-theirs", paused=True),
    events.ScheduleRemoved("vision/nightly"),
    events.SchedulePaused("vision/nightly"),
    events.ScheduleResumed("vision/nightly"),
    events.ScheduleSuspended("vision/nightly", SuspendReason.OWNER_GONE, "its owner has left"),
    events.ScheduleSuspended("vision/nightly", SuspendReason.NOT_ALLOWED, "it may not", 5000),
    events.ScheduleRan("vision/nightly", 5000, "mine"),
    events.ScheduleRan("vision/nightly", 5000, "mine", asked=True),
    *(events.ScheduleSkipped("vision/nightly", 5000, why, 3, "mine") for why in SkipReason),
]


def test_every_kind_of_event_is_tried() -> None:
    from typing import get_args

    assert {type(event) for event in EVERY_EVENT} == set(get_args(events.Event))


@pytest.mark.parametrize("event", EVERY_EVENT, ids=lambda event: events.kind_of(event))
def test_every_event_has_a_sentence_and_names_nobody_who_is_hidden(event: events.Event) -> None:
    hidden = msgspec.structs.replace(MINE, id=HIDDEN, name="name-of-hidden", form=Job(HIDDEN, "speech", ()))
    state = State(jobs={"mine": MINE, HIDDEN: hidden})
    veil = Veil(state, Caller("ann", (Grant(Role.MEMBER, "vision"),)))
    seen = veil.event(event)
    if seen is None:
        assert isinstance(event, events.RequestKept)
        return
    said = sentence(seen)
    assert said
    assert not said.endswith(".")
    assert occurring({HIDDEN, "name-of-hidden", "hash-of-it", "secret-of-theirs"}, seen, said) == []


def test_a_hidden_job_is_not_found_by_its_effect_on_ones_own(yard: Yard) -> None:
    """Mine gave way to theirs: the event is mine to see, but not by asking for their job."""
    mine = yard.submit("max", gpus=8)
    yard.wait_for(mine, "running")
    theirs = yard.submit("sam", gpus=2)
    yard.wait_for(theirs, "running", "starting")
    stopped = yard.ask("max", "GET", "/v1/events", params={"object": f"job/{mine}", "kind": "tasks-stopped"}).json()
    assert "hidden (team speech)" in stopped["items"][0]["text"]
    assert f"job/{theirs}" not in stopped["items"][0]["objects"]
    # The notice the job was given comes back from its machine as the message of the ending.
    ended = yard.ask("max", "GET", "/v1/events", params={"object": f"job/{mine}", "kind": "attempt-ended"}).json()
    assert "hidden (team speech)" in ended["items"][0]["text"]
    assert f'"{theirs}"' not in ended["items"][0]["text"]
    assert yard.ask("max", "GET", "/v1/events", params={"object": f"job/{theirs}"}).json()["items"] == []
    assert yard.ask("olga", "GET", "/v1/events", params={"object": f"job/{theirs}"}).json()["items"]
    shown = yard.ask("max", "GET", f"/v1/jobs/{mine}").json()
    assert all(f'"{theirs}"' not in why["text"] for why in shown["why"])
    devices = yard.ask("max", "GET", "/v1/devices").json()["items"]
    holders = [holder for device in devices for holder in device["holders"] if holder["team"] == "speech"]
    assert holders
    assert all("job" not in holder for holder in holders)
