"""What a fleet file means: the mock design's own form, pools, MIG, profiles, tasks and faults."""

import uuid
from pathlib import Path

import pytest

from gpuyard.errors import InputError
from gpuyard.fakegpu.config import fleet_of, fleet_of_cluster, read_fleet
from gpuyard.fakegpu.faults import read_fault
from gpuyard.fakegpu.fleet import MIB, FaultScript, Fleet, Given, MachineSpec, TaskScript, gpu_uuid, mig_uuid
from gpuyard.fakegpu.profile import BUSY, steady
from gpuyard.fakegpu.reading import Holder

VALID = Path(__file__).parent / "valid"


@pytest.fixture(scope="module")
def everything() -> Fleet:
    return read_fleet(VALID / "fleet.yaml")


def machine(fleet: Fleet, name: str) -> MachineSpec:
    return next(machine for machine in fleet.machines if machine.name == name)


def test_an_id_that_is_made_is_the_uuid_of_its_name() -> None:
    namespace = uuid.UUID("a5f1d2c6-2f6e-4f0e-9a57-3b1d6f6a7c01")
    for index in range(20):
        assert gpu_uuid("nöde", index) == f"GPU-{uuid.uuid5(namespace, f'nöde/{index}')}"
        assert mig_uuid("GPU-x", index) == f"MIG-{uuid.uuid5(namespace, f'GPU-x/mig/{index}')}"


def test_the_mock_designs_file_is_read_as_it_stands() -> None:
    fleet = read_fleet(VALID / "seed.yaml")
    (node,) = fleet.machines
    assert (node.name, node.mig_strategy) == ("node-a", "mixed")
    assert [gpu.uuid for gpu in node.gpus] == [
        "GPU-8fc73fbd-91f0-697e-57ef-fc978bd54af1",
        "GPU-kdiue726-57ef-91f0-837f-qjk49djklsk8",
    ]
    assert {gpu.product.name for gpu in node.gpus} == {"Tesla K80"}
    assert {gpu.memory_bytes for gpu in node.gpus} == {11441 * MIB}
    holder = Holder("runai-project-a", "pod", "container")
    assert [gpu.given for gpu in node.gpus] == [Given(10, 5000 * MIB, holder), Given(100, 10000 * MIB, holder)]


def test_nothing_is_reserved_where_states_are_written_down() -> None:
    text = "nodes: {a: {gpu-product: T4, gpus: [{metrics: {fb-used: 5}}, {}]}, b: {gpu-product: T4, gpus: 1}}"
    written, other = fleet_of(text).machines
    assert [gpu.reserved_bytes for gpu in written.gpus] == [0, 0]
    assert other.gpus[0].reserved_bytes > 0


def test_a_pool_makes_nodes_with_names_and_ids_that_stay_the_same() -> None:
    fleet = fleet_of("pools: {a100: {nodes: 100, gpus: 8, product: A100, memory: 80GiB}}")
    assert [machine.name for machine in fleet.machines] == [f"a100-{number}" for number in range(1, 101)]
    assert {len(machine.gpus) for machine in fleet.machines} == {8}
    ids = [gpu.uuid for machine in fleet.machines for gpu in machine.gpus]
    assert len(set(ids)) == 800
    assert ids[8] == gpu_uuid("a100-2", 0)


def test_a_product_brings_its_memory_power_and_driver(everything: Fleet) -> None:
    node = machine(everything, "l40s-1")
    assert (len(node.gpus), node.pool) == (4, "l40s")
    assert node.gpus[0].memory_bytes == 46068 * MIB
    assert node.gpus[0].power_limit_mw == 350_000
    assert node.driver_version == node.gpus[0].product.driver


def test_a_gpu_says_otherwise_than_its_node(everything: Fleet) -> None:
    assert [gpu.power_limit_mw for gpu in machine(everything, "node-a").gpus] == [149_000, 120_000]
    assert [len(gpu.mig) for gpu in machine(everything, "cut").gpus] == [3, 7, 0]
    assert [gpu.mig_enabled for gpu in machine(everything, "cut").gpus] == [True, True, False]


def test_a_node_may_mix_products() -> None:
    text = "nodes: {a: {gpu-product: A100, gpus: [{}, {gpu-product: T4}, {gpu-memory: 20GiB}]}}"
    (node,) = fleet_of(text).machines
    assert [(gpu.product.key, gpu.memory_bytes // MIB) for gpu in node.gpus] == [
        ("A100-80", 81920),
        ("T4", 15360),
        ("A100-80", 20480),
    ]


def test_mig_instances_and_strategies(everything: Fleet) -> None:
    cut = machine(everything, "cut")
    assert [profile.name for profile in cut.gpus[0].mig] == ["3g.40gb", "2g.20gb", "1g.10gb"]
    assert (cut.mig_strategy, machine(everything, "big-1").mig_strategy) == ("mixed", "single")
    assert (cut.driver_version, cut.cuda_version) == ("580.65.06", "13.0")


def test_a_profile_of_a_pool_runs_on_every_gpu(everything: Fleet) -> None:
    standing = [task for task in everything.tasks if task.machine.startswith("l40s")]
    assert [(task.machine, task.gpu) for task in standing] == [(f"l40s-{n}", gpu) for n in (1, 2) for gpu in range(4)]
    assert {task.profile.repeat for task in standing} == {None}


def test_a_profile_runs_on_every_instance_of_a_gpu_that_is_cut() -> None:
    fleet = fleet_of("pools: {a: {nodes: 1, gpus: 2, product: A100, mig: {2g.20gb: 3}, profile: [{time: 1h}]}}")
    assert [(task.gpu, task.mig) for task in fleet.tasks] == [(gpu, mig) for gpu in (0, 1) for mig in (0, 1, 2)]


def test_repeat_beside_a_profile_that_is_named(everything: Fleet) -> None:
    (standing,) = [task for task in everything.tasks if task.machine == "cut" and task.gpu == 2]
    assert (standing.profile.repeat, len(standing.profile.phases)) == (3, 2)


def test_tasks_say_where_when_and_what(everything: Fleet) -> None:
    inference, other = everything.tasks[-2:]
    assert (inference.machine, inference.gpu, inference.mig, inference.task) == ("cut", 0, 1, "inference")
    assert (inference.at_ms, inference.for_ms, inference.pid, inference.name) == (300_000, 3_600_000, 4711, "python")
    assert other == TaskScript(
        machine="node-a",
        gpu=1,
        task="task-2",
        profile=BUSY,
        memory_bytes=4 << 30,
        holder=Holder("team-b", "other", "main"),
    )


def test_faults_name_a_gpu_by_index_or_id(everything: Fleet) -> None:
    assert everything.faults == (
        FaultScript(machine="node-a", gpu=0, fault=read_fault("xid:79"), at_ms=600_000, for_ms=300_000),
        FaultScript(machine="l40s-2", gpu=3, fault=read_fault("throttle")),
    )


def test_an_id_of_63_characters_is_not_too_long() -> None:
    longest = "x" * 63
    assert fleet_of(f"nodes: {{a: {{gpu-product: T4, gpus: [{{id: {longest}}}]}}}}").machines[0].gpus[0].uuid == longest


def test_a_file_may_be_json() -> None:
    assert fleet_of('{"pools":\t{"t4": {"nodes": 2, "product": "T4"}}}', "fleet.json").machines[1].name == "t4-2"


def test_a_node_may_have_no_gpu_and_a_fleet_no_node() -> None:
    assert fleet_of("nodes: {a: {gpu-product: T4, gpus: 0}}").machines[0].gpus == ()
    assert fleet_of("mig-strategy: none").machines == ()


def test_two_gpus_may_not_be_given_the_same_made_id() -> None:
    taken = gpu_uuid("b", 0)
    text = f"nodes: {{a: {{gpu-product: T4, gpus: [{{id: {taken}}}]}}, b: {{gpu-product: T4, gpus: 1}}}}"
    with pytest.raises(InputError, match="is given twice"):
        fleet_of(text)


def test_the_same_text_gives_the_same_fleet() -> None:
    text = (VALID / "fleet.yaml").read_text(encoding="utf-8")
    assert fleet_of(text) == fleet_of(text)


def test_in_a_cluster_nodes_say_to_which_pool_they_belong() -> None:
    text = "pools: {a: {product: T4, gpus: 2}, b: {nodes: 1, product: T4}}\nnodes: {x: {gpu-product: K80, gpus: 1}}"
    found = fleet_of_cluster(text, "fleet.yaml", {"a": ["y", "x"], "unknown": ["z"]})
    machines = [(each.name, each.pool, len(each.gpus)) for each in found.fleet.machines]
    assert machines == [("x", "", 1), ("y", "a", 2), ("b-1", "b", 8)]


def test_in_a_cluster_what_is_about_nodes_that_are_not_there_is_left_out_and_told() -> None:
    text = "pools: {a: {product: T4}}\ntasks: [{node: gone}, {node: y}]\nfaults: [{node: gone, fault: unhealthy}]"
    found = fleet_of_cluster(text, "fleet.yaml", {"a": ["y"]})
    assert [task.machine for task in found.fleet.tasks] == ["y"]
    assert found.fleet.faults == ()
    assert [str(error.where) for error in found.unplaced] == ["fleet.yaml:2:16", "fleet.yaml:3:17"]


def test_a_fleet_knows_its_profiles_by_name() -> None:
    profiles = dict(fleet_of("profiles: {rest: [{utilization: 0}]}").profiles)
    assert profiles == {"rest": steady(0)}
