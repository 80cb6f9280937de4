"""The exporter's page: names, units, labels in their order, and what is left out."""

from __future__ import annotations

import subprocess

import pytest

from gpuyard.fakegpu.exporter import exposition
from gpuyard.fakegpu.metrics import ALL_METRICS, METRICS
from gpuyard.fakegpu.reading import Clocks, Ecc, Health, Holder, MachineReading
from tests.fakegpu.idle import HOLDER, MIB, a_device, a_machine, an_instance
from tests.fakegpu.prometheus import program

DEFAULT_COUNTERS = {
    "DCGM_FI_DEV_SM_CLOCK": "gauge",
    "DCGM_FI_DEV_MEM_CLOCK": "gauge",
    "DCGM_FI_DEV_MEMORY_TEMP": "gauge",
    "DCGM_FI_DEV_GPU_TEMP": "gauge",
    "DCGM_FI_DEV_POWER_USAGE": "gauge",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "counter",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "counter",
    "DCGM_FI_DEV_GPU_UTIL": "gauge",
    "DCGM_FI_DEV_MEM_COPY_UTIL": "gauge",
    "DCGM_FI_DEV_ENC_UTIL": "gauge",
    "DCGM_FI_DEV_DEC_UTIL": "gauge",
    "DCGM_FI_DEV_XID_ERRORS": "gauge",
    "DCGM_FI_DEV_FB_FREE": "gauge",
    "DCGM_FI_DEV_FB_USED": "gauge",
    "DCGM_FI_DEV_FB_RESERVED": "gauge",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "counter",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "gauge",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "counter",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": "counter",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "gauge",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "gauge",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "gauge",
    "DCGM_FI_PROF_DRAM_ACTIVE": "gauge",
    "DCGM_FI_PROF_PCIE_TX_BYTES": "gauge",
    "DCGM_FI_PROF_PCIE_RX_BYTES": "gauge",
}


def page(*machines: MachineReading, **options: str) -> str:
    return "".join(exposition(machines, **options))


def lines_of(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(name + "{")]


def value_of(text: str, name: str) -> str:
    (line,) = lines_of(text, name)
    return line.rsplit(" ", 1)[1]


def test_the_labels_stand_in_the_exporters_order() -> None:
    machine = a_machine(a_device(3, gpu_percent=10, holder=HOLDER))
    assert lines_of(page(machine), "DCGM_FI_DEV_GPU_UTIL") == [
        'DCGM_FI_DEV_GPU_UTIL{gpu="3",UUID="GPU-00000000-0000-0000-0000-000000000003",'
        'pci_bus_id="00000000:04:00.0",device="nvidia3",modelName="NVIDIA A100-SXM4-80GB",Hostname="node-a",'
        'DCGM_FI_DRIVER_VERSION="550.54.15",container="main",namespace="team-a",pod="train-0"} 10'
    ]


def test_the_name_of_the_host_may_be_spelled_small() -> None:
    text = page(a_machine(), hostname_label="hostname")
    assert ',hostname="node-a",' in text
    assert "Hostname" not in text


def test_a_free_device_has_the_labels_of_a_holder_but_empty() -> None:
    (line,) = lines_of(page(a_machine()), "DCGM_FI_DEV_FB_USED")
    assert 'container="",namespace="",pod=""}' in line


def test_the_default_counters_are_there_with_their_types_each_told_once() -> None:
    text = page(a_machine(a_device(0), a_device(1)), a_machine(name="node-b"))
    types = [line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE")]
    assert DEFAULT_COUNTERS.items() <= dict(types).items()
    assert [name for name, _ in types] == [metric.name for metric in ALL_METRICS]
    assert text.count("# HELP") == len(types)


def test_the_lines_of_a_metric_stand_together() -> None:
    text = page(a_machine(a_device(0), a_device(1)), a_machine(name="node-b"))
    names = [line.split("{")[0] for line in text.splitlines() if not line.startswith("#")]
    assert names == sorted(names, key=[metric.name for metric in ALL_METRICS].index)


def test_every_number_is_in_the_exporters_unit() -> None:
    device = a_device(
        memory_total_bytes=11441 * MIB,
        memory_reserved_bytes=41 * MIB,
        memory_used_bytes=5000 * MIB,
        gpu_percent=100,
        memory_percent=7,
        tensor_percent=45,
        power_mw=62_050,
        energy_mj=5,
        clocks=Clocks(1, 2, 3, 4),
        ecc=Ecc(1, 2, 3, 4),
        pcie_tx_bytes_per_s=11,
        nvlink_bytes=3 * MIB,
    )
    text = page(a_machine(device))
    expected = {
        "FI_DEV_FB_USED": "5000",
        "FI_DEV_FB_FREE": "6400",
        "FI_DEV_FB_RESERVED": "41",
        "FI_DEV_POWER_USAGE": "62.050000",
        "FI_DEV_TOTAL_ENERGY_CONSUMPTION": "5",
        "FI_DEV_SM_CLOCK": "2",
        "FI_DEV_MEM_CLOCK": "3",
        "FI_PROF_GR_ENGINE_ACTIVE": "1.000000",
        "FI_PROF_DRAM_ACTIVE": "0.070000",
        "FI_PROF_PIPE_TENSOR_ACTIVE": "0.450000",
        "FI_PROF_PCIE_TX_BYTES": "11",
        "FI_DEV_NVLINK_BANDWIDTH_TOTAL": "3",
        "FI_DEV_ECC_SBE_VOL_TOTAL": "1",
        "FI_DEV_ECC_DBE_VOL_TOTAL": "2",
    }
    assert {name: value_of(text, f"DCGM_{name}") for name in expected} == expected


def test_what_a_product_lacks_is_left_out() -> None:
    text = page(a_machine(a_device(memory_temperature_c=None, ecc=None)))
    assert "MEMORY_TEMP" not in text
    assert "ECC" not in text


def test_counters_that_came_later_are_left_out_of_older_products() -> None:
    text = page(a_machine(a_device(product="Tesla K80")))
    assert "DCGM_FI_PROF_" not in text
    assert "REMAP" not in text
    assert "NVLINK" not in text
    assert "ENERGY" not in text
    newer = page(a_machine(a_device(product="Tesla T4")))
    assert "DCGM_FI_PROF_GR_ENGINE_ACTIVE" in newer
    assert "REMAP" not in newer


def test_an_xid_names_its_code_and_its_meaning() -> None:
    text = page(a_machine(a_device(0, last_xid=48), a_device(1)))
    first, second = lines_of(text, "DCGM_FI_DEV_XID_ERRORS")
    assert first.endswith(',pod="",err_code="48",err_msg="Double Bit ECC Error"} 48')
    assert second.endswith(',err_code="0",err_msg="No Error"} 0')


def test_of_a_device_off_the_bus_only_its_errors_are_known() -> None:
    text = page(a_machine(a_device(last_xid=79, health=Health.OFF_THE_BUS)))
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line.split("{")[0] for line in lines] == ["DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_GPU_HEALTH_STATUS"]
    assert [line.rsplit(" ")[-1] for line in lines] == ["79", "20"]


def test_a_device_cut_up_is_shown_through_its_instances() -> None:
    instances = (an_instance(0, memory_used_bytes=100 * MIB, gpu_percent=30, holder=HOLDER), an_instance(1))
    text = page(a_machine(a_device(mig_enabled=True, mig=instances, gpu_percent=10)))
    first, second = lines_of(text, "DCGM_FI_DEV_FB_USED")
    assert 'modelName="NVIDIA A100-SXM4-80GB",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7",Hostname="node-a"' in first
    assert first.endswith('pod="train-0"} 100')
    assert 'GPU_I_ID="8"' in second
    assert [line.rsplit(" ")[-1] for line in lines_of(text, "DCGM_FI_DEV_FB_FREE")] == ["9628", "9728"]
    assert [line.rsplit(" ")[-1] for line in lines_of(text, "DCGM_FI_PROF_GR_ENGINE_ACTIVE")] == [
        "0.300000",
        "0.000000",
    ]
    assert "_UTIL" not in text


def test_a_device_ready_to_be_cut_up_but_whole_is_shown_itself() -> None:
    assert lines_of(page(a_machine(a_device(mig_enabled=True))), "DCGM_FI_DEV_FB_USED")


def test_labels_are_escaped() -> None:
    holder = Holder('quo"te', "back\\slash", "new\nline")
    (line,) = lines_of(page(a_machine(a_device(holder=holder))), "DCGM_FI_DEV_GPU_UTIL")
    assert line.endswith('container="new\\nline",namespace="quo\\"te",pod="back\\\\slash"} 0')


def test_no_machine_gives_an_empty_page() -> None:
    assert page() == ""


def test_large_pages_come_in_pieces() -> None:
    machines = [a_machine(*(a_device(at) for at in range(8)), name=f"node-{number}") for number in range(600)]
    pieces = list(exposition(machines))
    assert max(map(len, pieces)) < 2_000_000
    assert sum(piece.count("\n") for piece in pieces) == len(ALL_METRICS) * (4800 + 2)


def test_promtool_finds_nothing_but_the_vendors_names() -> None:
    """It would rather have other names for one label and the counters; both are the real exporter's."""
    machine = a_machine(a_device(0, holder=HOLDER), a_device(1, mig_enabled=True, mig=(an_instance(),)))
    command = [str(program("promtool")), "check", "metrics"]
    told = subprocess.run(command, input=page(machine), capture_output=True, text=True, timeout=60)
    counters = [metric.name for metric in METRICS if metric.kind == "counter"]
    assert set((told.stdout + told.stderr).splitlines()) == {
        *(f"{metric.name} label names should be written in 'snake_case' not 'camelCase'" for metric in ALL_METRICS),
        *(f'{name} counter metrics should have "_total" suffix' for name in counters),
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER metric name should not include type 'counter'",
    }


@pytest.mark.parametrize("text", ["no metric at all {", 'DCGM_FI_DEV_GPU_UTIL{gpu="0} 1'])
def test_promtool_would_have_found_more(text: str) -> None:
    command = [str(program("promtool")), "check", "metrics"]
    assert subprocess.run(command, input=text, capture_output=True, text=True, timeout=60).returncode == 1
