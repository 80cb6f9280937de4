"""What a task is told of itself and of the others."""

from __future__ import annotations

from msgspec.structs import replace

from gpuyard.model.work import Array, Work
from gpuyard.wire.agents import (
    MAX_MESSAGE_BYTES,
    Assignment,
    AttemptId,
    AttemptReport,
    Isolation,
    Phase,
    RunAs,
    encode,
)
from gpuyard.worlds.standalone.desired import assignments, run_as, variables
from gpuyard.worlds.standalone.events import NodeSeen
from gpuyard.worlds.standalone.intents import SetTeams, SetUser, Submission, Submit, TeamSettings
from tests.worlds.standalone.yard import GRACE_MS, Yard, a_form, facts


def test_ranks_count_over_all_machines_and_on_each() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=4))
    yard.place(id, (0, 1), "a")
    yard.place(id, (2, 3), "b")
    told = [variables(yard.state, yard.job(id), task) for task in range(4)]
    assert [one["RANK"] for one in told] == ["0", "1", "2", "3"]
    assert [one["LOCAL_RANK"] for one in told] == ["0", "1", "0", "1"]
    assert [one["GPUYARD_NODE_RANK"] for one in told] == ["0", "0", "1", "1"]
    assert [one["GROUP_RANK"] for one in told] == [one["NODE_RANK"] for one in told] == ["0", "0", "1", "1"]
    assert {one["WORLD_SIZE"] for one in told} == {"4"}
    assert {one["LOCAL_WORLD_SIZE"] for one in told} == {one["GROUP_WORLD_SIZE"] for one in told} == {"2"}
    assert {(one["GPUYARD_TASKS_PER_NODE"], one["GPUYARD_GPUS_PER_NODE"]) for one in told} == {("2", "2")}
    assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in told}) == 1


def test_the_managers_own_machine_has_the_address_the_others_of_the_job_reach_it_at() -> None:
    yard = Yard(("a", "b", "c"))
    loopback = replace(facts(), address="127.0.0.1", manager_address="127.0.0.1")
    yard.enter(NodeSeen("a", loopback, "first", "boot-1", "0"))
    for name, address in (("b", "10.0.0.2"), ("c", "10.0.0.3")):
        seen = replace(facts(), address=address, manager_address="10.0.0.1")
        yard.enter(NodeSeen(name, seen, "first", "boot-1", "0"))
    together, alone = yard.submit(a_form(tasks=3)), yard.submit()
    for task, node in enumerate(("a", "b", "c")):
        yard.place(together, (task,), node)
    yard.place(alone, node="a")
    told = variables(yard.state, yard.job(together), 1)
    assert told["GPUYARD_NODE_IPS"] == "10.0.0.1,10.0.0.2,10.0.0.3"
    assert told["MASTER_ADDR"] == told["GPUYARD_MASTER_ADDR"] == "10.0.0.1"
    assert variables(yard.state, yard.job(alone), 0)["MASTER_ADDR"] == "127.0.0.1"


def test_a_task_that_starts_again_knows_how_often_it_did() -> None:
    yard = Yard()
    id = yard.submit(retries=3)
    yard.run(id)
    yard.end(id, code=1)
    yard.place(id)
    assert variables(yard.state, yard.job(id), 0)["GPUYARD_RESTART_COUNT"] == "1"


def test_an_element_of_an_array_knows_its_index() -> None:
    yard = Yard()
    array = yard.submit(array=Array((3, 7)))
    told = variables(yard.state, yard.job(f"{array}_7"), 0)
    assert (told["GPUYARD_ARRAY_ID"], told["GPUYARD_ARRAY_INDEX"]) == (array, "7")


def test_who_asks_for_it_is_told_in_slurms_words_too() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=3))
    yard.place(id, (0, 1), "a")
    yard.place(id, (2,), "b")
    job = yard.job(id)
    assert not [name for name in variables(yard.state, job, 2) if name.startswith("SLURM")]
    asked = replace(job, work=replace(job.work, slurm_env=True, env=(("SLURM_JOB_NAME", "mine"),)))
    told = variables(yard.state, asked, 2)
    ours = (told["GPUYARD_JOB_ID"], told["RANK"], told["WORLD_SIZE"], told["GPUYARD_NODE_RANK"], told["LOCAL_RANK"])
    names = ("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODEID", "SLURM_LOCALID")
    assert tuple(told[name] for name in names) == ours
    assert (told["SLURM_JOB_NODELIST"], told["SLURMD_NODENAME"], told["SLURM_NNODES"]) == ("a,b", "b", "2")
    assert told["SLURM_JOB_NAME"] == "mine"
    array = yard.submit(array=Array((3, 7)))
    element = yard.job(f"{array}_7")
    told = variables(yard.state, replace(element, work=replace(element.work, slurm_env=True)), 0)
    assert (told["SLURM_ARRAY_JOB_ID"], told["SLURM_ARRAY_TASK_ID"]) == (array, "7")


def test_what_must_stop_is_told_why_and_how_long_it_has() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    assert assignments(yard.state, "a")[0].stop is None
    yard.evict(id, (0,), whole=True)
    stop = assignments(yard.state, "a")[0].stop
    assert stop is not None
    assert (stop.reason, stop.grace_ms) == ("Reclaimed", GRACE_MS)
    assert "other" in stop.why


def test_a_job_runs_as_its_owners_account_else_as_its_teams_else_as_its_owners_number() -> None:
    yard = Yard()
    job = yard.job(yard.submit())
    assert run_as(yard.state, job) == RunAs(uid=job.uid)
    yard.do(SetTeams(yard.state.queues, {"vision": TeamSettings(unix_user="vision")}))
    assert run_as(yard.state, job) == RunAs("vision", job.uid)
    yard.do(SetUser("ann", (), "ann"))
    assert run_as(yard.state, job) == RunAs("ann", job.uid)


def test_users_are_named_only_where_the_machine_keeps_them_apart() -> None:
    yard = Yard()
    id = yard.submit()
    yard.place(id)
    assert assignments(yard.state, "a")[0].run_as is None
    yard.enter(NodeSeen("a", replace(facts(), isolation=Isolation.USERS), "first", "boot-1", "0"))
    assert assignments(yard.state, "a")[0].run_as is not None


def test_a_machine_is_told_no_more_at_once_than_a_message_holds_and_the_rest_after_that() -> None:
    """Many tasks with long variables made a message that could not be sent: the machine got no lease any more."""
    yard = Yard(("a",))
    long = Work(("train",), env=(("LONG", "é" * 60_000),))
    yard.do(Submit(Submission("job", "ann", a_form(tasks=100, gpus=0), long)))
    yard.place("1", node="a")
    told: list[Assignment] = []
    for _ in range(20):
        yard.report("a", *(AttemptReport(one.id, Phase.RUNNING, started_at_ms=yard.now_ms) for one in told))
        desired = yard.hub.due()["a"]
        assert len(encode(desired)) < MAX_MESSAGE_BYTES
        # What it knows is still wanted, and what it was told of is not taken back by what is new.
        assert {one.id for one in desired.assignments} >= {one.id for one in told}
        assert {one.id for one in desired.assignments if not one.command} == {one.id for one in told}
        told = list(desired.assignments)
    assert len(told) == 100


def test_what_an_agent_was_told_of_and_has_not_begun_stays_whatever_comes_before_it() -> None:
    yard = Yard(("a",))
    long = Work(("train",), env=(("LONG", "x" * 120_000),))
    form = a_form(tasks=20, gpus=0)
    yard.do(Submit(Submission("job", "ann", form, long)))
    yard.do(Submit(Submission("job", "ann", form, long)))
    yard.place("2", node="a")
    yard.report("a")
    first = {one.id for one in yard.hub.due()["a"].assignments}
    yard.place("1", node="a")
    yard.report("a")
    again = yard.hub.due()["a"].assignments
    assert {one.id for one in again if one.command} >= first
    assert {one.job for one in first} == {"2"}


def test_a_new_session_is_told_everything_anew_once_it_has_said_what_it_has() -> None:
    yard = Yard(("a",))
    id = yard.submit()
    yard.run(id)
    run = AttemptReport(AttemptId(id, 0, 1), Phase.RUNNING, started_at_ms=yard.now_ms)
    yard.report("a", run)
    assert [one.command for one in yard.hub.due()["a"].assignments] == [()]
    yard.hello("a")
    yard.hub.touch("a")
    assert yard.hub.due() == {}
    yard.report("a", run)
    assert [one.id.job for one in yard.hub.due()["a"].assignments] == [id]
