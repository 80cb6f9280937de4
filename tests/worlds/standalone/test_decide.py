"""Intents of operators: machines, teams, scaling. Verbs of jobs are in test_lifecycle.py."""

from __future__ import annotations

import pytest

from gpuyard.errors import RefusedError
from gpuyard.model.jobs import TaskGroup, on_nodes
from gpuyard.model.queues import Queue
from gpuyard.model.work import OnNodeLost
from gpuyard.wire.access import Grant, Role, Scope
from gpuyard.worlds.standalone.decide import decide
from gpuyard.worlds.standalone.events import NodeLost, NodeSilent, TeamsSet, UserSet
from gpuyard.worlds.standalone.intents import (
    AdmitNode,
    CreateToken,
    DeclareLost,
    DrainNode,
    LabelNode,
    RemoveNode,
    ResumeNode,
    SetTeams,
    SetUser,
    Steer,
    Submission,
    Submit,
)
from gpuyard.worlds.standalone.lifecycle import JobState, TaskPhase
from gpuyard.worlds.standalone.submitting import submitted_before
from tests.worlds.standalone.yard import LEASE_MS, Yard, a_form, on_nodes_form


def refused(yard: Yard, intent: object, reason: str) -> None:
    before = yard.state.seq
    with pytest.raises(RefusedError) as error:
        yard.do(intent)  # type: ignore[arg-type]
    assert error.value.reason == reason
    assert yard.state.seq == before


def test_a_drained_machine_is_left_politely_by_what_may_be_stopped_and_finished_by_the_rest() -> None:
    yard = Yard()
    polite, firm = yard.submit(), yard.submit(a_form(preemptible=False))
    yard.run(polite)
    yard.run(firm)
    yard.do(DrainNode("a"))
    assert (yard.is_(polite), yard.is_(firm)) == (JobState.STOPPING, JobState.RUNNING)
    yard.stopped(polite)
    assert yard.is_(polite) is JobState.WAITING
    assert not yard.ledger().snapshot().nodes[0].open
    yard.do(ResumeNode("a"))
    assert yard.ledger().snapshot().nodes[0].open


def test_an_elastic_job_leaves_a_drained_machine_and_goes_on_elsewhere() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2, least=1))
    yard.run(id, (0,), "a")
    yard.run(id, (1,), "b")
    yard.do(DrainNode("a"))
    assert yard.is_(id) is JobState.RUNNING
    assert yard.phases(id) == [TaskPhase.STOPPING, TaskPhase.RUNNING]


def test_a_job_on_nodes_leaves_a_drained_machine_with_all_it_has_there_and_goes_on_if_enough_nodes_are_left() -> None:
    for least, phase in ((1, TaskPhase.RUNNING), (2, TaskPhase.STOPPING)):
        yard = Yard()
        id = yard.submit(on_nodes_form(nodes=2, per_node=2, least=least))
        yard.run(id, (0, 1), "a")
        yard.run(id, (2, 3), "b")
        yard.do(DrainNode("b"))
        assert yard.phases(id) == [phase, phase, TaskPhase.STOPPING, TaskPhase.STOPPING]
        for task in (2, 3):
            yard.stopped(id, task)
        assert yard.phases(id)[:2] == [phase, phase]


def test_a_task_that_is_done_counts_for_what_is_left_when_a_machine_is_drained() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=3, least=2))
    yard.run(id, (0, 1), "b")
    yard.run(id, (2,), "a")
    yard.end(id, 0)
    yard.do(DrainNode("a"))
    assert yard.is_(id) is JobState.RUNNING
    yard.stopped(id, 2)
    assert yard.phases(id) == [TaskPhase.DONE, TaskPhase.RUNNING, TaskPhase.WAITING]


def test_a_machine_that_is_heard_of_cannot_be_declared_lost_and_one_that_is_silent_can() -> None:
    yard = Yard()
    id = yard.submit(on_node_lost=OnNodeLost.WAIT)
    yard.run(id)
    refused(yard, DeclareLost("a"), "NodeHeard")
    yard.wait(LEASE_MS + 1)
    yard.tick()
    assert yard.is_(id) is JobState.RUNNING
    yard.do(DeclareLost("a"))
    assert yard.is_(id) is JobState.WAITING


def test_a_machine_is_removed_only_when_nothing_runs_there() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    refused(yard, RemoveNode("a"), "NodeBusy")
    yard.end(id)
    yard.do(RemoveNode("a"))
    assert list(yard.state.nodes) == ["b"]
    refused(yard, RemoveNode("a"), "NodeUnknown")


def test_a_second_machine_cannot_take_the_name_of_one_that_is_here() -> None:
    yard = Yard()
    refused(yard, AdmitNode("a", "another certificate"), "NodeKnown")


def test_a_machine_that_may_come_back_keeps_its_name_until_it_is_lost() -> None:
    """After a restart of the manager none is heard of: a token to join with must not take what runs there."""
    yard = Yard()
    yard.enter(NodeSilent("a"))
    refused(yard, AdmitNode("a", "another certificate"), "NodeKnown")
    yard.enter(NodeLost("a"))
    yard.do(AdmitNode("a", "another certificate"))
    assert yard.state.nodes["a"].fingerprint == "another certificate"


def test_labels_of_an_operator_win_and_can_be_taken_away() -> None:
    yard = Yard()
    yard.do(LabelNode("a", {"rack": "1", "zone": "x"}))
    yard.do(LabelNode("a", {"rack": None}))
    assert yard.ledger().snapshot().nodes[0].labels == {"hostname": "a", "zone": "x"}


def test_a_change_based_on_an_old_look_is_refused() -> None:
    yard = Yard()
    id = yard.submit()
    seen = yard.job(id).revision
    yard.steer("hold", id)
    refused(yard, Steer(id, "release", seen), "Changed")


def test_a_team_with_jobs_cannot_be_taken_away() -> None:
    yard = Yard()
    id = yard.submit(a_form("speech"))
    only = SetTeams((Queue("vision"),))
    refused(yard, only, "TeamHasJobs")
    yard.steer("cancel", id)
    yard.do(only)
    assert list(yard.state.teams) == ["vision"]


def test_teams_and_who_belongs_to_them_are_one_change() -> None:
    """No crash can leave a team without its members, or somebody with a role in a team that is gone."""
    yard = Yard()
    yard.do(SetUser("ann", (Grant(Role.LEAD, "speech"), Grant(Role.VIEWER, "vision"))))
    change = SetTeams((Queue("vision"),), members={name: (Grant(Role.MEMBER, "vision"),) for name in ("ann", "bob")})
    events = decide(yard.state, change, yard.now_ms)
    assert [type(event) for event in events] == [TeamsSet, UserSet, UserSet]
    yard.enter(*events)
    assert {name: user.grants for name, user in yard.state.users.items()} == {
        "ann": (Grant(Role.MEMBER, "vision"),),
        "bob": (Grant(Role.MEMBER, "vision"),),
    }


def test_the_number_of_a_team_is_never_used_again() -> None:
    yard = Yard()
    yard.do(SetTeams((Queue("vision"),)))
    yard.do(SetTeams((Queue("vision"), Queue("speech"))))
    assert [yard.state.teams[name].number for name in ("vision", "speech")] == [1, 3]


def test_scaling_is_refused_where_it_would_stop_tasks_or_is_no_range() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=3, least=1))
    yard.run(id)
    for tasks, least, reason in ((2, None, "TasksRun"), (3, 4, "BadValue"), (0, 0, "BadValue")):
        with pytest.raises(RefusedError) as error:
            yard.scale(id, tasks, least)
        assert error.value.reason == reason


def test_a_job_with_groups_cannot_be_scaled() -> None:
    yard = Yard()
    group = TaskGroup("all", children=(TaskGroup("one", 1), TaskGroup("two", 1)))
    id = yard.submit(a_form(tasks=2, group=group))
    with pytest.raises(RefusedError, match="has groups"):
        yard.scale(id, 3)


def test_a_job_without_a_range_cannot_be_scaled() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2))
    with pytest.raises(RefusedError, match="is not elastic") as error:
        yard.scale(id, 3, 1)
    assert error.value.reason == "NotElastic"


def test_an_elastic_job_that_was_scaled_to_one_number_is_elastic_still() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2, least=1))
    yard.scale(id, 2, 2)
    yard.scale(id, 4, 1)
    assert (len(yard.job(id).tasks), yard.job(id).form.group.min_tasks) == (4, 1)


def test_a_job_on_nodes_is_scaled_by_whole_nodes() -> None:
    yard = Yard()
    id = yard.submit(on_nodes_form(nodes=3, per_node=2, least=1))
    with pytest.raises(RefusedError, match="no number of whole nodes"):
        yard.scale(id, 3)
    yard.scale(id, 8, 4)
    form = yard.job(id).form
    assert form.group == on_nodes(4, 2, 2)
    assert [task.group for task in form.tasks] == [child.name for child in form.group.children for _ in range(2)]
    yard.scale(id, 2, 2)
    assert yard.job(id).form.group == on_nodes(1, 2, 1)


def test_a_scaled_job_is_in_the_log_with_its_team() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2, least=1))
    yard.scale(id, 3, 1)
    entry = yard.journal.pending[-1]
    assert (entry.kind, entry.team, entry.objects) == ("job-scaled", "vision", (f"job/{id}", "team/vision"))


def test_a_request_with_a_known_key_leads_to_the_same_jobs_and_never_to_others() -> None:
    yard = Yard()
    submission = Submission("job", "ann", a_form(), yard.job(yard.submit()).work)
    yard.do(Submit(submission, "ann/key", "print"))
    assert submitted_before(yard.state, "ann/key", "print") == ("2",)
    assert submitted_before(yard.state, "ann/other", "print") is None
    with pytest.raises(RefusedError) as error:
        submitted_before(yard.state, "ann/key", "another print")
    assert error.value.reason == "KeyReused"


def test_of_two_machines_that_show_the_same_token_at_the_same_moment_one_joins() -> None:
    yard = Yard()
    yard.do(SetUser("ann", (Grant(Role.ADMIN),)))
    yard.do(CreateToken("t1", "join", "ann", "digest", Scope.JOIN, yard.now_ms + 1))
    yard.do(AdmitNode("c", "certificate of c", "t1"))
    refused(yard, AdmitNode("d", "certificate of d", "t1"), "SignInNeeded")
    refused(yard, AdmitNode("d", "certificate of d", "unknown"), "SignInNeeded")
    assert "d" not in yard.state.nodes


def test_who_holds_a_job_that_is_being_cancelled_or_has_failed_does_not_bring_it_back() -> None:
    yard = Yard()
    cancelled, failed, requeued = yard.submit(), yard.submit(a_form(tasks=2)), yard.submit()
    for id in (cancelled, failed, requeued):
        yard.run(id)
    yard.steer("cancel", cancelled)
    yard.end(failed, 0, code=1)
    yard.steer("requeue", requeued)
    for id in (cancelled, failed):
        refused(yard, Steer(id, "hold"), "WrongState")
    yard.steer("hold", requeued)
    for id, task in ((cancelled, 0), (failed, 1), (requeued, 0)):
        yard.stopped(id, task)
    assert [yard.is_(id) for id in (cancelled, failed, requeued)] == [
        JobState.CANCELLED,
        JobState.FAILED,
        JobState.HELD,
    ]
