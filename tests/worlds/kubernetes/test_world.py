"""Plans as writes, and what is decided as if it were so: through lost news, refusals, restarts and time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpuyard.policies.policy import DEFAULT
from gpuyard.worlds.kubernetes.intents import PLACE_MS, PROTECTED_MS
from gpuyard.worlds.kubernetes.jobs import STUCK_MS
from gpuyard.worlds.kubernetes.writes import BindPod, EvictPod, NominateNode, SavePlaces
from tests.worlds.kubernetes.small_cluster import SmallCluster, all_done

CONTROLLERS = ("Job", "StatefulSet", "ReplicaSet")


def fragmented(kind: str = "StatefulSet") -> SmallCluster:
    """Two nodes, half of each taken by a pod that can be moved, and a pod that needs a whole one."""
    cluster = SmallCluster(nodes=2, gpus=4)
    cluster.add_pod("left", 2)
    cluster.settle()
    for name in ("one", "two"):
        cluster.pass_time(1_000)
        cluster.add_owner(kind, name, 1, 2)
        cluster.settle()
    assert list(cluster.places().values()) == ["n1", "n1", "n2"]
    cluster.delete("left")
    cluster.settle()
    assert list(cluster.places().values()) == ["n1", "n2"]
    cluster.pass_time(1_000)
    cluster.add_pod("big", 4)
    return cluster


def preempting(victim: str = "low", **labels: str) -> SmallCluster:
    """One node, full with a pod of no importance, and an important one."""
    cluster = SmallCluster(nodes=1, gpus=4)
    cluster.add_pod(victim, 4, labels=labels)
    cluster.settle()
    cluster.add_pod("high", 4, priority="inference")
    return cluster


# --------------------------------------------------------------------------------------------------------------- binds


def test_what_was_decided_counts_before_it_is_seen() -> None:
    cluster = SmallCluster(nodes=1, gpus=1)
    cluster.add_pod("a")
    cluster.hear()
    assert cluster.cycle() == ["bind a n1"]
    cluster.add_pod("b")
    cluster.hear(0)
    assert cluster.cycle() == []
    assert cluster.settle() == []
    assert cluster.node_of("b") == ""


def test_a_place_whose_bind_failed_goes_to_others_and_the_pod_waits_a_while() -> None:
    cluster = SmallCluster(nodes=1, gpus=1)
    cluster.add_pod("doomed")
    cluster.fate = lambda write: "refused" if isinstance(write, BindPod) and write.pod.name == "doomed" else "done"
    cluster.settle()
    assert cluster.world.held_jobs()["a/pod/doomed"][0] == "BackOff"
    cluster.add_pod("fine")
    assert "bind fine n1" in cluster.settle()


def test_a_doomed_pod_is_tried_again_ever_more_seldom() -> None:
    cluster = SmallCluster(nodes=1, gpus=1)
    cluster.add_pod("doomed")
    tries: list[int] = []

    def refuse(write: object) -> str:
        tries.append(cluster.now_ms)
        return "refused"

    cluster.fate = refuse
    for _ in range(100):
        cluster.settle()
        look_ms = cluster.world.next_look_ms
        cluster.pass_time(max(1, look_ms - cluster.now_ms) if look_ms else 1_000)
    waits = [after - before for before, after in pairwise(tries)]
    assert waits[:4] == [1_000, 2_000, 4_000, 8_000]
    assert waits[-1] == 300_000


def test_a_pod_that_goes_while_it_is_bound_leaves_nothing_behind() -> None:
    cluster = SmallCluster(nodes=1, gpus=1)
    cluster.add_pod("a")
    cluster.hear()
    cluster.fate = lambda write: "held"
    cluster.cycle()
    cluster.delete("a")
    cluster.fate = lambda write: "done"
    cluster.write(cluster.held.pop())
    cluster.add_pod("b")
    assert cluster.settle() == ["bind b n1"]
    assert cluster.world.intents.binding == {}


def test_another_pod_under_the_name_of_one_that_is_bound_is_not_taken_for_it() -> None:
    cluster = SmallCluster(nodes=1, gpus=1)
    cluster.add_pod("a")
    cluster.hear()
    cluster.fate = lambda write: "held"
    cluster.cycle()
    cluster.delete("a")
    cluster.add_pod("a")
    cluster.fate = lambda write: "done"
    cluster.write(cluster.held.pop())
    assert cluster.node_of("a") == ""
    cluster.settle()
    cluster.pass_time(2_000)
    assert "bind a n1" in [*cluster.said, *cluster.settle()]
    assert cluster.node_of("a") == "n1"


@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "OutOfcpu", "OutOfnvidia.com/gpu", "NodePorts"])
def test_what_a_kubelet_does_not_take_is_not_given_to_it_again_at_once(reason: str) -> None:
    cluster = SmallCluster(nodes=1, gpus=1)
    cluster.add_owner("Job", "train", 1, 1)
    cluster.settle()
    (name,) = cluster.places()
    cluster.end(name, "Failed", reason)
    cluster.controllers()
    assert cluster.settle() == []
    assert "did not take it" in cluster.world.held_jobs()["a/job/train"][1]
    cluster.pass_time(1_001)
    assert len(cluster.settle()) == 1


def test_pods_that_are_made_anew_one_by_one_are_not_given_to_the_kubelet_that_takes_none_in_a_storm() -> None:
    cluster = SmallCluster(nodes=1, gpus=1)
    cluster.add_owner("ReplicaSet", "web", 1, 1)
    for _ in range(600):
        cluster.settle()
        for name in [name for name in cluster.places() if cluster.pods[name]["status"]["phase"] == "Running"]:
            cluster.end(name, "Failed", "UnexpectedAdmissionError")
        cluster.controllers()
        cluster.pass_time(100)
    assert 3 <= cluster.kinds_done().count("bind") <= 8, "ever more seldom"
    cluster.hear()
    cluster.cycle()
    assert [held.word for held in cluster.world.held_jobs().values()] == ["BackOff"]


def test_a_gang_that_takes_long_to_go_is_looked_at_again_once() -> None:
    cluster = SmallCluster(nodes=1, gpus=8)
    cluster.grace_ms = 60_000
    for at in range(8):
        cluster.add_pod(f"p{at}", group="g")
    cluster.add_group("g", 8)
    cluster.settle()
    for at in range(8):
        cluster.delete(f"p{at}")
    for at in range(50):
        cluster.pods["p0"]["metadata"]["labels"]["at"] = str(at)
        cluster._tell("pods", cluster.pods["p0"])
        cluster.hear()
        cluster.cycle()
    assert len(cluster.world._alarms) == 1


# --------------------------------------------------------------------------------------------------------------- moves


@pytest.mark.parametrize("kind", CONTROLLERS)
@pytest.mark.parametrize("grace_ms", [0, 5_000])
def test_a_moved_pod_is_made_anew_and_gets_the_place_that_was_kept_for_it(kind: str, grace_ms: int) -> None:
    cluster = fragmented(kind)
    cluster.grace_ms = grace_ms
    cluster.settle()
    cluster.pass_time(grace_ms)
    # Somebody who would take the place, if it were free.
    cluster.add_pod("thief", 2)
    cluster.settle()
    assert cluster.node_of("big") in ("n1", "n2")
    (other,) = {"n1", "n2"} - {cluster.node_of("big")}
    assert sorted(cluster.places().values()).count(other) == 2
    assert cluster.node_of("thief") == ""
    assert cluster.world.intents.places == []
    assert cluster.saved.places == ()
    assert cluster.kinds_done().count("evict") == 1


@pytest.mark.parametrize("kind", CONTROLLERS)
def test_a_place_outlives_the_scheduler_even_where_the_job_has_no_pod_at_all(kind: str) -> None:
    cluster = fragmented(kind)
    cluster.hear()
    cluster.cycle()
    cluster.kubelets()
    assert len(cluster.saved.places) == 1
    cluster.start()
    cluster.add_pod("thief", 2)
    cluster.settle()
    assert cluster.node_of("thief") == ""
    assert len(cluster.places()) == 3


def test_places_of_pods_that_were_never_told_to_go_are_given_up_after_a_restart() -> None:
    """Killed between the note and the eviction."""
    cluster = fragmented()
    cluster.fate = lambda write: "held" if isinstance(write, EvictPod) else "done"
    cluster.hear()
    cluster.cycle()
    assert len(cluster.saved.places) == 1
    assert cluster.pods["big"]["status"]["nominatedNodeName"]
    cluster.fate = lambda write: "done"
    cluster.start()
    assert cluster.world.intents.places == []
    cluster.settle()
    assert cluster.node_of("big") in ("n1", "n2")
    assert cluster.overbooked() == []
    assert cluster.kinds_done().count("evict") == 1


def test_a_place_is_not_kept_for_ever_where_the_pod_ended_by_itself_while_nobody_led() -> None:
    cluster = fragmented()
    cluster.fate = lambda write: "held" if isinstance(write, EvictPod) else "done"
    cluster.settle()
    (place,) = cluster.saved.places
    cluster.end(place.name)
    cluster.start()
    cluster.fate = all_done
    cluster.settle()
    cluster.pass_time(PLACE_MS + 1)
    cluster.settle()
    assert cluster.world.intents.places == []


def test_a_place_is_kept_from_when_the_pod_has_gone_and_not_for_ever() -> None:
    cluster = fragmented()
    cluster.grace_ms = 3 * PLACE_MS
    cluster.settle()
    for _ in range(4):
        cluster.pass_time(PLACE_MS - 1)
        cluster.hear()
        cluster.cycle()
    assert len(cluster.world.intents.places) == 1, "it still ends"
    cluster.kubelets()
    cluster.hear()
    cluster.cycle()
    cluster.pass_time(PLACE_MS - 1)
    cluster.cycle()
    assert len(cluster.world.intents.places) == 1, "its controller has a while"
    cluster.pass_time(1)
    cluster.cycle()
    assert cluster.world.intents.places == []
    assert cluster.saved.places == ()


def test_a_pod_that_never_goes_is_not_counted_on_and_another_way_is_found() -> None:
    cluster = fragmented()
    cluster.grace_ms = 10**9
    cluster.hear()
    cluster.cycle()
    (stuck,) = [pod for pod in cluster.pods.values() if "deletionTimestamp" in pod["metadata"]]
    stuck["metadata"]["deletionTimestamp"] = "2023-01-01T00:00:00Z"
    cluster._tell("pods", stuck)
    cluster.pass_time(STUCK_MS)
    assert cluster.settle() == ["nominate big ", "nominate big n1", "evict one-0 Moved"]


def test_a_move_that_is_refused_is_undone_and_the_pod_left_alone_for_a_while() -> None:
    cluster = fragmented()
    refused: list[str] = []

    def forbid(write: object) -> str:
        if isinstance(write, EvictPod) and len(refused) < 2:
            refused.append(write.pod.name)
            return "forbidden"
        return "done"

    cluster.fate = forbid
    cluster.settle()
    assert sorted(refused) == ["one-0", "two-0"], "first the one, then the other"
    assert cluster.world.intents.places == []
    assert cluster.saved.places == ()
    assert cluster.node_of("big") == ""
    cluster.pass_time(PROTECTED_MS + 1)
    cluster.settle()
    assert cluster.node_of("big") in ("n1", "n2")


def test_nobody_is_told_to_go_where_its_place_could_not_be_noted_and_there_is_no_storm() -> None:
    cluster = fragmented()
    notes: list[object] = []

    def forget(write: object) -> str:
        if isinstance(write, SavePlaces) and write.places:
            notes.append(write)
            return "refused"
        return "done"

    cluster.fate = forget
    for _ in range(50):
        cluster.settle(1)
    assert "evict" not in cluster.kinds_done()
    assert len(notes) == 1
    cluster.fate = lambda write: "done"
    cluster.pass_time(1_001)
    cluster.settle()
    assert cluster.node_of("big") in ("n1", "n2")


@pytest.mark.parametrize("limit", [0, 1])
def test_jobs_that_an_eviction_would_end_and_pods_nobody_makes_anew_are_not_moved(limit: int) -> None:
    cluster = SmallCluster(nodes=2, gpus=4)
    cluster.add_pod("left", 2)
    cluster.add_owner("Job", "one", 1, 2, backoffLimit=limit)
    cluster.add_pod("plain", 2)
    cluster.settle()
    cluster.delete("left")
    cluster.settle()
    cluster.add_pod("big", 4)
    cluster.settle()
    assert ("evict" in cluster.kinds_done()) == (limit > 0)
    assert cluster.node_of("plain") != "gone"


# ----------------------------------------------------------------------------------------------------------- evictions


def test_an_eviction_is_noted_names_its_beneficiary_and_the_place_is_held_until_it_binds() -> None:
    cluster = preempting()
    cluster.grace_ms = 30_000
    assert cluster.settle() == ["nominate high n1", "evict low Preempted"]
    cluster.add_pod("thief", 4, priority="inference")
    cluster.settle()
    assert cluster.node_of("thief") == ""
    cluster.pass_time(30_000)
    assert "bind high n1" in cluster.settle()
    assert "a/pod/high" in cluster.texts["low"]
    assert cluster.texts["low"].endswith("nobody makes it anew, so that its work is lost")


def test_the_loss_of_a_job_that_gives_up_is_stated() -> None:
    cluster = SmallCluster(nodes=1, gpus=4)
    cluster.add_owner("Job", "low", 1, 4, backoffLimit=0)
    cluster.settle()
    cluster.add_pod("high", 4, priority="inference")
    cluster.settle()
    (text,) = cluster.texts.values()
    assert "Job low would fail" in text


def test_who_can_be_made_anew_gives_way_before_whose_work_would_be_lost() -> None:
    cluster = SmallCluster(nodes=1, gpus=4)
    cluster.add_owner("Job", "again", 1, 2)
    cluster.pass_time(60_000)
    cluster.add_pod("alone", 2)
    cluster.settle()
    cluster.add_pod("high", 2, priority="inference")
    cluster.settle()
    assert cluster.node_of("alone") == "n1"
    assert cluster.node_of("high") == "n1"


def test_a_budget_that_allows_nothing_is_honoured_and_others_are_found() -> None:
    cluster = SmallCluster(nodes=2, gpus=4)
    for name in ("kept", "free"):
        cluster.add_pod(name, 4, labels={"app": name})
    cluster.add_budget("b", 0, app="kept")
    cluster.settle()
    cluster.add_pod("high", 4, priority="inference")
    cluster.settle()
    assert cluster.node_of("kept") != "gone"
    assert cluster.node_of("free") == "gone"
    cluster.add_pod("higher", 4, priority="inference")
    assert "evict" not in [line.split()[0] for line in cluster.settle()]


def test_a_gang_of_which_a_budget_can_spare_only_a_part_is_left_alone() -> None:
    cluster = SmallCluster(nodes=1, gpus=4)
    cluster.add_group("gang", 4)
    for at in range(4):
        cluster.add_pod(f"g{at}", 1, group="gang", labels={"app": "gang"})
    cluster.settle()
    cluster.add_budget("spares-one", 1, app="gang")
    cluster.add_pod("important", 2, priority="build")
    assert cluster.settle() == []
    cluster.add_budget("spares-one", 4, app="gang")
    assert "bind important n1" in cluster.settle()


def test_of_an_elastic_gang_a_budget_may_spare_what_is_above_its_minimum() -> None:
    cluster = SmallCluster(nodes=1, gpus=4)
    cluster.add_group("gang", 2)
    for at in range(4):
        cluster.add_pod(f"g{at}", 1, group="gang", labels={"app": "gang"})
    cluster.settle()
    cluster.add_budget("spares-one", 1, app="gang")
    cluster.add_pod("important", 1, priority="build")
    assert "bind important n1" in cluster.settle()
    assert len(cluster.places()) == 4


def test_an_eviction_that_is_forbidden_takes_the_promise_back_and_is_not_asked_for_in_a_storm() -> None:
    cluster = preempting()
    asked: list[object] = []

    def forbid(write: object) -> str:
        if isinstance(write, EvictPod):
            asked.append(write)
            return "forbidden"
        return "done"

    cluster.fate = forbid
    for _ in range(50):
        cluster.settle(1)
    assert len(asked) == 1
    assert cluster.world.intents.promised == {}
    assert cluster.pods["high"]["status"]["nominatedNodeName"] == ""
    cluster.fate = lambda write: "done"
    cluster.pass_time(PROTECTED_MS + 1)
    cluster.settle()
    assert cluster.node_of("high") == "n1"


def test_a_note_that_is_refused_costs_nobody_anything_and_is_no_storm() -> None:
    cluster = preempting()
    notes: list[object] = []

    def forget(write: object) -> str:
        if isinstance(write, NominateNode) and write.node:
            notes.append(write)
            return "refused"
        return "done"

    cluster.fate = forget
    for _ in range(50):
        cluster.settle(1)
    assert len(notes) == 1
    assert cluster.node_of("low") == "n1"


def test_a_place_that_was_taken_back_is_not_left_in_the_status_where_that_could_not_be_written() -> None:
    cluster = preempting()
    cluster.fate = lambda write: "forbidden" if isinstance(write, EvictPod) else "done"
    cluster.hear()
    cluster.cycle()
    cluster.fate = lambda write: "refused"
    cluster.settle()
    assert cluster.pods["high"]["status"]["nominatedNodeName"] == "n1"
    cluster.fate = lambda write: "done"
    cluster.pass_time(5_000)
    assert cluster.settle() == ["nominate high "]


def test_a_pod_that_could_not_be_bound_to_the_place_it_was_promised_no_longer_says_it_has_one() -> None:
    cluster = preempting()
    cluster.fate = lambda write: "refused" if isinstance(write, BindPod) else "done"
    cluster.settle()
    assert cluster.node_of("high") == ""
    assert cluster.pods["high"]["status"]["nominatedNodeName"] == ""


def test_a_promise_outlives_the_scheduler() -> None:
    cluster = preempting()
    cluster.grace_ms = 10_000
    cluster.settle()
    cluster.start()
    cluster.add_pod("thief", 4, priority="inference")
    cluster.settle()
    cluster.pass_time(10_000)
    cluster.settle()
    assert cluster.node_of("high") == "n1"
    assert cluster.node_of("thief") == ""


def test_a_promise_for_which_nobody_was_evicted_is_kept_or_taken_back_after_a_restart() -> None:
    cluster = preempting()
    cluster.fate = lambda write: "held" if isinstance(write, EvictPod) else "done"
    cluster.hear()
    cluster.cycle()
    cluster.fate = lambda write: "done"
    cluster.start()
    cluster.settle()
    assert cluster.node_of("high") == "n1"
    assert cluster.node_of("low") == "gone"


def test_who_is_gone_needs_no_place() -> None:
    cluster = preempting()
    cluster.grace_ms = 10_000
    cluster.settle()
    cluster.delete("high")
    cluster.add_pod("next", 4)
    cluster.settle()
    cluster.pass_time(10_000)
    cluster.settle()
    assert cluster.node_of("next") == "n1"
    assert cluster.world.intents.promised == {}


# --------------------------------------------------------------------------------------------------------------- gangs


def gang(cluster: SmallCluster, count: int, gpus: int = 4, name: str = "g") -> None:
    cluster.add_group(name, count)
    for at in range(count):
        cluster.add_pod(f"{name}-{at}", gpus, group=name)


def test_a_gang_starts_once_it_is_complete_and_has_room() -> None:
    cluster = SmallCluster(nodes=2, gpus=4)
    cluster.add_group("g", 2)
    cluster.add_pod("g-0", 4, group="g")
    assert cluster.settle() == []
    cluster.add_pod("g-1", 4, group="g")
    assert sorted(line.split()[0] for line in cluster.settle()) == ["bind", "bind"]


def test_a_gang_that_has_lost_a_part_is_stopped_after_its_grace_and_not_in_a_storm_where_that_is_forbidden() -> None:
    cluster = SmallCluster(nodes=2, gpus=4)
    gang(cluster, 2)
    cluster.settle()
    cluster.delete("g-1")
    cluster.settle()
    cluster.pass_time(DEFAULT.staleness_grace_ms + 1)
    asked: list[object] = []

    def forbid(write: object) -> str:
        if isinstance(write, EvictPod):
            asked.append(write)
            return "forbidden"
        return "done"

    cluster.fate = forbid
    for _ in range(20):
        cluster.settle(1)
    assert len(asked) == 1
    cluster.fate = lambda write: "done"
    cluster.pass_time(PROTECTED_MS + 1)
    cluster.settle()
    assert cluster.places() == {}


def test_pods_that_were_told_to_go_and_ended_in_good_order_are_not_done_and_their_successors_start_together() -> None:
    """Seen with an MPIJob: its old workers, ended with 0 and not quite gone, counted for the gang of the new ones."""
    cluster = SmallCluster(nodes=2, gpus=4)
    gang(cluster, 2)
    cluster.settle()
    for name in ("g-0", "g-1"):
        cluster.delete(name)
        cluster.end(name)
    cluster.add_pod("h-0", 4, group="g")
    assert cluster.settle() == []
    cluster.add_pod("h-1", 4, group="g")
    cluster.pass_time(cluster.grace_ms + 1)
    assert sorted(line.split()[0] for line in cluster.settle()) == ["bind", "bind"]


def test_half_a_gang_that_a_killed_scheduler_has_left_is_completed_by_the_next() -> None:
    cluster = SmallCluster(nodes=4, gpus=4)
    gang(cluster, 4)
    bound: list[object] = []

    def two_of_them(write: object) -> str:
        bound.append(write)
        return "done" if len(bound) <= 2 else "held"

    cluster.fate = two_of_them
    cluster.hear()
    cluster.cycle()
    assert len(cluster.places()) == 2
    cluster.fate = lambda write: "done"
    cluster.start()
    cluster.settle()
    assert len(cluster.places()) == 4


def test_half_a_gang_without_room_for_the_rest_is_stopped_after_its_grace() -> None:
    cluster = SmallCluster(nodes=4, gpus=4)
    gang(cluster, 4)
    bound: list[object] = []

    def two_of_them(write: object) -> str:
        bound.append(write)
        return "done" if len(bound) <= 2 else "held"

    cluster.fate = two_of_them
    cluster.hear()
    cluster.cycle()
    free = sorted(set(cluster.nodes) - set(cluster.places().values()))
    cluster.remove_node(free[0])
    cluster.fate = lambda write: "done"
    cluster.start()
    cluster.settle()
    assert len(cluster.places()) == 2
    cluster.pass_time(DEFAULT.staleness_grace_ms + 1)
    cluster.settle()
    assert cluster.places() == {}


def test_a_gang_whose_node_is_lost_while_it_is_bound_gets_other_places() -> None:
    cluster = SmallCluster(nodes=3, gpus=4)
    gang(cluster, 2)
    cluster.hear()
    cluster.fate = lambda write: "held"
    cluster.cycle()
    lost = cluster.held[0]
    assert isinstance(lost, BindPod)
    cluster.remove_node(lost.node)
    cluster.hear()
    cluster.world.bind_failed(lost, "no such node")
    cluster.fate = lambda write: "done"
    cluster.write(cluster.held[1])
    cluster.pass_time(1_001)
    cluster.settle()
    assert len(cluster.places()) == 2
    assert lost.node not in cluster.places().values()


def test_pods_of_a_group_that_was_deleted_wait_and_say_so() -> None:
    cluster = SmallCluster(nodes=1, gpus=4)
    cluster.add_group("g", 1)
    cluster.add_pod("g-0", 1, group="g")
    cluster.settle()
    cluster.remove_group("g")
    cluster.add_pod("g-1", 1, group="g")
    assert cluster.settle() == []
    assert all("does not exist" in why.text for _, why in cluster.world.pods_held())
    assert cluster.node_of("g-0") == "n1"
    cluster.add_group("g", 1)
    assert cluster.settle() == ["bind g-1 n1"]


def test_what_the_author_of_a_group_should_know_is_told_when_it_becomes_so() -> None:
    cluster = SmallCluster(nodes=1, gpus=4)
    cluster.add_pod("p", group="g")
    cluster.settle()
    assert cluster.world.noted_jobs == []
    cluster.add_group("g", 1)
    cluster.groups["g"]["spec"]["minSubGroup"] = 1
    cluster._tell("podgroups", cluster.groups["g"])
    cluster.settle()
    assert cluster.world.noted_jobs == ["a/podgroup/g"]
    cluster.groups["g"]["spec"]["queue"] = "another"
    cluster._tell("podgroups", cluster.groups["g"])
    cluster.settle()
    assert cluster.world.noted_jobs == ["a/podgroup/g"], "it was told that already"


def test_nothing_is_remembered_of_what_is_gone() -> None:
    cluster = SmallCluster(nodes=1, gpus=4)
    sizes = []
    for number in range(3):
        gang(cluster, 2, 2, f"g{number}")
        cluster.settle()
        cluster.delete(f"g{number}-1")
        cluster.settle()
        cluster.delete(f"g{number}-0")
        cluster.remove_group(f"g{number}")
        cluster.settle()
        intents = cluster.world.intents
        sizes.append(
            {
                name: len(value)
                for name, value in {**vars(intents), **vars(cluster.world)}.items()
                if _sized(name, value)
            }
        )
    assert sizes[0] == sizes[1] == sizes[2]


def _sized(name: str, value: object) -> bool:
    """What is handed out (jobs that came and went) is emptied by who takes it; alarms go when their time has come."""
    return isinstance(value, dict | list | set) and name not in ("new_jobs", "gone_jobs", "noted_jobs")
