"""The faces agree to the unit, whatever has happened: NVML, nvidia-smi, exporter and labels on random lives."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.faults import read_fault
from gpuyard.fakegpu.fleet import Fleet, a_fleet
from gpuyard.fakegpu.format import MigStrategy
from gpuyard.fakegpu.labels import PREFIX, labels_of, resource_name, sanitised
from gpuyard.fakegpu.publish import Publisher
from gpuyard.fakegpu.reading import MachineReading
from tests.fakegpu.faces import (
    Nvml,
    Said,
    exporter_energies,
    exporter_said,
    samples,
    smi_lines,
    smi_processes,
    smi_said,
)
from tests.fakegpu.lives import Life, fleets, live, lives

pytestmark = pytest.mark.slow


def after(fleet: Fleet, life: Life, strategy: MigStrategy) -> list[MachineReading]:
    """What the machines show when all of it has happened, a moment into the last second."""
    machines = tuple(msgspec.structs.replace(machine, mig_strategy=strategy) for machine in fleet.machines)
    engine = Engine(msgspec.structs.replace(fleet, machines=machines), seed=3, at_ms=0)
    live(engine, life, lambda engine, at_ms: engine.advance(min(at_ms, (life[-1][0] * 1000 if life else 0) + 700)))
    return list(engine.readings())


@pytest.fixture(scope="module")
def nvml() -> Nvml:
    return Nvml()


@pytest.fixture(scope="module")
def publisher() -> Iterator[Publisher]:
    with tempfile.TemporaryDirectory() as folder, Publisher(Path(folder)) as made:
        yield made


@given(fleet=fleets(), life=lives(), strategy=st.sampled_from(MigStrategy))
def test_all_faces_say_the_same(
    nvml: Nvml, publisher: Publisher, fleet: Fleet, life: Life, strategy: MigStrategy
) -> None:
    for machine in after(fleet, life, strategy):
        publisher.write(machine)
        state = publisher.directory(machine.machine)
        uuids = [device.uuid for device in machine.devices]
        said, programs = nvml.said(state, uuids), nvml.programs(state, uuids)
        assert smi_said(state) == said.devices
        assert exporter_said(machine) == as_the_exporter_shows(said)
        assert smi_processes(state) == programs.processes
        assert exporter_energies(machine) == programs.energies
        compare_labels(labels_of(machine), machine, said)


def as_the_exporter_shows(said: Said) -> Said:
    """It shows a device that is cut through its instances alone."""
    cut = {uuid: each for uuid, each in said.instances.items() if each}
    whole = {uuid: device for uuid, device in said.devices.items() if uuid not in cut}
    return Said(whole, said.lost, cut)


def compare_labels(labels: dict[str, str], machine: MachineReading, said: Said) -> None:
    """Labels tell what is there, be it lost or not."""
    first = machine.devices[0]
    profiles = Counter(resource_name(one.profile) for device in machine.devices for one in device.mig)
    of_mig = {name: value for name, value in labels.items() if name.startswith(PREFIX + "mig-") and ".count" in name}
    if machine.mig_strategy == "mixed":
        assert of_mig == {f"{PREFIX}mig-{profile}.count": str(count) for profile, count in profiles.items()}
    if machine.mig_strategy != "single":
        assert labels[PREFIX + "gpu.count"] == str(len(said.devices) + len(said.lost))
        assert labels[PREFIX + "gpu.product"] == sanitised(first.product)
        assert labels[PREFIX + "gpu.memory"] == str(first.memory_total_bytes >> 20)


SHOWN_BY: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "unhealthy": ({"DCGM_EXP_GPU_HEALTH_STATUS": "20"}, {}),
    "xid:13": ({"DCGM_FI_DEV_XID_ERRORS": "13", "DCGM_EXP_GPU_HEALTH_STATUS": "0"}, {}),
    "ecc:corrected:3": (
        {"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": "3"},
        {"ecc.errors.corrected.volatile.total": "3"},
    ),
    "ecc:uncorrected": (
        {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "1", "DCGM_FI_DEV_XID_ERRORS": "48"},
        {"ecc.errors.uncorrected.volatile.total": "1"},
    ),
    "throttle": (
        {"DCGM_FI_DEV_CLOCKS_EVENT_REASONS": "72", "DCGM_FI_DEV_SM_CLOCK": "705"},
        {"clocks_throttle_reasons.active": "0x0000000000000048", "clocks.sm": "705"},
    ),
    "memory-loss:8GiB": ({"DCGM_FI_DEV_FB_USED": "1024"}, {"memory.total": "73728", "memory.used": "1024"}),
}
LASTING = {"ecc.errors.corrected.volatile.total", "memory.used"}
"""What a fault does not take back, or has not changed."""


@pytest.mark.parametrize("fault", SHOWN_BY)
def test_a_fault_is_seen_and_goes(publisher: Publisher, fault: str) -> None:
    engine = Engine(a_fleet("A100", 1, ["broken"]), seed=0, at_ms=0)
    engine.start("broken", 0, "work", pid=4711, memory_bytes=1 << 30)
    by_exporter, by_smi = SHOWN_BY[fault]
    engine.fault("broken", 0, read_fault(fault), for_ms=5000)
    engine.advance(1000)
    assert by_exporter.items() <= on_exporter(engine).items()
    assert by_smi == on_smi(publisher, engine, list(by_smi))
    engine.advance(6000)
    now = on_smi(publisher, engine, list(by_smi))
    assert on_exporter(engine)["DCGM_EXP_GPU_HEALTH_STATUS"] == "0"
    assert {name for name in by_smi if now[name] == by_smi[name]} <= LASTING


def on_exporter(engine: Engine) -> dict[str, str]:
    return {name: value for name, _, value in samples(engine.reading("broken"))}


def on_smi(publisher: Publisher, engine: Engine, fields: list[str]) -> dict[str, str]:
    publisher.write(engine.reading("broken"))
    ((_, *values),) = smi_lines(publisher.directory("broken"), f"--query-gpu={','.join(['uuid', *fields])}")
    return dict(zip(fields, values, strict=True))
