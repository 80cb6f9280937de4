"""Priority classes by name."""

from __future__ import annotations

import pytest

from gpuyard.worlds.kubernetes.priorities import Priorities, preemptible_by
from tests.worlds.kubernetes.manifests import classes_in

OWN = """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: train}
value: 60
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: usual}
value: 40
globalDefault: true
"""


@pytest.mark.parametrize(
    ("name", "value", "preemptible"),
    [("train", 50, True), ("build-preemptible", 75, True), ("build", 100, False), ("inference", 125, False)],
)
def test_four_classes_are_there_without_their_objects(name: str, value: int, preemptible: bool) -> None:
    assert Priorities(()).of(name) == value
    assert preemptible_by(value) is preemptible


def test_an_object_wins_and_a_class_that_is_not_there_has_no_value() -> None:
    priorities = Priorities(classes_in(OWN))
    assert (priorities.of("train"), priorities.of("usual"), priorities.of("none"), priorities.of("")) == (
        60,
        40,
        None,
        None,
    )
    assert priorities.default == 40
    assert Priorities().default == 50
