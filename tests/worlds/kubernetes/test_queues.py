"""KAI's queues as the core's tree: units, what is not written, and trees that are none."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.model.jobs import Job, Request, Task
from gpuyard.model.nodes import Device, Node
from gpuyard.model.plan import Bind
from gpuyard.model.queue_rules import validate_queues
from gpuyard.model.queues import MAX_QUEUE_DEPTH, QueueShare
from gpuyard.model.snapshot import Snapshot
from gpuyard.scheduler.cycle import schedule
from gpuyard.worlds.kubernetes.objects import KaiQueue
from gpuyard.worlds.kubernetes.queues import Labelled, QueueTree, queue_named, read_queues
from tests.worlds.kubernetes.manifests import queues_in

DEMO = """
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: department-1, creationTimestamp: "2025-03-01T10:00:00Z"}
spec:
  displayName: Department 1
  priority: 200
  resources:
    gpu: {quota: 16, limit: -1, overQuotaWeight: 1}
    cpu: {quota: -1, limit: -1, overQuotaWeight: 1}
    memory: {quota: -1, limit: -1, overQuotaWeight: 1}
---
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: project-a, creationTimestamp: "2025-03-01T10:00:02Z"}
spec:
  displayName: Project A
  parentQueue: department-1
  priority: 150
  resources:
    gpu: {quota: 8, limit: -1, overQuotaWeight: 2}
    cpu: {quota: -1, limit: -1, overQuotaWeight: 1}
    memory: {quota: -1, limit: -1, overQuotaWeight: 1}
---
apiVersion: scheduling.run.ai/v2
kind: Queue
metadata: {name: project-b, creationTimestamp: "2025-03-01T10:00:01Z"}
spec:
  displayName: Project B
  parentQueue: department-1
  resources:
    gpu: {quota: 8, limit: -1, overQuotaWeight: 1}
    cpu: {quota: -1, limit: -1, overQuotaWeight: 1}
    memory: {quota: -1, limit: -1, overQuotaWeight: 1}
"""


def a_queue(name: str = "q", **spec: object) -> KaiQueue:
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, KaiQueue)


def amounts(**fields: float) -> dict[str, object]:
    """A queue without bounds but for what is said of GPUs."""
    free = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    return {"gpu": {**free, **fields}, "cpu": free, "memory": free}


def reasons(tree: QueueTree) -> list[tuple[str, str]]:
    return [(note.queue, note.reason) for note in tree.notes]


def test_the_queues_of_the_demo_are_read_without_a_word() -> None:
    tree = queues_in(DEMO)
    assert tree.notes == ()
    assert [queue.name for queue in tree.queues] == ["department-1", "project-b", "project-a"]
    assert tree.children == {"department-1": ("project-b", "project-a")}
    assert tree.leaves == ("project-b", "project-a")
    assert tree.display_names["project-a"] == "Project A"
    a = tree.queues[2]
    assert (a.parent, a.priority, a.order) == ("department-1", 150, 2)
    assert a.share("gpu") == QueueShare("gpu", quota=8000, limit=None, weight_milli=2000)
    assert a.share("cpu") == QueueShare("cpu", quota=None, limit=None, weight_milli=1000)
    assert tree.queues[1].priority == 100


def test_units_are_devices_thousandths_of_a_core_and_millions_of_bytes() -> None:
    resources = {
        "gpu": {"quota": 0.7, "limit": 2.125, "overQuotaWeight": 0.5},
        "cpu": {"quota": 1500, "limit": 4000, "overQuotaWeight": 1},
        "memory": {"quota": 2048, "limit": 0.5, "overQuotaWeight": 1},
    }
    tree = read_queues([a_queue(resources=resources)])
    gpu, cpu, memory = tree.queues[0].shares
    assert gpu == QueueShare("gpu", 700, 2125, 500)
    assert cpu == QueueShare("cpu", 1500, 4000, 1000)
    assert memory == QueueShare("memory", 500_000, 500_000, 1000), "a quota above the limit cannot be had"
    assert reasons(tree) == [("q", "QuotaAboveLimit")]


def test_what_is_not_written_is_nothing_and_whoever_forgot_it_is_told() -> None:
    tree = read_queues([a_queue(resources={"gpu": {"quota": 4}, "cpu": {"quota": -1, "limit": -1}})])
    gpu, cpu, memory = tree.queues[0].shares
    assert gpu == QueueShare("gpu", 0, 0, 0), "a limit that is not written is 0, so nothing is owed either"
    assert cpu == QueueShare("cpu", None, None, 0)
    assert memory == QueueShare("memory", 0, 0, 0)
    told = {note.reason: note.message for note in tree.notes}
    assert set(told) == {"LimitUnset", "QuotaUnset", "WeightUnset"}
    assert told["LimitUnset"].startswith("gpu.limit, memory.limit: not set, which counts as 0; nothing")
    assert "write -1 for no limit" in told["LimitUnset"]
    assert told["QuotaUnset"].startswith("memory.quota: not set")
    assert told["WeightUnset"].startswith("gpu.overQuotaWeight, cpu.overQuotaWeight, memory.overQuotaWeight:")


def test_a_zero_somebody_wrote_is_not_worth_a_word() -> None:
    zero = {"quota": 0, "limit": 0, "overQuotaWeight": 0}
    tree = read_queues([a_queue(resources={"gpu": zero, "cpu": zero, "memory": zero})])
    assert tree.notes == ()
    assert tree.queues[0].shares == tuple(QueueShare(name, 0, 0, 0) for name in ("gpu", "cpu", "memory"))


def test_a_queue_without_resources_may_hold_nothing() -> None:
    tree = read_queues([a_queue()])
    assert [share.limit for share in tree.queues[0].shares] == [0, 0, 0]
    assert reasons(tree) == [("q", "ResourcesUnset")]
    node = Node("n", cpu_milli=8000, memory_bytes=2**30)
    job = Job("j", "q", (Task("t", Request(cpu_milli=100)),))
    assert not schedule(Snapshot((node,), tree.queues, (job,))).actions


@pytest.mark.parametrize(
    ("fields", "quota", "reason"),
    [
        ({"quota": 0.1234}, 123, "RoundedAmount"),
        ({"quota": 2.0005}, 2000, "RoundedAmount"),
        ({"quota": -2}, None, "NegativeAmount"),
        ({"quota": 1e300}, None, "AbsurdAmount"),
        ({"overQuotaWeight": -1}, None, "RoundedAmount"),
        ({"overQuotaWeight": 0.00001}, None, "RoundedAmount"),
    ],
)
def test_an_odd_number_is_read_as_near_as_can_be_and_noted(
    fields: dict[str, float], quota: int | None, reason: str
) -> None:
    tree = read_queues([a_queue(resources=amounts(**fields))])
    assert tree.queues[0].share("gpu").quota == quota
    assert reasons(tree) == [("q", reason)]


def test_minimum_run_times_are_durations_of_go() -> None:
    tree = read_queues(
        [a_queue(resources=amounts(), preemptMinRuntime="1h30m", reclaimMinRuntime="ten minutes", priority=7)]
    )
    queue = tree.queues[0]
    assert (queue.preempt_min_runtime_ms, queue.reclaim_min_runtime_ms, queue.priority) == (5_400_000, None, 7)
    assert reasons(tree) == [("q", "BadDuration")]
    assert 'reclaimMinRuntime "ten minutes" is no duration' in tree.notes[0].message


def test_children_that_are_owed_more_than_their_parent_are_allowed_and_noted() -> None:
    queues = [
        a_queue("top", resources=amounts(quota=8)),
        a_queue("a", parentQueue="top", resources=amounts(quota=6)),
        a_queue("b", parentQueue="top", resources=amounts(quota=6)),
    ]
    tree = read_queues(queues)
    assert reasons(tree) == [("top", "ChildrenOwedMore")]
    assert "owed 12 GPUs (a 6 GPUs, b 6 GPUs), itself only 8 GPUs" in tree.notes[0].message
    assert [queue.overcommit for queue in tree.queues if queue.name == "top"] == [True]
    assert not any(queue.overcommit for queue in tree.queues if queue.name != "top")


def test_a_queue_without_a_way_up_is_left_out_with_all_below_it() -> None:
    queues = [
        a_queue("good", resources=amounts()),
        a_queue("orphan", parentQueue="nobody", resources=amounts()),
        a_queue("below-orphan", parentQueue="orphan", resources=amounts()),
        a_queue("ring-1", parentQueue="ring-2", resources=amounts()),
        a_queue("ring-2", parentQueue="ring-1", resources=amounts()),
        a_queue("below-ring", parentQueue="ring-1", resources=amounts()),
        a_queue("self", parentQueue="self", resources=amounts()),
    ]
    tree = read_queues(queues)
    assert [queue.name for queue in tree.queues] == ["good"]
    assert sorted(reasons(tree)) == [
        ("below-orphan", "ParentLeftOut"),
        ("below-ring", "ParentLeftOut"),
        ("orphan", "ParentMissing"),
        ("ring-1", "ParentLoop"),
        ("ring-2", "ParentLoop"),
        ("self", "ParentLoop"),
    ]


def test_a_tree_may_be_as_deep_as_the_core_takes_and_no_deeper() -> None:
    chain = [
        a_queue(f"q{level:02}", resources=amounts(), **({"parentQueue": f"q{level - 1:02}"} if level else {}))
        for level in range(MAX_QUEUE_DEPTH + 2)
    ]
    tree = read_queues(chain)
    assert len(tree.queues) == MAX_QUEUE_DEPTH
    assert tree.leaves == (f"q{MAX_QUEUE_DEPTH - 1:02}",)
    assert reasons(tree) == [(f"q{MAX_QUEUE_DEPTH:02}", "TooDeep"), (f"q{MAX_QUEUE_DEPTH + 1:02}", "ParentLeftOut")]


def test_a_queue_may_list_the_namespaces_that_may_use_it() -> None:
    def listed(name: str, text: str | None, parent: str = "") -> KaiQueue:
        annotations = None if text is None else {"gpuyard.io/namespaces": text}
        raw = {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"parentQueue": parent, "resources": amounts()},
        }
        return msgspec.convert(raw, KaiQueue)

    tree = read_queues([listed("top", " team-a, team-b ,"), listed("leaf", None, "top"), listed("shut", " ")])
    assert tree.namespaces == {"top": frozenset({"team-a", "team-b"}), "shut": frozenset()}
    assert tree.closed_to("leaf", "team-a") is None
    assert tree.closed_to("leaf", "team-c") == "top", "what holds for a queue holds for those below it"
    assert tree.closed_to("shut", "team-a") == "shut"
    assert reasons(tree) == [("shut", "NoNamespaces")]


# ------------------------------------------------------------------------------------------------------ which queue


@pytest.mark.parametrize(
    ("owner", "pod", "expected"),
    [
        ({"kai.scheduler/queue": "a"}, {"kai.scheduler/queue": "b"}, "a"),
        ({}, {"kai.scheduler/queue": "b"}, "b"),
        ({"runai/queue": "a"}, {}, "a"),
        ({"runai/queue": "a"}, {"kai.scheduler/queue": "b"}, "b"),
        ({"project": "p"}, {}, "p"),
        ({"project": "p"}, {"kai.scheduler/node-pool": "pool"}, "p-pool"),
        ({"kai.scheduler/queue": ""}, {"project": "p"}, "p"),
        ({}, {}, "default-queue"),
    ],
)
def test_the_queue_is_named_by_the_owner_before_the_pod(
    owner: dict[str, str], pod: dict[str, str], expected: str
) -> None:
    named = queue_named([Labelled("Job j", owner), Labelled("the pod", pod)], pod)
    assert named.queue == expected


def test_the_label_may_be_another() -> None:
    places = [Labelled("Job j", {"team": "x", "kai.scheduler/queue": "y"})]
    assert queue_named(places, {}, "team") == ("x", "label team of Job j")


# ------------------------------------------------------------------------------------------------------ properties

NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
NUMBERS = st.one_of(st.integers(-3, 20), st.floats(allow_nan=False, allow_infinity=False))
SECTION = st.dictionaries(st.sampled_from(["quota", "limit", "overQuotaWeight"]), NUMBERS)
QUEUES = st.lists(
    st.builds(
        lambda name, parent, at, resources: msgspec.convert(
            {
                "metadata": {"name": name, "creationTimestamp": at},
                "spec": {"parentQueue": parent} | ({} if resources is None else {"resources": resources}),
            },
            KaiQueue,
        ),
        NAMES,
        st.one_of(st.just(""), NAMES, st.just("nobody")),
        st.sampled_from([None, "2025-01-01T00:00:00Z", "2025-01-02T00:00:00Z"]),
        st.one_of(st.none(), st.dictionaries(st.sampled_from(["gpu", "cpu", "memory"]), SECTION)),
    ),
    max_size=8,
)


@given(QUEUES)
def test_whatever_is_written_the_tree_has_no_contradiction(queues: list[KaiQueue]) -> None:
    tree = read_queues(queues)
    assert validate_queues(tree.queues) == ()
    left_out = {queue.metadata.name for queue in queues} - {queue.name for queue in tree.queues}
    assert left_out <= {note.queue for note in tree.notes}, "nobody is left out without a word"


@given(QUEUES, st.randoms())
def test_the_order_in_which_queues_are_told_of_means_nothing(queues: list[KaiQueue], chance: object) -> None:
    unique = list({queue.metadata.name: queue for queue in queues}.values())
    shuffled = unique.copy()
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert read_queues(unique) == read_queues(shuffled)


def test_a_plan_serves_the_tree_as_it_is_read() -> None:
    tree = queues_in(DEMO)
    node = Node("n", devices=tuple(Device(f"GPU-{index}", memory_mib=1) for index in range(8)), cpu_milli=8000)
    job = Job("j", "project-a", (Task("t", Request(devices=4)),))
    actions = schedule(Snapshot((node,), tree.queues, (job,))).actions
    assert [type(action) for action in actions] == [Bind]
