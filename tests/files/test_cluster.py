"""What a cluster file means: short forms, defaults, and exact values."""

from pathlib import Path
from typing import Any

import pytest

from gpuyard.errors import InputError
from gpuyard.files import seating
from gpuyard.files.cluster import ClusterFile, read_cluster, read_jobs
from gpuyard.files.jobs import NOW_MS
from gpuyard.model.jobs import (
    DeviceShare,
    Job,
    LabelRule,
    Neighbour,
    Operator,
    Sharing,
    TaskState,
    Toleration,
    TopologyRule,
)
from gpuyard.model.nodes import MigSlices, Node, Taint
from gpuyard.model.quantities import GPU
from gpuyard.model.queues import Queue, QueueShare, QueueUsage
from gpuyard.policies.policy import DEFAULT, Consolidation, ConsolidationMode, NodePlacement, Step

VALID = Path(__file__).parent / "valid"


@pytest.fixture
def long_form() -> ClusterFile:
    return read_cluster(VALID / "cluster.yaml")


def written(folder: Path, text: str, name: str = "cluster.yaml") -> ClusterFile:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_cluster(path)


def node(cluster: ClusterFile, name: str) -> Node:
    return next(node for node in cluster.snapshot.nodes if node.name == name)


def queue(cluster: ClusterFile, name: str) -> Queue:
    return next(queue for queue in cluster.snapshot.queues if queue.name == name)


def job(cluster: ClusterFile, name: str) -> Job:
    return next(job for job in cluster.snapshot.jobs if job.id == name)


# ------------------------------------------------------------------------------------------------------------- nodes


def test_the_shortest_file_is_a_cluster(tmp_path: Path) -> None:
    cluster = written(tmp_path, "nodes: 2\n")
    assert [node.name for node in cluster.snapshot.nodes] == ["node-1", "node-2"]
    first = cluster.snapshot.nodes[0]
    assert len(first.devices) == 8
    assert first.devices[0].memory_mib == 81920
    assert (first.cpu_milli, first.memory_bytes, first.max_tasks) == (128_000, 1 << 40, 110)
    assert cluster.snapshot.queues == (Queue("default", shares=(QueueShare(GPU),)),)
    assert cluster.policy == DEFAULT


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("cluster: {nodes: 2, gpus: 4}", ["node-1", "node-2"]),
        ("nodes: [{name: 'a-[1-3]'}]", ["a-1", "a-2", "a-3"]),
        ("nodes: {'a-[08-10]': 4, b: {gpus: 2}, c: }", ["a-08", "a-09", "a-10", "b", "c"]),
        ("nodes: [{name: 'r[1-2]-n[1-2]'}]", ["r1-n1", "r1-n2", "r2-n1", "r2-n2"]),
        ("cluster: {gpus: 1}", ["node-1"]),
    ],
)
def test_nodes_may_be_written_in_many_ways(tmp_path: Path, nodes: str, names: list[str]) -> None:
    assert [node.name for node in written(tmp_path, nodes).snapshot.nodes] == names


def test_what_the_cluster_says_holds_for_nodes_that_do_not(tmp_path: Path) -> None:
    cluster = written(tmp_path, "cluster: {model: H100, nodes: {a: 2, b: {model: A100}}}")
    assert [node.devices[0].model for node in cluster.snapshot.nodes] == ["H100", "A100"]


def test_a_node_in_all_its_details(long_form: ClusterFile) -> None:
    a100 = node(long_form, "a100-2")
    assert a100.labels == {"hostname": "a100-2", "zone": "a", "rack": "r1"}
    assert a100.taints == (Taint("dedicated", "infra"),)
    assert a100.other == (("nic", 2),)
    assert [device.nvlink for device in a100.devices] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [device.healthy for device in a100.devices].index(False) == 7
    assert node(long_form, "mig-1").devices[0].mig == (MigSlices("1g.10gb", 7),)
    assert node(long_form, "mig-1").devices[1].mig == ()
    assert node(long_form, "old-1").cordoned


def test_a_gpu_in_no_link_group_stands_alone(tmp_path: Path) -> None:
    cluster = written(tmp_path, "nodes: [{name: a, gpus: 4, nvlink: [[1, 2]]}]")
    assert [device.nvlink for device in cluster.snapshot.nodes[0].devices] == [1, 0, 0, 4]


# ------------------------------------------------------------------------------------------------------------ queues


def test_quotas_are_exact(tmp_path: Path) -> None:
    cluster = written(tmp_path, "queues: {top: {quota: 0.3, children: {a: 0.1, b: 0.2}}}")
    assert [q.share(GPU).quota for q in cluster.snapshot.queues] == [300, 100, 200]


def test_a_parent_without_a_quota_is_owed_what_its_children_are(tmp_path: Path) -> None:
    cluster = written(tmp_path, "queues: {top: {children: {mid: {children: {a: 1, b: 2}}, c: 4, d: }}}")
    assert queue(cluster, "top").share(GPU).quota == 7000
    assert queue(cluster, "mid").share(GPU).quota == 3000
    assert queue(cluster, "d").share(GPU).quota == 0


def test_a_child_that_is_owed_all_makes_its_parent_so(tmp_path: Path) -> None:
    cluster = written(tmp_path, "queues: {top: {children: {a: unlimited, b: 2}}}")
    assert queue(cluster, "top").share(GPU).quota is None


def test_children_may_name_their_parent_instead(tmp_path: Path) -> None:
    nested = written(tmp_path, "queues: {top: {children: {a: 1, b: 2}}}")
    named = written(tmp_path, "queues: {top: , a: {quota: 1, parent: top}, b: {quota: 2, parent: top}}")
    assert nested.snapshot.queues == named.snapshot.queues


def test_a_queue_in_all_its_details(long_form: ClusterFile) -> None:
    vision = queue(long_form, "vision")
    assert vision.share("gpu") == QueueShare("gpu", 12_000, 16_000, 2000)
    assert vision.share("cpu") == QueueShare("cpu", 64_000, 96_000)
    assert vision.share("memory") == QueueShare("memory", 1 << 40)
    assert queue(long_form, "speech").share("gpu/A100") == QueueShare("gpu/A100", 4000, 8000)
    assert queue(long_form, "speech").share("nic") == QueueShare("nic", None, 1)
    assert queue(long_form, "speech").reclaim_min_runtime_ms == 600_000
    assert queue(long_form, "product").preempt_min_runtime_ms == 5_400_000
    assert queue(long_form, "product").share("gpu").limit is None
    assert (queue(long_form, "product").disruption_budget, vision.disruption_budget) == (4, None)
    assert queue(long_form, "research").overcommit
    assert long_form.snapshot.usage == (
        QueueUsage("research", "gpu", 250_000),
        QueueUsage("vision", "gpu", 250_000),
    )


def test_past_use_is_exact_and_adds_up_over_the_tree(tmp_path: Path) -> None:
    text = "queues: {top: {children: {mid: {used: 40%, children: {a: {used: 0.0001%}, b: }}, c: {used: 12.5%}}}}"
    usage = {entry.queue: entry.usage_ppm for entry in written(tmp_path, text).snapshot.usage}
    assert usage == {"top": 525_000, "mid": 400_000, "a": 1, "c": 125_000}


def test_a_resource_may_have_its_own_priority(tmp_path: Path) -> None:
    cluster = written(tmp_path, "queues: {a: {quota: 1, priority: 7, cpu: {quota: 2, priority: 9}, memory: 1Gi}}")
    a = queue(cluster, "a")
    assert (a.priority, a.share("cpu").priority, a.share("memory").priority) == (7, 9, None)


# -------------------------------------------------------------------------------------------------------------- jobs


def test_the_order_of_the_file_is_the_order_of_submission(long_form: ClusterFile) -> None:
    times = [job.submitted_at_ms for job in long_form.snapshot.jobs if job.id not in ("pipeline", "training")]
    assert times == sorted(times)
    assert times[-1] < NOW_MS


def test_a_job_in_all_its_details(long_form: ClusterFile) -> None:
    pipeline = job(long_form, "pipeline")
    assert (pipeline.priority, pipeline.preemptible, pipeline.spread) == (75, False, True)
    assert pipeline.submitted_at_ms == NOW_MS - 600_000
    assert (pipeline.run_limit_ms, pipeline.estimate_ms) == (7_200_000, 3_600_000)
    assert (pipeline.checkpoint_at_ms, pipeline.restart_ms) == (NOW_MS - 300_000, 120_000)
    assert (pipeline.movable, pipeline.disruption_budget) == (True, None)
    assert (job(long_form, "leaving").movable, job(long_form, "leaving").disruption_budget) == (False, 0)
    assert (pipeline.preemption_delay_ms, pipeline.staleness_grace_ms) == (30_000, 500)
    assert pipeline.stale_since_ms == NOW_MS - 10_000
    assert pipeline.last_evicted_at_ms == NOW_MS - 86_400_000
    assert pipeline.labels == (("app", "pipeline"),)
    assert pipeline.group.topology == TopologyRule("default", "zone", "rack")
    assert [group.name for group in pipeline.group.children] == ["driver", "training-part"]
    assert pipeline.group.children[1].children[0].min_tasks == 2
    assert [task.group for task in pipeline.tasks] == ["driver", *["worker"] * 4, "helper"]


def test_a_role_takes_from_its_job_what_it_does_not_say(long_form: ClusterFile) -> None:
    driver, *workers, helper = job(long_form, "pipeline").tasks
    assert (driver.request.devices, driver.request.cpu_milli) == (0, 2000)
    assert driver.request.memory_bytes == 8 << 30
    assert (workers[0].request.devices, workers[0].request.gpu_milli) == (2, 500)
    assert workers[0].request.sharing is Sharing.MPS
    assert workers[0].request.cpu_milli == 500
    assert (helper.request.gpu_memory_mib, helper.request.gpu_milli) == (4096, 0)


def test_where_a_job_may_run(long_form: ClusterFile) -> None:
    where = job(long_form, "pipeline").tasks[0].request.where
    always = (
        LabelRule("zone", Operator.IN, ("a",)),
        LabelRule("rack", Operator.IN, ("r1", "r2")),
        LabelRule("spot", Operator.MISSING),
        LabelRule("tier", Operator.NOT_IN, ("slow",)),
    )
    assert where.any_of == (
        (*always, LabelRule("rack", Operator.IN, ("r1",))),
        (*always, LabelRule("rack", Operator.EXISTS)),
    )
    assert where.tolerations == (Toleration(),)
    assert where.gpu_models == ("A100", "H100")
    assert where.neighbours == (
        Neighbour((("app", "store"),), "hostname"),
        Neighbour((("app", "pipeline"),), "rack", apart=True),
    )


@pytest.mark.parametrize(
    ("fields", "tasks", "gang"), [("", 1, 1), ("gang: 4", 4, 4), ("tasks: 4", 4, 4), ("tasks: 8, gang: 2", 8, 2)]
)
def test_tasks_and_gang(tmp_path: Path, fields: str, tasks: int, gang: int) -> None:
    (only,) = written(tmp_path, f"pending: [{{job: a, {fields}}}]").snapshot.jobs
    assert (len(only.tasks), only.group.min_tasks) == (tasks, gang)


def test_jobs_of_a_job_file_are_younger_than_the_cluster(long_form: ClusterFile) -> None:
    first, second = read_jobs(VALID / "jobs.yaml", long_form)
    assert max(job.submitted_at_ms for job in long_form.snapshot.jobs) < first.submitted_at_ms < second.submitted_at_ms
    assert second.tasks[0].request.gpu_milli == 100
    (single,) = read_jobs(VALID / "job.yaml", long_form)
    assert len(single.tasks) == 2


# ----------------------------------------------------------------------------------------------------------- running


def test_running_tasks_hold_what_the_file_says(long_form: ClusterFile) -> None:
    one, two = job(long_form, "training").tasks
    assert (one.node, [share.device for share in one.shares]) == ("a100-1", [0, 1])
    assert (two.node, [share.device for share in two.shares]) == ("a100-2", [2, 3])
    assert one.started_at_ms == NOW_MS - 7_200_000
    assert one.shares[0] == DeviceShare(0, 1000, 81920)


def test_tasks_that_on_does_not_cover_still_wait(long_form: ClusterFile) -> None:
    states = [task.state for task in job(long_form, "elastic").tasks]
    assert states == [TaskState.RUNNING, TaskState.RUNNING, TaskState.PENDING, TaskState.PENDING]


def test_what_a_file_leaves_open_is_filled_lowest_first(long_form: ClusterFile) -> None:
    (notebook,) = job(long_form, "notebook").tasks
    assert notebook.shares == (DeviceShare(2, 300, 81920 * 300 // 1000),)
    assert [task.shares[0].device for task in job(long_form, "elastic").tasks[:2]] == [0, 1]
    assert [share.mig for share in job(long_form, "sliced").tasks[0].shares] == ["1g.10gb", "1g.10gb"]


def test_a_place_that_is_named_is_not_taken_by_a_choice(tmp_path: Path) -> None:
    running = "running: [{job: any, gpus: 4}, {job: fixed, on: node-1, devices_on: [0]}]"
    cluster = written(tmp_path, f"cluster: {{gpus: 8}}\n{running}")
    assert [share.device for share in job(cluster, "any").tasks[0].shares] == [1, 2, 3, 4]


def test_parts_are_packed_on_the_fullest_gpu(tmp_path: Path) -> None:
    jobs = ", ".join(
        f"{{job: {name}, gpus: {part}}}" for name, part in (("a", 0.5), ("b", 0.7), ("c", 0.25), ("d", 0.25))
    )
    cluster = written(tmp_path, f"nodes: 1\nrunning: [{jobs}]")
    assert [j.tasks[0].shares[0].device for j in cluster.snapshot.jobs] == [0, 1, 1, 0]


def test_what_runs_on_a_broken_gpu_stays_there(tmp_path: Path) -> None:
    cluster = written(
        tmp_path, "nodes: [{name: a, unhealthy: [0]}]\nrunning: [{job: x, on: a, devices_on: [0]}, {job: y, on: a}]"
    )
    assert [j.tasks[0].shares[0].device for j in cluster.snapshot.jobs] == [0, 1]


def test_a_running_job_without_a_node_goes_where_it_may(tmp_path: Path) -> None:
    cluster = written(tmp_path, "nodes: [{name: a, taints: [x]}, {name: b}]\nrunning: [{job: j}]")
    assert job(cluster, "j").tasks[0].node == "b"


def test_what_is_ending_is_freeing(long_form: ClusterFile) -> None:
    leaving = job(long_form, "leaving")
    assert leaving.tasks[0].state is TaskState.FREEING
    assert not leaving.movable
    assert leaving.tasks[0].shares == (DeviceShare(0, 0, 4096),)


# ------------------------------------------------------------------------------------------------------------- files


def test_the_policy_of_a_file(long_form: ClusterFile) -> None:
    assert long_form.policy.node_placement is NodePlacement.SPREAD
    assert long_form.policy.steps == (Step.ALLOCATE, Step.RECLAIM)
    assert long_form.policy.consolidation == Consolidation(ConsolidationMode.OFF, None, 9, 600_000, 7)
    assert not long_form.policy.reclaim_moves
    assert long_form.policy.staleness_grace_ms < 0
    assert long_form.snapshot.moves_last_hour == 3


def test_a_bound_that_is_left_empty_is_none_and_one_that_is_left_out_the_default(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("policy: {consolidation: {max_moves_per_cycle: }}\n", encoding="utf-8")
    assert read_cluster(path).policy.consolidation.max_moves_per_cycle is None
    path.write_text("policy: {consolidation: }\n", encoding="utf-8")
    assert read_cluster(path).policy.consolidation == Consolidation()


def test_json_is_yaml_even_with_tabs(tmp_path: Path) -> None:
    cluster = written(tmp_path, '{\n\t"nodes": 2,\n\t"queues": {"no": 0.3}\n}\n', "cluster.json")
    assert queue(cluster, "no").share(GPU).quota == 300


def test_windows_line_ends_and_a_byte_order_mark_are_fine(tmp_path: Path) -> None:
    assert len(written(tmp_path, "\ufeffnodes: 2\r\nqueues:\r\n  a: 1\r\n").snapshot.nodes) == 2


def test_aliases_are_written_out(tmp_path: Path) -> None:
    cluster = written(tmp_path, "queues: {a: &same {quota: 4, limit: 8}, b: *same}")
    assert queue(cluster, "a").shares == queue(cluster, "b").shares


def test_reading_twice_gives_the_same(long_form: ClusterFile) -> None:
    assert read_cluster(VALID / "cluster.yaml") == long_form


def test_a_missing_file_says_what_was_meant(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").touch()
    with pytest.raises(InputError, match=r"clutser.yaml: no such file\n  did you mean .*/cluster.yaml\?"):
        read_cluster(tmp_path / "clutser.yaml")


def test_a_file_in_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist either"):
        read_cluster(tmp_path / "nowhere" / "cluster.yaml")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder, not a file"):
        read_cluster(tmp_path)


def test_a_path_no_system_takes() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_cluster(Path("a\0b"))


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"#" * ((16 << 20) + 1))
    with pytest.raises(InputError, match="larger than 16 MiB"):
        read_cluster(path)


def test_no_node_is_asked_twice_whether_it_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    choose = seating.Desk.shares

    def counted(desk: seating.Desk, *arguments: Any) -> Any:
        asked.append(desk.node.name)
        return choose(desk, *arguments)

    monkeypatch.setattr(seating.Desk, "shares", counted)
    written(tmp_path, "nodes: 50\nrunning: [{job: a, tasks: 200}, {job: b, tasks: 100}, {job: c, gpus: 2, tasks: 50}]")
    assert len(asked) <= 350 + 2 * 50


def test_a_file_for_submit_can_be_planned_on_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "work.yaml"
    cluster = written(tmp_path, "nodes: 1\nqueues: {vision: 4, speech: 4}\npending: [{job: old, team: vision}]")
    path.write_text("{command: python train.py, name: new, team: vision, gpus: 2, nodes: 2, priority: high}")
    (new,) = read_jobs(path, cluster)
    assert (new.id, new.queue, new.priority, new.submitted_at_ms) == ("new", "vision", 75, NOW_MS)
    assert [(task.id, task.request.devices) for task in new.tasks] == [("new/0", 2), ("new/1", 2)]
    path.write_text("{command: x, team: vision, array: 3-9%2}")
    assert [one.id for one in read_jobs(path, cluster)] == ["x_3", "x_4"]
    path.write_text("{command: x, name: old, team: vision}")
    with pytest.raises(InputError, match='job "old" is in the cluster already'):
        read_jobs(path, cluster)
