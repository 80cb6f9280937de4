"""Explicit PodGroups as trees of groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.model.jobs import MAX_GROUP_DEPTH, TaskGroup, TopologyRule
from gpuyard.worlds.kubernetes import podgroups
from gpuyard.worlds.kubernetes.objects import PodGroupSpec, SubGroup
from gpuyard.worlds.kubernetes.podgroups import shape_of, tree_of
from gpuyard.worlds.kubernetes.topologies import Topologies
from tests.worlds.kubernetes.manifests import a_pod, a_pod_group, grouped, topologies_in

SERVING = """
apiVersion: scheduling.run.ai/v2alpha2
kind: PodGroup
metadata: {name: serving}
spec:
  queue: project-a
  priorityClassName: build
  minSubGroup: 2
  topologyConstraint: {topology: racks, requiredTopologyLevel: zone}
  subGroups:
    - name: prefill
      minSubGroup: 1
      topologyConstraint: {topology: racks, preferredTopologyLevel: rack}
    - {name: prefill-0, parent: prefill, minMember: 2}
    - {name: prefill-1, parent: prefill, minMember: 2}
    - {name: decode, minMember: 3}
"""

RACKS = """
apiVersion: kai.scheduler/v1alpha1
kind: Topology
metadata: {name: racks}
spec: {levels: [{nodeLabel: example.com/zone, alias: zone}, {nodeLabel: example.com/rack, alias: rack}]}
"""


def spec_in(*lines: str) -> PodGroupSpec:
    return a_pod_group("\n".join(["kind: PodGroup", "metadata: {name: g}", "spec:", *lines])).spec


def test_a_plain_group_is_a_gang_of_its_minimum() -> None:
    assert tree_of(spec_in("  minMember: 4")) == TaskGroup(min_tasks=4)
    assert tree_of(spec_in("  queue: q")) == TaskGroup(min_tasks=1)
    assert tree_of(spec_in("  minMember: 0")) == TaskGroup(min_tasks=1)


def test_subgroups_nest_with_their_own_minimum_and_place() -> None:
    group = tree_of(a_pod_group(SERVING).spec, topologies_in(RACKS))
    assert (group.min_groups, group.topology) == (2, TopologyRule("racks", "example.com/zone"))
    prefill, decode = group.children
    assert (prefill.name, prefill.min_groups) == ("prefill", 1)
    assert prefill.topology == TopologyRule("racks", None, "example.com/rack")
    assert prefill.children == (TaskGroup("prefill-0", min_tasks=2), TaskGroup("prefill-1", min_tasks=2))
    assert decode == TaskGroup("decode", min_tasks=3)
    assert group.fewest_tasks == 5


def test_groups_that_are_alike_share_one_tree() -> None:
    first, second = (shape_of(a_pod_group(SERVING).spec, topologies_in(RACKS)) for _ in range(2))
    assert first.group is second.group


@pytest.mark.parametrize(
    ("lines", "minimum", "said"),
    [
        (["  minMember: 3", "  minSubGroup: 1"], 3, "minMember and minSubGroup are both set"),
        (["  subGroups: [{name: a, minMember: 2, parent: b}]"], 2, 'the parent "b" of subGroup "a" does not exist'),
        (
            ["  subGroups: [{name: a, parent: b, minMember: 1}, {name: b, parent: a, minMember: 1}]"],
            2,
            "above themselves",
        ),
        (["  subGroups: [{name: a, minMember: 1}, {name: A, minMember: 4}]"], 5, 'two subGroups are named "a"'),
        (["  subGroups: [{name: a, minMember: 2, minSubGroup: 1}]"], 2, "both minMember and minSubGroup"),
        (["  subGroups: [{minMember: 2}]"], 2, "a subGroup has no name"),
    ],
)
def test_a_contradiction_is_noted_and_leaves_a_plain_gang(lines: list[str], minimum: int, said: str) -> None:
    shape = shape_of(spec_in(*lines))
    assert shape.group == TaskGroup(min_tasks=minimum)
    assert [note.reason for note in shape.notes] == ["BadPodGroup"]
    assert said in shape.notes[0].message
    assert shape.leaf("whatever") == ""


def test_subgroups_are_nested_no_deeper_than_the_core_takes() -> None:
    def chain(length: int) -> PodGroupSpec:
        names = [f"g{level}" for level in range(length)]
        return PodGroupSpec(
            sub_groups=[
                SubGroup(name, 1 if name == names[-1] else None, parent=None if at == 0 else names[at - 1])
                for at, name in enumerate(names)
            ]
        )

    assert not shape_of(chain(MAX_GROUP_DEPTH - 1)).notes
    assert "nested more than" in shape_of(chain(MAX_GROUP_DEPTH)).notes[0].message


def test_a_minimum_in_the_wrong_place_is_not_applied() -> None:
    lines = "  subGroups: [{name: a, minMember: 9}, {name: b, parent: a, minMember: 2}, {name: c, minSubGroup: 2}]"
    shape = shape_of(spec_in(lines))
    assert shape.group.fewest_tasks == 3
    assert "minMember of a, minSubGroup of c" in shape.notes[0].message


def test_more_subgroups_demanded_than_there_are_is_waited_for() -> None:
    shape = shape_of(spec_in("  minSubGroup: 3", "  subGroups: [{name: a, minMember: 1}, {name: b, minMember: 1}]"))
    assert shape.shortfall == "minSubGroup of the PodGroup is 3, and it has 2 subGroups"


# ------------------------------------------------------------------------------------------------------ pods of one


def test_a_pod_finds_its_subgroup_by_label() -> None:
    pod = a_pod(annotations={"pod-group-name": "serving"}, labels={"kai.scheduler/subgroup-name": "prefill-1"})
    grouping = grouped(pod, podgroup=a_pod_group(SERVING))
    assert (grouping.job_id, grouping.leaf, grouping.waits) == ("default/podgroup/serving", "prefill-1", "")
    assert (grouping.queue, grouping.queue_from) == ("project-a", "spec.queue of PodGroup serving")
    assert (grouping.priority, grouping.priority_class, grouping.preemptible) == (100, "build", False)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({}, "the pod names none of them in label kai.scheduler/subgroup-name"),
        ({"kai.scheduler/subgroup-name": "prefill"}, '"prefill", which is no subGroup'),
        ({"kai.scheduler/subgroup-name": "encode"}, '"encode", which is no subGroup'),
    ],
)
def test_a_pod_without_a_place_in_the_tree_waits_and_says_why(labels: dict[str, str], said: str) -> None:
    pod = a_pod(annotations={"pod-group-name": "serving"}, labels=labels)
    assert said in grouped(pod, podgroup=a_pod_group(SERVING)).waits


def test_a_pod_waits_for_the_group_it_names() -> None:
    grouping = grouped(a_pod(annotations={"pod-group-name": "later"}, labels={"kai.scheduler/queue": "q"}))
    assert grouping.job_id == "default/podgroup/later"
    assert grouping.queue == "q"
    assert grouping.waits == 'PodGroup "later", which annotation pod-group-name names, does not exist'


def test_a_group_says_itself_whether_it_may_be_preempted_and_how_long_it_waits() -> None:
    text = """
kind: PodGroup
metadata: {name: g, labels: {kai.scheduler/queue: from-label}}
spec: {minMember: 2, priorityClassName: build, preemptibility: preemptible, preemptionDelay: 5m,
       stalenessGracePeriod: "-1s"}
"""
    pod = a_pod(
        annotations={"pod-group-name": "g"},
        labels={"kai.scheduler/preemptibility": "non-preemptible", "kai.scheduler/queue": "of-the-pod"},
    )
    grouping = grouped(pod, podgroup=a_pod_group(text))
    assert grouping.preemptible
    assert (grouping.preemption_delay_ms, grouping.staleness_grace_ms) == (300_000, -1000)
    assert grouping.queue == "from-label"


def test_a_group_whose_class_is_not_there_has_the_default_priority() -> None:
    text = "kind: PodGroup\nmetadata: {name: g}\nspec: {minMember: 1, queue: q, priorityClassName: gone}"
    own = "kind: PriorityClass\nmetadata: {name: usual}\nvalue: 120\nglobalDefault: true"
    pod = a_pod(annotations={"pod-group-name": "g"})
    assert grouped(pod, podgroup=a_pod_group(text)).priority == 50
    grouping = grouped(pod, podgroup=a_pod_group(text), classes=own)
    assert (grouping.priority, grouping.preemptible) == (120, False)


# ------------------------------------------------------------------------------------------------------- properties

NAMES = st.sampled_from(["", "a", "b", "c", "A"])
COUNTS = st.one_of(st.none(), st.integers(-2, 5), st.integers())


@given(
    st.builds(
        PodGroupSpec,
        min_member=COUNTS,
        min_sub_group=COUNTS,
        sub_groups=st.none()
        | st.lists(
            st.builds(SubGroup, name=NAMES, min_member=COUNTS, min_sub_group=COUNTS, parent=st.none() | NAMES),
            max_size=6,
        ),
    )
)
def test_every_spec_gives_a_tree_whose_leaves_are_known(spec: PodGroupSpec) -> None:
    shape = shape_of(spec)
    found = {group.name for group in _leaves(shape.group)}
    assert found == shape.leaves
    assert all(group.min_tasks >= 0 for group in _leaves(shape.group))


def _leaves(group: TaskGroup) -> list[TaskGroup]:
    return [group] if group.leaf else [leaf for child in group.children for leaf in _leaves(child)]


def test_a_large_group_is_worked_out_once_for_all_its_pods_and_anew_with_other_topologies() -> None:
    spec = a_pod_group(SERVING).spec
    known = topologies_in(RACKS)
    shape = shape_of(spec, known)
    assert shape_of(spec, known) is shape
    assert shape.group.topology == TopologyRule("racks", required="example.com/zone")
    renamed = topologies_in(RACKS.replace("example.com/zone", "example.com/hall"))
    assert shape_of(spec, renamed).group.topology == TopologyRule("racks", required="example.com/hall")


def test_pods_of_a_group_with_thousands_of_subgroups_do_not_cost_thousands_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[PodGroupSpec] = []
    read = podgroups._whole

    def whole(spec: PodGroupSpec, topologies: Topologies) -> object:
        asked.append(spec)
        return read(spec, topologies)

    monkeypatch.setattr(podgroups, "_whole", whole)
    spec = PodGroupSpec(sub_groups=[SubGroup(f"g{at}", min_member=1) for at in range(3_000)])
    assert all(shape_of(spec).leaf(f"g{at}") == f"g{at}" for at in range(3_000))
    assert len(asked) == 1
