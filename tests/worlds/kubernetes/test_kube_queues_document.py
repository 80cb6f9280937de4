"""docs/kube-queues.md says what the code reads, and the example in it works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuyard.worlds.kubernetes import asking, gangs, grouping, owners, priorities, queues, segments
from gpuyard.worlds.kubernetes.owners import RULES
from tests.worlds.kubernetes.manifests import a_pod, an_owner, grouped, queues_in

TEXT = (Path(__file__).parents[3] / "docs" / "kube-queues.md").read_text()
READ = sorted(
    {
        value
        for module in (asking, gangs, grouping, queues, segments)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str) and re.match(r"(kai\.scheduler|gpuyard\.io|runai)/", value)
    }
)


@pytest.mark.parametrize("key", READ)
def test_every_label_and_annotation_that_is_read_is_told_of(key: str) -> None:
    assert f"`{key}`" in TEXT or f"{key}:" in TEXT


@pytest.mark.parametrize(
    "kind", sorted({kind for (_, kind), rule in RULES.items() if rule != owners.OwnerRule(rule.plural)})
)
def test_every_kind_with_a_rule_of_its_own_is_told_of(kind: str) -> None:
    assert f"`{kind}`" in TEXT


@pytest.mark.parametrize(("name", "value"), sorted(priorities.BUILT_IN.items()))
def test_the_classes_are_as_they_are_told(name: str, value: int) -> None:
    assert f"`{name}` {value}" in TEXT


def test_the_example_works_without_a_word() -> None:
    queue, job = TEXT.split("```yaml\n")[1].split("```")[0].split("---\n")
    parent = "{kind: Queue, metadata: {name: department-1}, spec: {resources: {gpu: %s, cpu: %s, memory: %s}}}"
    free = "{quota: -1, limit: -1, overQuotaWeight: 1}"
    tree = queues_in(f"{parent % (free, free, free)}\n---\n{queue}")
    assert tree.notes == ()
    assert tree.namespaces == {"project-a": frozenset({"team-a", "team-a-dev"})}
    owner = an_owner(job)
    assert grouped(a_pod("train-x", owner), owner).queue == "project-a"
