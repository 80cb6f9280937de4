"""The judge of conformance files, on small files written by hand and schedulers that do as they are told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.errors import InputError
from gpuyard.model.jobs import Job, Neighbour, Operator, Task, TaskState, TopologyRule
from gpuyard.model.plan import Action, Bind, Evict, Move, Plan, Promise
from gpuyard.model.queues import Queue
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import DevicePlacement, NodePlacement, Policy, Step
from gpuyard.scenarios.corpus import judge_corpus_file
from gpuyard.scenarios.verdict import Verdict

BECAUSE = Reason(Token.PLACED)
MIG = "nvidia.com/mig-1g.10gb"

Fields = dict[str, Any]
Seen = list[tuple[Snapshot, Policy]]


def a_task(name: str = "job-0", state: str = "Pending", **fields: Any) -> Fields:
    return {"name": name, "state": state, **fields}


def running(name: str = "job-0", node: str = "node0", **fields: Any) -> Fields:
    return a_task(name, "Running", node=node, **fields)


def a_job(name: str = "job", *tasks: Fields, **fields: Any) -> Fields:
    return {"name": name, "queue": "q", "gpus_per_task": 1, "tasks": list(tasks or [a_task(f"{name}-0")]), **fields}


def a_scenario(*jobs: Fields, expected: Fields | None = None, **fields: Any) -> Fields:
    situation = {
        "nodes": [{"name": "node0", "gpus": 2}],
        "departments": [{"name": "d", "implicit": True, "deserved_gpus": -1}],
        "queues": [{"name": "q", "parent": "d", "deserved_gpus": 2}],
        "jobs": list(jobs),
        **fields.pop("input", {}),
    }
    outcomes = {task: {"outcome": outcome} for task, outcome in (expected or {}).items()}
    scenario = {"id": "s-1", "kind": "single_cycle", "actions": ["allocate"], "tags": []}
    return {**scenario, "input": situation, "expected": {"per_task": outcomes}, **fields}


def a_file(folder: Path, *scenarios: Fields, **fields: Any) -> Path:
    path = folder / "corpus.json"
    path.write_text(json.dumps({"format": 1, "scenarios": list(scenarios), **fields}))
    return path


def does(*actions: Action) -> Callable[[Snapshot, Policy], Plan]:
    """A scheduler that decides the same in every cycle."""
    return lambda snapshot, policy: Plan(actions)


def bind(task: str = "job-0", node: str = "node0") -> Bind:
    return Bind(task.rsplit("-", 1)[0], task, node, (), BECAUSE)


def promise(task: str = "job-0", node: str = "node0") -> Promise:
    return Promise(task.rsplit("-", 1)[0], task, node, (), BECAUSE)


def evict(task: str = "job-0", node: str = "node0") -> Evict:
    return Evict(task.rsplit("-", 1)[0], task, node, BECAUSE)


def move(task: str = "job-0", node: str = "node0") -> Move:
    return Move(task.rsplit("-", 1)[0], task, "node0", node, (), BECAUSE)


def judged(folder: Path, scenario: Fields, *actions: Action) -> Verdict:
    (verdict,) = judge_corpus_file(a_file(folder, scenario), does(*actions))
    return verdict


def seen(folder: Path, scenario: Fields, **fields: Any) -> tuple[Snapshot, Policy]:
    """What the scheduler is given for a scenario."""
    calls: Seen = []

    def watch(snapshot: Snapshot, policy: Policy) -> Plan:
        calls.append((snapshot, policy))
        return Plan()

    list(judge_corpus_file(a_file(folder, scenario, **fields), watch))
    return calls[0]


def the_job(folder: Path, job: Fields, **fields: Any) -> Job:
    return seen(folder, a_scenario(job, **fields))[0].jobs[0]


def tasks_by_id(snapshot: Snapshot) -> dict[str, Task]:
    return {task.id: task for job in snapshot.jobs for task in job.tasks}


def devices_of(snapshot: Snapshot) -> dict[str, list[int]]:
    return {task.id: [share.device for share in task.shares] for task in tasks_by_id(snapshot).values()}


# --------------------------------------------------------------------------------------------------- one cycle


@pytest.mark.parametrize(
    ("task", "actions", "outcome"),
    [
        (a_task(), [], "pending"),
        (a_task(), [bind()], "allocated"),
        (a_task(), [promise()], "pipelined"),
        (running(), [], "kept"),
        (running(), [evict()], "evicted"),
        (running(), [move()], "evicted_and_pipelined"),
        (running(), [evict(), promise()], "evicted_and_pipelined"),
        (a_task(state="Pipelined", node="node0"), [], "kept"),
        (a_task(state="Succeeded"), [], "kept"),
    ],
)
def test_what_a_plan_does_to_a_task_has_one_name(
    tmp_path: Path, task: Fields, actions: list[Action], outcome: str
) -> None:
    scenario = a_scenario(a_job("job", task), expected={"job-0": outcome})
    assert judged(tmp_path, scenario, *actions) == Verdict("s-1", True)


def test_another_outcome_is_a_failure(tmp_path: Path) -> None:
    verdict = judged(tmp_path, a_scenario(a_job(), expected={"job-0": "allocated"}))
    assert verdict == Verdict("s-1", False, ("job-0: expected allocated, got pending",))


def test_a_task_without_an_expectation_is_not_judged(tmp_path: Path) -> None:
    assert judged(tmp_path, a_scenario(a_job())).passed


def test_another_node_is_no_failure_but_is_told(tmp_path: Path) -> None:
    per_task = {"job-0": {"outcome": "allocated", "node": "node1"}}
    scenario = a_scenario(a_job(), input={"nodes": [{"name": "node0", "gpus": 1}, {"name": "node1", "gpus": 1}]})
    verdict = judged(tmp_path, {**scenario, "expected": {"per_task": per_task}}, bind())
    assert verdict == Verdict("s-1", True, (), ("job-0: expected on node1, got node0",))


def test_a_node_that_the_input_lost_is_told(tmp_path: Path) -> None:
    per_task = {"job-0": {"outcome": "allocated", "node": "node7"}}
    verdict = judged(tmp_path, {**a_scenario(a_job()), "expected": {"per_task": per_task}})
    assert "node7, which the input does not have" in verdict.outcome_mismatches[0]


def test_a_task_that_the_input_lost_is_told(tmp_path: Path) -> None:
    verdict = judged(tmp_path, a_scenario(a_job(), expected={"ghost-0": "kept"}))
    assert verdict.outcome_mismatches == ("ghost-0: expected kept, but the input has no such task",)


def test_a_scheduler_that_breaks_fails_that_scenario_only(tmp_path: Path) -> None:
    def broken(snapshot: Snapshot, policy: Policy) -> Plan:
        raise ValueError("no idea")

    verdicts = list(judge_corpus_file(a_file(tmp_path, a_scenario(), a_scenario()), broken))
    assert [verdict.outcome_mismatches for verdict in verdicts] == [("no plan: ValueError: no idea",)] * 2


# ------------------------------------------------------------------------------------------------- several cycles


def over_cycles(folder: Path, job: Fields, outcome: str, plans: list[list[Action]], **fields: Any) -> Verdict:
    """Judge a scenario whose scheduler makes these plans in turn, and then none."""
    turns = iter(plans)
    scenario = a_scenario(job, expected={"job-0": outcome}, kind="multi_cycle", **fields)
    (verdict,) = judge_corpus_file(a_file(folder, scenario), lambda *_: Plan(tuple(next(turns, []))))
    return verdict


def test_bound_tasks_run_in_the_next_cycle(tmp_path: Path) -> None:
    assert over_cycles(tmp_path, a_job(), "allocated", [[bind()]]).passed


def test_evicted_tasks_wait_again(tmp_path: Path) -> None:
    assert over_cycles(tmp_path, a_job("job", running()), "evicted_back_to_pending", [[evict()]]).passed


def test_evicted_tasks_that_run_again_count_as_kept(tmp_path: Path) -> None:
    assert over_cycles(tmp_path, a_job("job", running()), "kept", [[evict()], [bind(node="node0")]]).passed


def test_moved_tasks_wait_for_a_cycle(tmp_path: Path) -> None:
    assert over_cycles(tmp_path, a_job("job", running()), "evicted_back_to_pending", [[move()]]).passed


def test_what_was_ending_has_ended(tmp_path: Path) -> None:
    job = a_job("job", a_task(state="Releasing", node="node0"))
    assert over_cycles(tmp_path, job, "evicted_back_to_pending", []).passed


def test_a_promise_is_forgotten(tmp_path: Path) -> None:
    assert over_cycles(tmp_path, a_job(), "pending", [[promise()], [promise()]]).passed


def test_a_job_deleted_in_the_test_keeps_ending(tmp_path: Path) -> None:
    job = a_job("job", a_task(state="Releasing", node="node0"), delete_in_test=True)
    assert over_cycles(tmp_path, job, "kept", []).passed
    job = a_job("job", running(), delete_in_test=True)
    assert over_cycles(tmp_path, job, "evicted", [[evict()]]).passed


def test_a_stuck_task_stays_stuck(tmp_path: Path) -> None:
    assert over_cycles(tmp_path, a_job("job", a_task(state="StuckInReleasing", node="node0")), "kept", []).passed


def test_nothing_may_flap_after_the_match(tmp_path: Path) -> None:
    plans: list[list[Action]] = [[bind()], [], [evict()]]
    verdict = over_cycles(tmp_path, a_job(), "allocated", plans)
    assert verdict.outcome_mismatches == ("after cycle 3: job-0: expected allocated, got pending",)


def test_the_numbers_of_cycles_are_the_scenarios_own(tmp_path: Path) -> None:
    calls: list[int] = []

    def count(snapshot: Snapshot, policy: Policy) -> Plan:
        calls.append(snapshot.now_ms)
        return Plan()

    scenario = a_scenario(kind="multi_cycle", cycles_until_match=1, cycles_stable_after=2)
    list(judge_corpus_file(a_file(tmp_path, scenario), count))
    assert len(calls) == 3
    assert calls == sorted(set(calls))


def test_an_incomplete_gang_is_marked_stale_between_cycles(tmp_path: Path) -> None:
    worlds: list[Snapshot] = []

    def watch(snapshot: Snapshot, policy: Policy) -> Plan:
        worlds.append(snapshot)
        return Plan()

    job = a_job("job", running("job-0"), a_task("job-1"))
    list(judge_corpus_file(a_file(tmp_path, a_scenario(job, kind="multi_cycle")), watch))
    assert [world.jobs[0].stale_since_ms for world in worlds[:3]] == [None, worlds[1].now_ms, worlds[1].now_ms]


# --------------------------------------------------------------------------------------------------------- the input


def test_amounts_keep_their_units(tmp_path: Path) -> None:
    node = {"name": "n", "gpus": 1, "cpu_cores": 8, "memory_bytes": 64e9, "gpu_memory_mib": 40000}
    queue = {"name": "q", "deserved_gpus": 0.5, "limit_gpus": -1, "deserved_cpu_millis": 1500, "limit_memory_mb": 2}
    snapshot, _ = seen(tmp_path, a_scenario(input={"nodes": [node], "queues": [queue], "departments": []}))
    (built,) = snapshot.nodes
    assert (built.cpu_milli, built.memory_bytes, built.devices[0].memory_mib) == (8000, 64 * 10**9, 40000)
    gpu, cpu, memory = snapshot.queues[0].shares
    assert (gpu.quota, gpu.limit) == (500, None)
    assert (cpu.quota, cpu.limit) == (1500, None)
    assert (memory.quota, memory.limit) == (None, 2_000_000)


def test_defaults_hold_where_nothing_is_said(tmp_path: Path) -> None:
    defaults = {"node_cpu_cores": 4, "node_memory_bytes": 1e9, "node_max_pods": 3, "task_cpu_cores_default": 2}
    snapshot, _ = seen(tmp_path, a_scenario(a_job()), defaults=defaults)
    assert (snapshot.nodes[0].cpu_milli, snapshot.nodes[0].memory_bytes, snapshot.nodes[0].max_tasks) == (
        4000,
        10**9,
        3,
    )
    request = snapshot.jobs[0].tasks[0].request
    assert (request.devices, request.cpu_milli, request.memory_bytes) == (1, 2000, 10**9)


def test_a_job_that_names_no_resource_asks_for_none(tmp_path: Path) -> None:
    request = the_job(tmp_path, a_job(gpus_per_task=None)).tasks[0].request
    assert (request.devices, request.cpu_milli, request.memory_bytes) == (0, 0, 0)


def test_an_implicit_department_is_unlimited(tmp_path: Path) -> None:
    assert seen(tmp_path, a_scenario())[0].queues[0] == Queue("d", overcommit=True)


def test_older_jobs_were_submitted_earlier(tmp_path: Path) -> None:
    old, young = seen(tmp_path, a_scenario(a_job("old", age_minutes=5), a_job("young", age_minutes=1)))[0].jobs
    assert young.submitted_at_ms - old.submitted_at_ms == 4 * 60_000


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"gpus_per_task": 3}, (3, 1000, 0)),
        ({"gpus_per_task": 0.3}, (1, 300, 0)),
        ({"gpus_per_task": 0.5, "fraction_devices_per_task": 2}, (2, 500, 0)),
        ({"gpus_per_task": None, "gpu_memory_mib_per_task": 60}, (1, 0, 60)),
        ({"gpus_per_task": None, "gpu_memory_mib_per_task": 60, "fraction_devices_per_task": 3}, (3, 0, 60)),
    ],
)
def test_gpus_are_asked_for_whole_by_share_or_by_memory(
    tmp_path: Path, fields: Fields, asked: tuple[int, int, int]
) -> None:
    request = the_job(tmp_path, a_job(**fields)).tasks[0].request
    assert (request.devices, request.gpu_milli, request.gpu_memory_mib) == asked


def test_a_task_may_ask_for_its_own_number_of_gpus(tmp_path: Path) -> None:
    assert the_job(tmp_path, a_job("job", a_task(gpus=2))).tasks[0].request.devices == 2


@pytest.mark.parametrize(("state", "expected"), [("Binding", "running"), ("Releasing", "freeing"), ("Gated", "gated")])
def test_states_have_one_meaning(tmp_path: Path, state: str, expected: str) -> None:
    assert the_job(tmp_path, a_job("job", a_task(state=state, node="node0"))).tasks[0].state == TaskState(expected)


def test_a_job_is_one_gang_of_all_its_tasks_unless_it_says_otherwise(tmp_path: Path) -> None:
    tasks = [a_task("job-0"), a_task("job-1")]
    assert the_job(tmp_path, a_job("job", *tasks)).group.min_tasks == 2
    assert the_job(tmp_path, a_job("job", *tasks, min_available=1)).group.min_tasks == 1


def test_subgroups_become_a_tree(tmp_path: Path) -> None:
    constraint = {"topology": "t", "required_level": "rack"}
    leaves = [{"name": "a", "leaf": True, "min_available": 2}, {"name": "b", "leaf": True}]
    tree = {"name": "", "min_subgroups": 1, "members": leaves, "topology_constraint": constraint}
    job = the_job(tmp_path, a_job("job", a_task("job-0", subgroup="b"), a_task("job-1"), subgroups=tree))
    assert (job.group.min_groups, job.group.topology) == (1, TopologyRule("t", required="rack"))
    assert [(leaf.name, leaf.min_tasks) for leaf in job.group.children] == [("a", 2), ("b", 1)]
    assert [task.group for task in job.tasks] == ["b", "a"]


def test_affinity_becomes_rules(tmp_path: Path) -> None:
    keys = {"pod_affinity_topology_key": "zone", "pod_anti_affinity_topology_key": "host"}
    task = a_task(node_affinity_names=["node0"], pod_labels={"app": "db"}, **keys)
    job = the_job(tmp_path, a_job("job", task))
    where = job.tasks[0].request.where
    assert where.any_of[0][0].accepts({"kai.scheduler/type": "node0"})
    labels = (("app", "db"),)
    assert where.neighbours == (Neighbour(labels, "zone"), Neighbour(labels, "host", apart=True))
    assert job.labels == labels


def test_a_node_carries_its_name_as_its_type_unless_it_says_otherwise(tmp_path: Path) -> None:
    nodes = [{"name": "a"}, {"name": "b", "labels": {"kai.scheduler/type": "fast"}}]
    a, b = seen(tmp_path, a_scenario(input={"nodes": nodes}))[0].nodes
    assert (a.labels["kai.scheduler/type"], b.labels["kai.scheduler/type"]) == ("a", "fast")


def test_staleness_has_its_grace(tmp_path: Path) -> None:
    about: Fields = {"actions": ["stalegangeviction"]}
    assert the_job(tmp_path, a_job(), **about).staleness_grace_ms == 60_000
    assert the_job(tmp_path, a_job()).staleness_grace_ms == 0
    job = seen(tmp_path, a_scenario(a_job(stale_for_s=7, staleness_grace_period_s=5), **about))[0].jobs[0]
    assert (job.staleness_grace_ms, job.stale_since_ms) == (5000, job.submitted_at_ms - 7000)


# ------------------------------------------------------------------------------------------------------- devices


def test_tasks_of_one_group_share_one_device(tmp_path: Path) -> None:
    halves = [running(f"half-{n}", gpu_groups=["1"]) for n in range(2)]
    whole = a_job("whole", running("whole-0"))
    snapshot, _ = seen(tmp_path, a_scenario(whole, a_job("half", *halves, gpus_per_task=0.5)))
    assert devices_of(snapshot) == {"whole-0": [0], "half-0": [1], "half-1": [1]}


def test_groups_that_are_no_index_get_the_next_device(tmp_path: Path) -> None:
    names = {"a": ["blue"], "b": ["0"], "c": ["blue"]}
    tasks = [running(f"half-{name}", gpu_groups=groups) for name, groups in names.items()]
    snapshot, _ = seen(tmp_path, a_scenario(a_job("half", *tasks, gpus_per_task=0.5)))
    assert devices_of(snapshot) == {"half-a": [1], "half-b": [0], "half-c": [1]}


def test_parts_without_a_group_lie_where_there_is_room(tmp_path: Path) -> None:
    tasks = [running(f"part-{n}") for n in range(2)]
    snapshot, _ = seen(tmp_path, a_scenario(a_job("part", *tasks, gpus_per_task=0.7)))
    assert devices_of(snapshot) == {"part-0": [0], "part-1": [1]}


def test_what_waits_for_its_place_may_lie_on_what_is_being_freed(tmp_path: Path) -> None:
    ending = a_job("ending", a_task("ending-0", "Releasing", node="node0"), gpus_per_task=2)
    waiting = a_job("waiting", a_task("waiting-0", "Pipelined", node="node0"))
    snapshot, _ = seen(tmp_path, a_scenario(ending, waiting))
    assert devices_of(snapshot) == {"ending-0": [0, 1], "waiting-0": [0]}


def test_a_part_holds_its_share_of_the_memory(tmp_path: Path) -> None:
    job = the_job(tmp_path, a_job("job", running(gpu_groups=["0"]), gpus_per_task=0.3))
    assert [(share.gpu_milli, share.memory_mib) for share in job.tasks[0].shares] == [(300, 30)]


def test_slices_are_held_by_profile(tmp_path: Path) -> None:
    node = {"name": "node0", "gpus": 0, "mig_strategy": "mixed", "mig_instances": {MIG: 3}}
    job = a_job("job", running(mig_instances={MIG: 2}), gpus_per_task=None)
    snapshot, _ = seen(tmp_path, a_scenario(job, input={"nodes": [node]}))
    assert [share.mig for share in snapshot.jobs[0].tasks[0].shares] == ["1g.10gb", "1g.10gb"]
    assert [(s.profile, s.count) for s in snapshot.nodes[0].devices[0].mig] == [("1g.10gb", 3)]


def test_a_legacy_slice_is_placed_nowhere_and_bars_its_node(tmp_path: Path) -> None:
    old = a_job("old", running("old-0", legacy_mig=True), a_task("old-1", legacy_mig=True), gpus_per_task=None)
    new = a_job("new", a_task("new-0", mig_instances={MIG: 1}), gpus_per_task=None)
    snapshot, _ = seen(tmp_path, a_scenario(old, new))
    labels = snapshot.nodes[0].labels
    for task in ("old-1", "new-0"):
        (rules,) = tasks_by_id(snapshot)[task].request.where.any_of
        assert not all(rule.accepts(labels) for rule in rules)
    assert {rule.operator for rule in rules} == {Operator.MISSING}


@given(st.lists(st.tuples(st.sampled_from([0.3, 0.5, 0.7, 1, 2]), st.sampled_from(["0", "1", "x", ""])), max_size=5))
def test_devices_are_not_overbooked_while_groups_are_not(
    tmp_path_factory: pytest.TempPathFactory, wishes: list[tuple[float, str]]
) -> None:
    """Whatever runs where: a device is held beyond its capacity only where one group was."""
    jobs = [
        a_job(f"job{n}", running(f"job{n}-0", gpu_groups=[group] if group and gpus < 1 else []), gpus_per_task=gpus)
        for n, (gpus, group) in enumerate(wishes)
    ]
    snapshot, _ = seen(
        tmp_path_factory.mktemp("corpus"), a_scenario(*jobs, input={"nodes": [{"name": "node0", "gpus": 8}]})
    )
    grouped: dict[str, float] = {}
    for gpus, group in wishes:
        if group and gpus < 1:
            grouped[group] = grouped.get(group, 0) + gpus
    booked: dict[int, int] = {}
    for task in tasks_by_id(snapshot).values():
        for share in task.shares:
            booked[share.device] = booked.get(share.device, 0) + share.gpu_milli
    assert max(booked.values(), default=0) <= max(1000, *(round(total * 1000) for total in grouped.values()), 0)


# --------------------------------------------------------------------------------------------------------- the policy


def test_the_actions_are_the_steps(tmp_path: Path) -> None:
    actions = ["allocate", "consolidation", "reclaim", "preempt", "stalegangeviction"]
    assert seen(tmp_path, a_scenario(actions=actions))[1].steps == tuple(Step)
    assert seen(tmp_path, a_scenario(actions=["preempt"]))[1].steps == (Step.PREEMPT,)


@pytest.mark.parametrize(
    ("plugins", "nodes", "devices"),
    [
        ([], NodePlacement.BIN_PACK, DevicePlacement.PACK),
        ([{"Name": "gpuspread"}], NodePlacement.BIN_PACK, DevicePlacement.SPREAD),
        (
            [{"Name": "nodeplacement", "Arguments": {"cpu": "spread", "gpu": "spread"}}],
            NodePlacement.SPREAD,
            DevicePlacement.PACK,
        ),
    ],
)
def test_the_configuration_chooses_the_placement(
    tmp_path: Path, plugins: list[Fields], nodes: NodePlacement, devices: DevicePlacement
) -> None:
    conf = {"Actions": "allocate", "Tiers": [{"Plugins": plugins}]}
    _, policy = seen(tmp_path, a_scenario(input={"scheduler_conf": conf}))
    assert (policy.node_placement, policy.device_placement) == (nodes, devices)


# --------------------------------------------------------------------------------------------------------- fair share


def a_vector(expected: Fields, **queues: Fields) -> Fields:
    built = {name: {"parent": "", "GPU": {"request": 10, **demand}} for name, demand in queues.items()}
    return {"id": "f-1", "k": 0, "total": {"GPU": 8}, "queues": built, "expected": expected}


def judged_vector(folder: Path, vector: Fields) -> Verdict:
    path = folder / "fair.json"
    path.write_text(json.dumps({"format": 1, "vectors": [vector]}))
    (verdict,) = judge_corpus_file(path)
    return verdict


def test_fair_share_cases_are_judged_too(tmp_path: Path) -> None:
    vector = a_vector({"a": {"GPU": 5.5}, "b": {"GPU": 2.5}}, a={"deserved": 3.5}, b={"deserved": -1, "request": 2.5})
    assert judged_vector(tmp_path, vector) == Verdict("f-1", True)


def test_a_wrong_share_is_told(tmp_path: Path) -> None:
    verdict = judged_vector(tmp_path, a_vector({"a": {"GPU": 7}}, a={"limit": 4}))
    assert verdict == Verdict("f-1", False, ("a GPU: expected 7, got 4",))


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"colour": 1}, "scenario s-1: unknown field `colour`"),
        ({"input": {"nodes": [{"name": "n", "gpu": 1}]}}, "scenario s-1: unknown field `gpu` at input.nodes[0]"),
        ({"kind": "endless"}, "scenario s-1: Invalid enum value 'endless' at kind"),
        ({"input": {"dra": {"Slices": []}}}, "scenario s-1: unknown field `Slices` at input.dra"),
    ],
)
def test_what_is_not_known_is_named(tmp_path: Path, change: Fields, told: str) -> None:
    with pytest.raises(InputError) as error:
        judged(tmp_path, {**a_scenario(), **change})
    assert str(error.value).startswith(f"{tmp_path / 'corpus.json'}: {told}")


def test_a_file_with_a_mistake_is_refused_as_a_whole(tmp_path: Path) -> None:
    verdicts = judge_corpus_file(a_file(tmp_path, a_scenario(), {**a_scenario(), "colour": 1}), does())
    with pytest.raises(InputError, match="colour"):
        next(verdicts)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is not JSON"),
        ('{"format": 2, "scenarios": []}', "format 2 is not known"),
        ('{"format": 1}', "neither scenarios nor vectors"),
        ('{"format": 1, "scenario": []}', "unknown field `scenario`"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "corpus.json"
    path.write_text(content)
    with pytest.raises(InputError, match=told):
        list(judge_corpus_file(path))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        list(judge_corpus_file(tmp_path / "nothing.json"))
