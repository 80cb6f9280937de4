"""Change files: what they say becomes changes that lead to a sound cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuyard.files.change import read_change
from gpuyard.files.cluster import ClusterFile, read_cluster
from gpuyard.model.jobs import Job, TaskState
from gpuyard.model.quantities import CPU, GPU
from gpuyard.model.queues import Queue
from gpuyard.model.reasons import Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.scheduler.cycle import schedule
from tests.replay import follow

VALID = Path(__file__).parent / "valid"

CLUSTER = """
nodes: {"n[1-3]": {gpus: 4}}
topologies: {default: [hostname]}
queues:
  research: {children: {vision: {quota: 4, limit: 8}, speech: 4}}
  product: {quota: 4, cpu: {quota: 8, limit: 16}}
running:
  - {job: wide, team: vision, gpus: 2, tasks: 3, on: [n1, n2, n3]}
  - {job: other, team: speech, gpus: 1, on: n3}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterFile:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER, encoding="utf-8")
    return read_cluster(path)


def after(cluster: ClusterFile, folder: Path, text: str) -> Snapshot:
    path = folder / "change.yaml"
    path.write_text(text, encoding="utf-8")
    snapshot = cluster.snapshot
    for change in read_change(path, cluster):
        snapshot = follow(snapshot, change)
    return snapshot


def queue(snapshot: Snapshot, name: str) -> Queue:
    return next(queue for queue in snapshot.queues if queue.name == name)


def job(snapshot: Snapshot, name: str) -> Job:
    return next(job for job in snapshot.jobs if job.id == name)


def test_what_a_queue_is_not_given_stays(cluster: ClusterFile, tmp_path: Path) -> None:
    changed = after(cluster, tmp_path, "queues: {vision: 6, product: {cpu: {limit: 20}, priority: 7}}")
    share = queue(changed, "vision").share(GPU)
    assert (share.quota, share.limit) == (6000, 8000)
    product = queue(changed, "product")
    assert (product.share(CPU).quota, product.share(CPU).limit, product.priority) == (8000, 20_000, 7)
    assert product.share(GPU) == queue(cluster.snapshot, "product").share(GPU)


def test_a_bound_may_be_taken_away(cluster: ClusterFile, tmp_path: Path) -> None:
    changed = after(cluster, tmp_path, "queues: {vision: {limit: unlimited}}")
    assert queue(changed, "vision").share(GPU).limit is None


def test_a_parent_that_says_no_quota_follows_its_children(cluster: ClusterFile, tmp_path: Path) -> None:
    assert queue(cluster.snapshot, "research").share(GPU).quota == 8000
    changed = after(cluster, tmp_path, "queues: {vision: 6, robots: {parent: research, quota: 3}}")
    assert queue(changed, "research").share(GPU).quota == 13_000


def test_a_new_queue_at_the_top_is_the_youngest(cluster: ClusterFile, tmp_path: Path) -> None:
    new = queue(after(cluster, tmp_path, "queues: {sales: {new: true, quota: 1}}"), "sales")
    assert (new.parent, new.share(GPU).quota, new.order) == (None, 1000, 4)


def test_a_job_may_ask_for_a_new_queue_at_once(cluster: ClusterFile, tmp_path: Path) -> None:
    text = "queues: {sales: {new: true}}\njobs: [{job: a, team: sales}]"
    assert job(after(cluster, tmp_path, text), "a").queue == "sales"


def test_what_runs_on_drained_and_removed_nodes_waits_again(cluster: ClusterFile, tmp_path: Path) -> None:
    changed = after(cluster, tmp_path, "nodes: {drain: [n1], remove: [n2]}")
    assert {node.name: node.cordoned for node in changed.nodes} == {"n1": True, "n3": False}
    wide = job(changed, "wide")
    assert [(task.state, task.node) for task in wide.tasks] == [
        (TaskState.PENDING, ""),
        (TaskState.PENDING, ""),
        (TaskState.RUNNING, "n3"),
    ]
    assert wide.last_eviction is not None
    assert wide.last_eviction.token is Token.DRAINED
    assert job(changed, "other") == job(cluster.snapshot, "other")


def test_nodes_may_be_named_by_range_and_come_back_as_others(cluster: ClusterFile, tmp_path: Path) -> None:
    changed = after(cluster, tmp_path, 'nodes: {remove: ["n[1-2]"], add: {n2: {gpus: 16}, "h[1-2]": 8}}')
    assert {node.name: len(node.devices) for node in changed.nodes} == {"n2": 16, "n3": 4, "h1": 8, "h2": 8}
    assert all(node.labels["hostname"] == node.name for node in changed.nodes)


def test_a_cancelled_job_may_be_submitted_anew(cluster: ClusterFile, tmp_path: Path) -> None:
    changed = after(cluster, tmp_path, "cancel: [wide]\njobs: [{job: wide, team: speech, gpus: 1}]")
    assert [(task.state, task.request.devices) for task in job(changed, "wide").tasks] == [(TaskState.PENDING, 1)]


def test_a_cancelled_job_is_not_sent_away_as_well(cluster: ClusterFile, tmp_path: Path) -> None:
    changed = after(cluster, tmp_path, "cancel: [wide]\nnodes: {drain: [n1]}")
    assert [one.id for one in changed.jobs] == ["other"]


def test_the_long_form_is_read_and_can_be_planned() -> None:
    cluster = read_cluster(VALID / "cluster.yaml")
    snapshot = cluster.snapshot
    for change in read_change(VALID / "change.yaml", cluster):
        snapshot = follow(snapshot, change)
    assert {node.name for node in snapshot.nodes} == {"a100-1", "mig-1", "old-1", "h100-1", "h100-2", "cpu-1"}
    assert job(snapshot, "training").queue == "sales"
    assert schedule(snapshot, cluster.policy).actions
