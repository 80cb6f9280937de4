"""What a JobSet still waits for, once some of its Jobs are done: for what is done no pod is made any more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.kubernetes.small_cluster import SmallCluster, reference_to

PREFIX = "jobset.sigs.k8s.io"


class Training:
    """A JobSet of a driver and two workers, each with a GPU, on a node with room for all."""

    def __init__(self, completions: int = 2) -> None:
        self.cluster = SmallCluster(nodes=1, gpus=4)
        jobs = [("driver", 1, 1), ("workers", 2, completions)]
        replicated = [{"name": name, "template": {"spec": counts(*count)}} for name, *count in jobs]
        self.cluster.put_owner("JobSet", "train", about("train"), {"replicatedJobs": replicated})
        for name, *count in jobs:
            labels = {f"{PREFIX}/replicatedjob-name": name, f"{PREFIX}/job-index": "0"}
            above = [reference_to(self.cluster.owners["train"])]
            metadata = {**about(name), "labels": labels, "ownerReferences": above}
            self.cluster.put_owner("Job", name, metadata, counts(*count))

    def add(self, name: str, owner: str, index: int = 0) -> None:
        labels = {
            **self.cluster.owners[owner]["metadata"]["labels"],
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        self.cluster.add_pod(name, 1, owner=owner, labels=labels)

    def add_workers(self, word: str) -> None:
        for index in range(2):
            self.add(f"{word}{index}", "workers", index)

    def begin(self) -> None:
        self.add("d", "driver")
        self.add_workers("w")
        assert len(self.cluster.settle()) == 3

    def evict(self, *names: str, phase: str = "Succeeded") -> None:
        for name in names:
            self.cluster.delete(name)
            self.cluster.end(name, phase)
        self.cluster.settle()
        assert not set(names) & set(self.cluster.pods)


def about(name: str) -> dict[str, Any]:
    return {"name": name, "namespace": "a", "uid": f"uid-of-{name}"}


def counts(parallelism: int, completions: int) -> dict[str, Any]:
    return {"parallelism": parallelism, "completions": completions, "completionMode": "Indexed"}


@pytest.fixture
def training() -> Training:
    return Training()


def test_workers_do_not_wait_for_a_driver_that_was_told_to_go_and_is_done(training: Training) -> None:
    """Seen with the real operator: the evicted driver ended with 0, so its Job is complete and makes no other."""
    training.begin()
    training.evict("d", "w0", "w1")
    training.add_workers("v")
    assert training.cluster.settle() == []
    training.cluster.succeed("driver", 1)
    assert len(training.cluster.settle()) == 2


def test_nor_for_one_that_ended_by_itself_whether_its_pod_is_kept_or_not(training: Training) -> None:
    training.begin()
    training.cluster.end("d")
    training.cluster.succeed("driver", 1)
    training.evict("w0", "w1", phase="Failed")
    training.add("v0", "workers", 0)
    assert training.cluster.settle() == []
    training.add("v1", "workers", 1)
    assert len(training.cluster.settle()) == 2
    training.evict("v0", "v1", phase="Failed")
    training.cluster.delete("d")
    training.cluster.settle()
    training.add_workers("u")
    assert len(training.cluster.settle()) == 2


def test_a_worker_starts_without_the_one_that_is_done(training: Training) -> None:
    training.begin()
    training.evict("d", "w0", "w1")
    training.cluster.succeed("workers", 1)
    training.add("e", "driver")
    assert training.cluster.settle() == []
    training.add("v1", "workers", 1)
    assert len(training.cluster.settle()) == 2


def test_workers_that_are_followed_by_others_start_together_until_the_last_of_them() -> None:
    training = Training(completions=5)
    training.begin()
    training.evict("d", "w0", "w1")
    training.cluster.succeed("driver", 1)
    training.cluster.succeed("workers", 3)
    training.add("w3", "workers", 3)
    assert training.cluster.settle() == []
    training.add("w4", "workers", 4)
    assert len(training.cluster.settle()) == 2
    training.cluster.succeed("workers", 4)
    training.evict("w3", "w4")
    training.add("v4", "workers", 4)
    assert len(training.cluster.settle()) == 1


def test_a_set_that_begins_anew_starts_as_a_whole_again(training: Training) -> None:
    """Its operator deletes all Jobs, done or not, and makes them again."""
    training.begin()
    training.cluster.end("d")
    training.cluster.succeed("driver", 1)
    training.evict("w0", "w1", phase="Failed")
    old = training.cluster.owners["driver"]
    training.cluster.delete("d")
    training.cluster.remove_owner("driver")
    training.cluster.settle()
    training.cluster.put_owner("Job", "driver", {**old["metadata"], "uid": "another"}, old["spec"])
    training.add_workers("v")
    assert training.cluster.settle() == []
    training.add("e", "driver")
    assert len(training.cluster.settle()) == 3


def test_a_job_that_is_complete_by_its_own_policy_is_not_waited_for(training: Training) -> None:
    training.begin()
    training.evict("d", "w0", "w1", phase="Failed")
    training.cluster.succeed("workers", 1)
    training.add("e", "driver")
    assert training.cluster.settle() == []
    training.cluster.succeed("workers", 1, completionTime="2026-01-01T00:00:00Z")
    assert len(training.cluster.settle()) == 1
