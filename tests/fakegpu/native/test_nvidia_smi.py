"""nvidia-smi as other people's scripts call it: tables, queries, XML, exit codes, and nothing needed to run it."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuyard.fakegpu import build
from gpuyard.fakegpu.publish import Publisher
from gpuyard.fakegpu.reading import Health
from tests.fakegpu.readings import MIB, a_device, a_machine, a_process, an_instance

NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n\n"
)

Done = subprocess.CompletedProcess[str]
Smi = Callable[..., Done]


@pytest.fixture(scope="module")
def program() -> Path:
    return build.nvidia_smi()


@pytest.fixture
def smi(program: Path, publisher: Publisher) -> Smi:
    """Runs nvidia-smi on the machine the test published."""
    return lambda *words: subprocess.run([program, *words], capture_output=True, text=True, timeout=20, check=False)


@pytest.fixture
def two(publisher: Publisher) -> None:
    """Two GPUs, one of them with a process, one in MIG mode."""
    busy = a_device(0, processes=(a_process(4711, name="/opt/conda/bin/python3"),))
    instances = tuple(an_instance(index) for index in range(2))
    publisher.write(a_machine(busy, a_device(1, mig_enabled=True, mig=instances)))


# ------------------------------------------------------------------------------------------------------------ tables


def test_the_table(smi: Smi, two: None) -> None:
    done = smi()
    assert done.returncode == 0
    lines = done.stdout.splitlines()[1:]
    assert {len(line) for line in lines if line} == {91}
    assert "| NVIDIA-SMI 570.195.03             Driver Version: 570.195.03     CUDA Version: 12.8     |" in lines
    assert "|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |" in lines
    assert "| N/A   55C    P0            215W /  400W |    4096MiB /  81920MiB |     37%      Default |" in lines
    assert "|  1    8   0   1  |                12MiB /   9728MiB | 14      0 |  1   0    0    0    0 |" in lines
    assert "|    0   N/A  N/A            4711      C   /opt/conda/bin/python3                 2048MiB |" in lines


def test_the_table_of_an_idle_machine(smi: Smi, publisher: Publisher) -> None:
    publisher.write(a_machine(a_device()))
    assert "|  No running processes found                                                             |" in smi().stdout


def test_a_long_process_name_keeps_its_end(smi: Smi, publisher: Publisher) -> None:
    publisher.write(a_machine(a_device(processes=(a_process(1, name="/very/long" * 9 + "/trainer"),))))
    lines = smi().stdout.splitlines()[1:]
    assert {len(line) for line in lines if line} == {91}
    assert any("..." in line and "/trainer " in line for line in lines)


def test_the_list(smi: Smi, two: None) -> None:
    assert smi("-L").stdout == (
        "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-00000000-1111-2222-3333-444444444444)\n"
        "GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-00000001-1111-2222-3333-444444444444)\n"
        "  MIG 1g.10gb      Device  0: (UUID: MIG-00000000-aaaa-bbbb-cccc-dddddddddddd)\n"
        "  MIG 1g.10gb      Device  1: (UUID: MIG-00000001-aaaa-bbbb-cccc-dddddddddddd)\n"
    )


# ----------------------------------------------------------------------------------------------------------- queries


def test_a_query_with_heading_and_units(smi: Smi, two: None) -> None:
    fields = "index,gpu_name,memory.total,memory.used,memory.free,utilization.gpu,temperature.gpu,power.draw,clocks.sm"
    assert smi(f"--query-gpu={fields}", "--format=csv", "-i", "0").stdout == (
        "index, name, memory.total [MiB], memory.used [MiB], memory.free [MiB], utilization.gpu [%], temperature.gpu, "
        "power.draw [W], clocks.current.sm [MHz]\n"
        "0, NVIDIA A100-SXM4-80GB, 81920 MiB, 4096 MiB, 77057 MiB, 37 %, 55, 215.34 W, 1410 MHz\n"
    )


def test_a_query_for_a_script(smi: Smi, two: None) -> None:
    done = smi("--query-gpu=uuid,memory.used,utilization.gpu,fan.speed", "--format=csv,noheader,nounits")
    assert done.stdout == (
        "GPU-00000000-1111-2222-3333-444444444444, 4096, 37, [N/A]\n"
        "GPU-00000001-1111-2222-3333-444444444444, 4096, [N/A], [N/A]\n"
    )


# What scripts in the wild ask for, one query each.
QUERIES = (
    "timestamp,name,pci.bus_id,driver_version,pstate,pcie.link.gen.max,pcie.link.gen.current,temperature.gpu,"
    "utilization.gpu,utilization.memory,memory.total,memory.free,memory.used",
    "gpu_name,gpu_bus_id,vbios_version",
    "index,uuid,name,serial,count,driver_version,compute_cap,compute_mode,persistence_mode,display_active",
    "index,ecc.mode.current,ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.aggregate.total,"
    "ecc.errors.uncorrected.volatile.dram",
    "index, power.draw, power.limit, enforced.power.limit, power.default_limit, power.min_limit, power.max_limit",
    "clocks.gr,clocks.sm,clocks.mem,clocks.video,clocks.max.sm,clocks.max.mem,clocks.applications.gr",
    "clocks_throttle_reasons.active,clocks_throttle_reasons.hw_slowdown,clocks_event_reasons.sw_power_cap",
    "mig.mode.current,mig.mode.pending,fan.speed,temperature.memory,memory.reserved,accounting.mode",
    "utilization.encoder,utilization.decoder,encoder.stats.sessionCount,retired_pages.pending,inforom.img",
    "ecc.errors.corrected.volatile.cbu,ecc.errors.uncorrected.aggregate.texture_memory,pcie.link.gen.gpucurrent",
    "remapped_rows.correctable,remapped_rows.failure,remapped_rows.histogram.max,gpu_recovery_action,hostname",
    "clocks_event_reasons_counters.sw_power_cap,ecc.errors.uncorrected.aggregate.sram.thresholdExceeded,fabric.cliqueId",
)


@pytest.mark.parametrize("fields", QUERIES)
def test_queries_of_other_peoples_scripts(smi: Smi, two: None, fields: str) -> None:
    done = smi(f"--query-gpu={fields}", "--format=csv")
    rows = list(csv.reader(done.stdout.splitlines(), skipinitialspace=True))
    assert done.returncode == 0
    assert [len(row) for row in rows] == [fields.count(",") + 1] * 3


def test_every_field_help_lists_can_be_queried(smi: Smi, two: None) -> None:
    listed = re.findall(r'^"([^"]+)"(?: or "([^"]+)")?', smi("--help-query-gpu").stdout, re.MULTILINE)
    names = [name for pair in listed for name in pair if name]
    assert len(names) > 120
    assert smi(f"--query-gpu={','.join(names)}", "--format=csv,noheader").returncode == 0


def test_an_exporter_that_asks_which_fields_there_are_finds_all(smi: Smi, two: None) -> None:
    told = smi("--help-query-gpu").stdout
    assert len(re.findall(r'\n\s*\n^"([^"]+)"', told, re.MULTILINE)) == len(re.findall('^"', told, re.MULTILINE))


def test_a_heading_is_the_field_that_was_asked_for(smi: Smi, two: None) -> None:
    fields = "ecc.errors.corrected.volatile.dram, pcie.link.gen.gpucurrent, clocks_event_reasons.active"
    assert smi(f"--query-gpu={fields}", "--format=csv").stdout.splitlines()[0] == fields


def test_applications(smi: Smi, two: None) -> None:
    for name in ("process_name", "name"):
        done = smi(f"--query-compute-apps=pid,{name},used_memory,gpu_uuid", "--format=csv")
        assert done.stdout == (
            "pid, process_name, used_gpu_memory [MiB], gpu_uuid\n"
            "4711, /opt/conda/bin/python3, 2048 MiB, GPU-00000000-1111-2222-3333-444444444444\n"
        )


def test_the_time_of_a_query(smi: Smi, two: None) -> None:
    done = smi("--query-gpu=timestamp", "--format=csv,noheader", "-i", "0")
    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}\n", done.stdout)


@pytest.mark.parametrize(
    "chosen",
    ["1", "GPU-00000001-1111-2222-3333-444444444444", "00000000:08:00.0", "0000:08:00.0", "08:00.0", "1320000000002"],
)
def test_a_gpu_is_chosen_by_all_its_names(smi: Smi, two: None, chosen: str) -> None:
    for words in ([f"--id={chosen}"], ["--id", chosen], ["-i", chosen], [f"-i={chosen}"]):
        assert smi("--query-gpu=index", "--format=csv,noheader", *words).stdout == "1\n"


# ----------------------------------------------------------------------------------------------------------- reports


def test_the_report(smi: Smi, two: None) -> None:
    text = smi("-q").stdout
    assert text.startswith("\n==============NVSMI LOG==============\n\nTimestamp ")
    for line in (
        "Attached GPUs                             : 2",
        "GPU 00000000:07:00.0",
        "    Product Architecture                  : Ampere",
        "        Used                              : 4096 MiB",
        "            DRAM Correctable              : 2",
        "            Process ID                    : 4711",
    ):
        assert line in text.splitlines()


def test_a_part_of_the_report(smi: Smi, two: None) -> None:
    text = smi("-q", "-d", "MEMORY,TEMPERATURE", "-i", "0").stdout
    assert "FB Memory Usage" in text
    assert "GPU Current Temp" in text
    assert "Product Name" not in text
    assert "Utilization" not in text


def test_the_report_as_xml(smi: Smi, publisher: Publisher) -> None:
    odd = a_device(0, processes=(a_process(1, name="a<b>&c\x1b"),), holder=None)
    publisher.write(a_machine(odd, a_device(1, mig_enabled=True, mig=(an_instance(0),))))
    root = ElementTree.fromstring(smi("-q", "-x").stdout)
    assert root.tag == "nvidia_smi_log"
    assert root.findtext("attached_gpus") == "2"
    first, second = root.findall("gpu")
    assert first.get("id") == "00000000:07:00.0"
    assert first.findtext("fb_memory_usage/used") == "4096 MiB"
    assert first.findtext("utilization/gpu_util") == "37 %"
    assert first.findtext("temperature/gpu_temp") == "55 C"
    for draw in ("power_draw", "average_power_draw", "instant_power_draw"):  # By the age of the driver.
        assert first.findtext(f"gpu_power_readings/{draw}") == "215.34 W"
    assert first.findtext("processes/process_info/process_name") == "a<b>&c?"
    assert second.findtext("mig_devices/mig_device/fb_memory_usage/total") == "9728 MiB"


def test_parsers_of_the_xml_find_also_what_these_gpus_lack(smi: Smi, two: None) -> None:
    gpu = ElementTree.fromstring(smi("-q", "-x").stdout).find("gpu")
    assert gpu is not None
    assert gpu.findtext("applications_clocks/graphics_clock") == "1410 MHz"
    for lacking in (
        "driver_model/current_dm",
        "inforom_version/img_version",
        "gpu_operation_mode/current_gom",
        "retired_pages/double_bit_retirement/retired_count",
        "retired_pages/pending_retirement",
        "voltage/graphics_volt",
    ):
        assert gpu.findtext(lacking) == "N/A"
    assert gpu.find("accounted_processes") is not None
    assert gpu.findtext("pci/pci_device_id") == "20B210DE"
    assert "        Device Id                         : 0x20B210DE" in smi("-q").stdout.splitlines()


def test_monitors_and_the_matrix(smi: Smi, two: None) -> None:
    assert smi("dmon", "-s", "me", "-c", "1").stdout == (
        "# gpu      fb   bar1  sbecc  dbecc    pci\n"
        "# Idx      MB     MB   errs   errs   errs\n"
        "    0    4096      1      2      0      7\n"
        "    1    4096      1      2      0      7\n"
    )
    assert "\t Link 11: 25.000 GB/s\n" in smi("nvlink", "-s").stdout
    assert "1395 MHz" in smi("-q", "-d", "SUPPORTED_CLOCKS").stdout
    assert smi("dmon", "-c", "1").stdout.splitlines()[2].split()[:5] == ["0", "215", "55", "61", "37"]
    assert smi("pmon", "-c", "1").stdout.splitlines()[2].split()[:4] == ["0", "4711", "C", "30"]
    assert "NV12" in smi("topo", "-m").stdout
    assert smi("nvlink", "-s", "-i", "1").stdout.count("UUID") == 1


def test_a_monitor_tells_the_time_and_what_slows_a_gpu_down(smi: Smi, publisher: Publisher) -> None:
    publisher.write(a_machine(a_device(throttle_reasons=0x40)))
    heading, units, row = smi("dmon", "-s", "v", "-o", "DT", "-c", "1").stdout.splitlines()
    assert heading == "#Date       Time        gpu  pviol  tviol"
    assert units == "#YYYYMMDD   HH:MM:SS    Idx      %   bool"
    assert re.fullmatch(r" \d{8}   \d\d:\d\d:\d\d      0      0      1", row)


def test_what_a_gpu_can_be_cut_into_and_is(smi: Smi, two: None) -> None:
    profiles = smi("mig", "-lgip", "-i", "1").stdout.splitlines()
    assert {len(line) for line in profiles} == {81}
    assert any(line.split()[1:6] == ["1", "MIG", "1g.10gb", "19", "5/7"] for line in profiles)
    instances = smi("mig", "-lgi").stdout.splitlines()
    assert {len(line) for line in instances} == {70}
    assert [line.split()[1:6] for line in instances if "1g.10gb" in line] == [
        ["1", "MIG", "1g.10gb", "19", "7"],
        ["1", "MIG", "1g.10gb", "19", "8"],
    ]
    assert {len(line) for line in smi("mig", "-lci").stdout.splitlines()} == {70}
    assert smi("mig", "-cgi", "19").returncode == 3


def test_other_queries(smi: Smi, two: None) -> None:
    words = ("--query-remapped-rows=gpu_bus_id,remapped_rows.uncorrectable", "--format=csv,noheader", "-i", "0")
    assert smi(*words).stdout == "00000000:07:00.0, 2\n"
    clocks = smi("--query-supported-clocks=mem,gr", "--format=csv", "-i", "0").stdout.splitlines()
    assert clocks[:3] == ["memory [MHz], graphics [MHz]", "1593 MHz, 1410 MHz", "1593 MHz, 1395 MHz"]
    assert smi("--query-retired-pages=gpu_uuid,retired_pages.cause", "--format=csv,noheader").stdout == ""


def test_the_version(smi: Smi, two: None) -> None:
    assert "DRIVER version      : 570.195.03\nCUDA Version        : 12.8\n" in smi("--version").stdout


# ------------------------------------------------------------------------------------------------- errors and codes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--query-gpu=index,nonsense", "--format=csv"], 'Field "nonsense" is not a valid field to query.\n\n'),
        (["--query-gpu=", "--format=csv"], 'Field "" is not a valid field to query.\n\n'),
        (["topo", "-p2p", "r"], "Option -p2p is not recognized. Please run 'nvidia-smi -h'.\n\n"),
        (["nvlink", "-c"], "Option -c is not recognized. Please run 'nvidia-smi -h'.\n\n"),
        (["dmon", "-s", "px"], "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n"),
        (["--nonsense"], "Option --nonsense is not recognized. Please run 'nvidia-smi -h'.\n\n"),
        (["--query-gpu=index"], "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n"),
        (["-q", "-d", "NONSENSE"], "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n"),
        (["-l", "x"], "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n"),
    ],
)
def test_arguments_that_are_wrong(smi: Smi, two: None, words: list[str], said: str) -> None:
    done = smi(*words)
    assert (done.returncode, done.stdout) == (2, said)


def test_a_gpu_there_is_not(smi: Smi, two: None) -> None:
    done = smi("-i", "7")
    assert (done.returncode, done.stdout) == (6, "No devices were found\n")


def test_no_driver(smi: Smi) -> None:
    done = smi("-L")
    assert (done.returncode, done.stdout) == (9, NO_DRIVER)
    assert done.stderr.startswith("gpuyard: ")
    assert done.stderr.endswith("/node-a/state cannot be opened: No such file or directory\n")


def test_another_version(smi: Smi, two: None, publisher: Publisher) -> None:
    state = publisher.directory("node-a") / "state"
    content = bytearray(state.read_bytes())
    content[8] = 9
    state.write_bytes(content)
    done = smi()
    assert (done.returncode, done.stdout) == (18, "Failed to initialize NVML: Driver/library version mismatch\n")
    assert "has version 9 of the state file; this program reads version 2" in done.stderr


def test_a_lost_gpu_is_named_and_the_others_are_shown(smi: Smi, publisher: Publisher) -> None:
    publisher.write(a_machine(a_device(0, health=Health.OFF_THE_BUS), a_device(1)))
    done = smi("-L")
    assert done.returncode == 15
    assert done.stdout == (
        "Unable to determine the device handle for GPU0000:07:00.0: "
        "GPU is lost.  Reboot the system to recover this GPU\n"
        "GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-00000001-1111-2222-3333-444444444444)\n"
    )
    ElementTree.fromstring(smi("-q", "-x").stdout)


def test_what_cannot_be_changed(smi: Smi, two: None) -> None:
    assert smi("-pm", "1", "-i", "0").stdout == (
        "Persistence mode is already Enabled for GPU 00000000:07:00.0.\nAll done.\n"
    )
    assert smi("-pl", "300").returncode == 3


def test_a_view(smi: Smi, two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "1")
    assert smi("--query-gpu=index,pci.bus_id,count", "--format=csv,noheader").stdout == "0, 00000000:08:00.0, 1\n"
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "none")
    assert smi().returncode == 6
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "void")
    assert smi().returncode == 9


# --------------------------------------------------------------------------------------------------- files and loops


def test_into_a_file(smi: Smi, two: None, tmp_path: Path) -> None:
    done = smi("-L", "-f", str(tmp_path / "out"))
    assert done.stdout == ""
    assert (tmp_path / "out").read_text().startswith("GPU 0: ")


def test_again_and_again_shows_what_changes(program: Path, publisher: Publisher) -> None:
    publisher.write(a_machine(a_device(memory_used_bytes=100 * MIB)))
    command = [str(program), "--query-gpu=memory.used", "--format=csv", "-lms", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "memory.used [MiB]\n"
        assert running.stdout.readline() == "100 MiB\n"
        publisher.write(a_machine(a_device(memory_used_bytes=200 * MIB), a_device(1, memory_used_bytes=200 * MIB)))
        end = time.monotonic() + 5
        while running.stdout.readline() != "200 MiB\n" and time.monotonic() < end:
            pass
        running.terminate()
    assert time.monotonic() < end


# ---------------------------------------------------------------------------------------------------- needs nothing


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("chroot"), reason="only root may change the root directory")
def test_it_runs_where_there_is_nothing_else(program: Path, two: None, publisher: Publisher, tmp_path: Path) -> None:
    """A root directory with the program and the state directory, and no C library, shell or time zone."""
    bare = tmp_path / "bare"
    shutil.copytree(publisher.directory("node-a"), bare / "run" / "gpuyard-fake")
    shutil.copy(program, bare / "nvidia-smi")
    command = ["chroot", str(bare), "/nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]}, check=False)
    assert (done.stdout, done.stderr) == ("0, 4096 MiB\n1, 4096 MiB\n", "")
    whole = subprocess.run(
        ["chroot", bare, "/nvidia-smi"], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert whole.returncode == 9, "GPUYARD_FAKE_STATE names a directory that is not in there"
