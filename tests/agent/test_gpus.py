"""Which GPUs a task sees, and what the agent tells about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.agent.gpus import choose
from gpuyard.errors import AgentError
from gpuyard.fakegpu.control import Break, ask
from gpuyard.model.jobs import DeviceShare
from gpuyard.model.nodes import MigSlices
from gpuyard.nvml.gpus import Gpu, MigInstance, devices, link_groups, model_name
from gpuyard.wire.agents import Ending, Phase
from tests.agent.certificates import Authority
from tests.agent.machines import Machine, a_script, shared_machine
from tests.agent.manager import Manager, eventually

NOBODY: frozenset[str] = frozenset()


def gpus(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(f"GPU-{number}", "A100-40", 40_960, bus_id=f"bus-{number}") for number in range(count))


CUT = Gpu("GPU-0", "A100-40", 40_960, is_cut=True, mig=tuple(MigInstance("1g.5gb", f"MIG-{n}") for n in range(3)))


def test_shares_name_devices_by_their_place() -> None:
    assert choose(gpus(4), (DeviceShare(2), DeviceShare(0)), NOBODY) == ("GPU-2", "GPU-0")


def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(AgentError, match=r"no GPU 4; it has 4"):
        choose(gpus(4), (DeviceShare(4),), NOBODY)


def test_a_slice_is_one_that_nobody_has() -> None:
    share = DeviceShare(0, 143, mig="1g.5gb")
    assert choose((CUT,), (share, share), frozenset({"MIG-1"})) == ("MIG-0", "MIG-2")
    with pytest.raises(AgentError, match=r"no slice 1g\.5gb of GPU 0 is free"):
        choose((CUT,), (share,), frozenset({"MIG-0", "MIG-1", "MIG-2"}))


def test_a_cut_gpu_is_told_by_its_slices_and_is_not_shared() -> None:
    (device,) = devices((CUT,))
    assert device.mig == (MigSlices("1g.5gb", 3),)
    assert not device.shareable


def test_gpus_behind_one_switch_are_one_group() -> None:
    linked = tuple(Gpu(f"GPU-{n}", "H100", 1, bus_id=f"bus-{n}", links=frozenset({"switch"})) for n in range(4))
    assert len({link_groups(linked)[gpu.bus_id] for gpu in linked}) == 1


def test_bridged_pairs_are_groups_of_their_own_and_the_rest_is_alone() -> None:
    pairs = {0: 1, 1: 0, 2: 3, 3: 2}
    linked = tuple(
        Gpu(f"GPU-{n}", "A40", 1, bus_id=f"bus-{n}", links=frozenset({f"bus-{pairs[n]}"} if n in pairs else ()))
        for n in range(5)
    )
    groups = [device.nvlink for device in devices(linked)]
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert 0 not in groups[:4]
    assert groups[4] == 0


@pytest.mark.parametrize(
    ("name", "model"), [("NVIDIA A100-SXM4-40GB", "A100-40"), ("NVIDIA RTX 9999 Ti", "RTX-9999-Ti"), ("", "gpu")]
)
def test_models_have_short_names(name: str, model: str) -> None:
    assert model_name(name) == model


# ------------------------------------------------------------------------------------------------- with fake GPUs


@pytest.fixture(scope="module")
def manager(authority: Authority) -> Iterator[Manager]:
    with Manager(authority) as made:
        yield made


@pytest.fixture(scope="module")
def running_machine(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, manager: Manager
) -> Iterator[Machine]:
    with shared_machine(tmp_path_factory.mktemp("shared") / "home", authority, manager) as made:
        yield made.start("--fake-gpus", "4", "--fake-product", "A100-40", "--isolation", "none")


@pytest.fixture
def fake_machine(running_machine: Machine, manager: Manager) -> Iterator[Machine]:
    """One serves all of these tests."""
    yield running_machine
    manager.drop_everything()


@pytest.mark.slow
def test_a_task_sees_its_gpus_and_no_others(fake_machine: Machine, manager: Manager) -> None:
    ids = [device.id for device in manager.facts.devices]
    assert manager.facts.fake
    assert [device.model for device in manager.facts.devices] == ["A100-40"] * 4
    given = {"LD_PRELOAD": "/evil.so", "NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    script = 'nvidia-smi -L; echo "$CUDA_VISIBLE_DEVICES $LD_PRELOAD."'
    task = a_script(script, shares=(DeviceShare(1), DeviceShare(3)), env=given)
    manager.want(task)
    assert manager.wait_for(task.id, Phase.ENDED).exit_code == 0
    lines = manager.whole_log(task.id).decode().splitlines()
    assert len(lines) == 3
    assert all(id in line for id, line in zip((ids[1], ids[3]), lines[:2], strict=True))
    assert lines[2] == f"{ids[1]},{ids[3]} ."


@pytest.mark.slow
def test_a_task_without_gpus_sees_none(fake_machine: Machine, manager: Manager) -> None:
    task = a_script('nvidia-smi -L; echo "[$CUDA_VISIBLE_DEVICES]"')
    manager.want(task)
    manager.wait_for(task.id, Phase.ENDED)
    said = manager.whole_log(task.id).decode()
    assert "GPU-" not in said
    assert "[]" in said


@pytest.mark.slow
def test_a_part_of_a_gpu_is_told_in_numbers(fake_machine: Machine, manager: Manager) -> None:
    share = DeviceShare(0, gpu_milli=250, memory_mib=10_240)
    task = a_script("echo $GPUYARD_GPU_MILLI $GPUYARD_GPU_MEMORY_MIB", shares=(share,))
    manager.want(task)
    manager.wait_for(task.id, Phase.ENDED)
    assert manager.whole_log(task.id) == b"250 10240\n"


@pytest.mark.slow
def test_the_use_of_a_gpu_is_reported_also_for_whoever_takes_it_over(fake_machine: Machine, manager: Manager) -> None:
    """The model sees the end of a process a moment later than we do."""
    share = DeviceShare(0)
    first, second = a_script("sleep 60", shares=(share,)), a_script("sleep 60", shares=(share,))
    manager.want(first)
    eventually(lambda: first.id in manager.reports and (manager.reports[first.id].gpu_percent or 0) > 90)
    manager.drop(first.id)
    manager.wait_for(first.id, Phase.ENDED)
    manager.want(second)
    eventually(lambda: second.id in manager.reports and (manager.reports[second.id].gpu_percent or 0) > 90)


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "percent"), [("0", 0), ("[{utilization: 40}]", 40), ("nonsense", 100)])
def test_a_job_may_say_what_it_does_with_fake_gpus(
    fake_machine: Machine, manager: Manager, profile: str, percent: int
) -> None:
    task = a_script("sleep 60", shares=(DeviceShare(1),), env={"FAKE_GPU_PROFILE": profile})
    manager.want(task)
    manager.wait_for(task.id, Phase.RUNNING)
    eventually(lambda: manager.reports[task.id].gpu_percent == percent)
    manager.drop(task.id)
    manager.wait_for(task.id, Phase.ENDED)


@pytest.mark.slow
def test_who_shares_a_gpu_is_measured_by_its_own_processes(fake_machine: Machine, manager: Manager) -> None:
    """The fake GPUs let a task use all of what it was given."""
    half = DeviceShare(0, gpu_milli=500, memory_mib=10_000)
    tasks = [a_script("sleep 60", shares=(half,)) for _ in range(2)]
    manager.want(*tasks)
    ids = [task.id for task in tasks]
    eventually(lambda: all(id in manager.reports and (manager.reports[id].gpu_percent or 0) > 90 for id in ids))


@pytest.mark.slow
def test_a_gpu_that_falls_ill_is_reported(tmp_path: Path, authority: Authority) -> None:
    with Manager(authority) as manager, shared_machine(tmp_path / "home", authority, manager) as machine:
        machine.start("--fake-gpus", "4", "--isolation", "none")
        for gpu, fault in ((1, "xid:79"), (2, "ecc:uncorrected"), (3, "xid:13")):
            ask(machine.home / "open" / "fake", Break("node-1", gpu, fault), type(None))
        eventually(lambda: [device.healthy for device in manager.facts.devices] == [True, False, False, True])


@pytest.mark.slow
def test_fake_gpus_outlive_the_agent(fake_machine: Machine, manager: Manager) -> None:
    before = [device.id for device in manager.facts.devices]
    task = a_script("sleep 2; nvidia-smi -L", shares=(DeviceShare(0),))
    manager.want(task)
    manager.wait_for(task.id, Phase.RUNNING)
    fake_machine.kill()
    fake_machine.start()
    assert [device.id for device in manager.facts.devices] == before
    assert manager.wait_for(task.id, Phase.ENDED).exit_code == 0
    assert before[0] in manager.whole_log(task.id).decode()


@pytest.mark.slow
def test_a_share_of_a_gpu_that_is_not_there_starts_nothing(fake_machine: Machine, manager: Manager) -> None:
    task = a_script("true", shares=(DeviceShare(7),))
    manager.want(task)
    ended = manager.wait_for(task.id, Phase.ENDED)
    assert (ended.ending, ended.message) == (Ending.NOT_STARTED, "this machine has no GPU 7; it has 4, counted from 0")
