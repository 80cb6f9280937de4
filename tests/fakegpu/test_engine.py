"""The model of a fleet: what runs decides what a GPU shows, faults show and pass, a hot change keeps what stays."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuyard.errors import InputError
from gpuyard.fakegpu.config import fleet_of, read_fleet
from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.faults import read_fault
from gpuyard.fakegpu.fleet import MIB, a_fleet
from gpuyard.fakegpu.profile import read_profile
from gpuyard.fakegpu.reading import DeviceReading, Health, Holder

VALID = Path(__file__).parent / "valid"
SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000


@pytest.fixture
def engine() -> Engine:
    """One machine with two A100s."""
    return Engine(a_fleet("A100-80", gpus=2))


def device(engine: Engine, gpu: int = 0, machine: str = "node-1") -> DeviceReading:
    return engine.reading(machine).devices[gpu]


def seen(engine: Engine, gpu: int = 0, machine: str = "node-1") -> tuple[int, int, int]:
    """Utilisation, and MiB used and free."""
    shown = device(engine, gpu, machine)
    return shown.gpu_percent, shown.memory_used_bytes // MIB, shown.memory_free_bytes // MIB


# ------------------------------------------------------------------------------------------- states written down


def test_a_state_written_down_is_shown_as_written_until_something_is_observed() -> None:
    engine = Engine(read_fleet(VALID / "seed.yaml"))
    holder = Holder("runai-project-a", "pod", "container")
    for now in (0, HOUR, 24 * HOUR):
        engine.advance(now)
        assert seen(engine, 0, "node-a") == (10, 5000, 6441)
        assert seen(engine, 1, "node-a") == (100, 10000, 1441)
        assert device(engine, 0, "node-a").holder == holder
    engine.start("node-a", 0, "train", memory_bytes=1000 * MIB, holder=Holder("b", "c", "d"))
    assert seen(engine, 0, "node-a") == (100, 1000, 10441)
    assert device(engine, 0, "node-a").holder == Holder("b", "c", "d")
    engine.stop("node-a", "train")
    assert seen(engine, 0, "node-a") == (0, 0, 11441)
    engine.clear("node-a", 1)
    assert seen(engine, 1, "node-a") == (0, 0, 11441)
    assert device(engine, 1, "node-a").holder is None


# ---------------------------------------------------------------------------------------------------- what runs


def test_a_task_loads_its_gpu_and_only_that(engine: Engine) -> None:
    idle = device(engine)
    engine.start("node-1", 0, "train", pid=4711, name="python", memory_bytes=1 << 30)
    busy = device(engine)
    assert (busy.gpu_percent, busy.memory_used_bytes) == (100, 1 << 30)
    assert busy.power_mw > 5 * idle.power_mw
    assert busy.clocks.sm_mhz == 1410 > idle.clocks.sm_mhz
    assert [(each.pid, each.name, each.memory_bytes, each.sm_percent) for each in busy.processes] == [
        (4711, "python", 1 << 30, 100)
    ]
    assert seen(engine, 1)[0] == 0


def test_a_task_that_does_not_say_takes_nine_tenths_of_the_memory(engine: Engine) -> None:
    engine.start("node-1", 0, "train")
    assert device(engine).memory_used_bytes == 81920 * 9 // 10 * MIB


def test_temperature_follows_power_with_a_delay(engine: Engine) -> None:
    cool = device(engine).temperature_c
    engine.start("node-1", 0, "train")
    assert device(engine).temperature_c == cool
    engine.advance(20 * SECOND)
    warming = device(engine).temperature_c
    engine.advance(10 * MINUTE)
    warm = device(engine).temperature_c
    assert cool < warming < warm < 89
    engine.stop("node-1", "train")
    engine.advance(HOUR)
    assert device(engine).temperature_c == cool


def test_energy_is_power_times_time(engine: Engine) -> None:
    idle_mw = device(engine).power_mw
    engine.advance(10 * SECOND)
    assert device(engine).energy_mj == idle_mw * 10
    engine.start("node-1", 0, "train")
    busy_mw = device(engine).power_mw
    engine.advance(10 * SECOND + 1)
    assert device(engine).energy_mj == (idle_mw * 10_000 + busy_mw) // 1000


def test_tasks_share_a_gpu(engine: Engine) -> None:
    profile = read_profile("[{time: 1h, utilization: 60}]")
    for pid in (1, 2):
        engine.start("node-1", 0, f"task-{pid}", profile=profile, pid=pid, memory_bytes=1 << 30)
    shown = device(engine)
    assert shown.gpu_percent == 100
    assert [each.sm_percent for each in shown.processes] == [50, 50]
    assert shown.memory_used_bytes == 2 << 30


def test_a_profile_goes_through_its_phases_and_then_does_nothing(engine: Engine) -> None:
    text = "[{time: 1h, utilization: 80, memory: 60%}, {time: 1h, utilization: 0, memory: 10%}]"
    engine.start("node-1", 0, "train", profile=read_profile(text, repeat=2))
    shown = []
    for hour in range(6):
        engine.advance(hour * HOUR + 1)
        shown.append((device(engine).gpu_percent, device(engine).memory_used_bytes // MIB))
    busy, quiet = (80, 49152), (0, 8192)
    assert shown == [busy, quiet, busy, quiet, quiet, quiet]


def test_a_phase_ends_on_its_millisecond(engine: Engine) -> None:
    engine.start("node-1", 0, "train", profile=read_profile("[{time: 1s, utilization: 80}]"))
    engine.advance(999)
    assert device(engine).gpu_percent == 80
    engine.advance(1000)
    assert device(engine).gpu_percent == 0


def test_a_range_is_drawn_from_by_the_seed() -> None:
    def draws(seed: int) -> list[int]:
        engine = Engine(a_fleet(gpus=1), seed=seed)
        engine.start("node-1", 0, "train", profile=read_profile("[{utilization: 10-30}]"))
        found = []
        for step in range(200):
            engine.advance(step * 10 * SECOND)
            found.append(device(engine).gpu_percent)
        return found

    assert draws(1) == draws(1) != draws(2)
    assert set(draws(1)) == set(range(10, 31))


def test_a_process_that_has_no_pid_is_not_listed(engine: Engine) -> None:
    engine.start("node-1", 0, "pod")
    assert device(engine).processes == ()
    assert device(engine).gpu_percent == 100


def test_somebody_uses_a_gpu_behind_our_back(engine: Engine) -> None:
    name = engine.use("node-1", 1, pid=99, memory_bytes=4 << 30, utilization=30)
    assert seen(engine, 1)[:2] == (30, 4096)
    assert device(engine, 1).holder is None
    engine.stop("node-1", name)
    assert seen(engine, 1)[:2] == (0, 0)


def test_a_lower_power_limit_caps_power_and_slows_the_clocks() -> None:
    engine = Engine(fleet_of("pools: {a: {nodes: 1, gpus: 1, product: A100, power-limit: 200}}"))
    engine.start("a-1", 0, "train")
    shown = device(engine, 0, "a-1")
    assert shown.power_mw == shown.power_limit_mw == 200_000
    assert shown.throttle_reasons == 0x4
    assert 210 < shown.clocks.sm_mhz < 1410


def test_a_device_that_can_rest_does() -> None:
    engine = Engine(a_fleet("L40S", gpus=1))
    assert device(engine).performance_state == 8
    assert device(engine).throttle_reasons == 0x1
    engine.start("node-1", 0, "train")
    assert device(engine).performance_state == 0


# ---------------------------------------------------------------------------------------------------------- MIG


def test_a_task_runs_on_an_instance_of_a_gpu() -> None:
    engine = Engine(fleet_of("pools: {a: {nodes: 1, gpus: 1, product: A100, mig: [3g.40gb, 2g.20gb, 1g.10gb]}}"))
    engine.start("a-1", 0, "serve", mig=1, pid=7, holder=Holder("x", "y", "z"))
    shown = device(engine, 0, "a-1")
    assert [instance.memory_used_bytes // MIB for instance in shown.mig] == [0, 19968 * 9 // 10, 0]
    assert [instance.holder is not None for instance in shown.mig] == [False, True, False]
    assert shown.gpu_percent == 100 * 2 // 7
    assert (shown.processes[0].sm_percent, shown.processes[0].mig_instance) == (100, 1)
    assert [instance.gpu_instance for instance in shown.mig] == [1, 3, 7]
    assert len({instance.uuid for instance in shown.mig}) == 3


def test_tasks_on_one_instance_share_it() -> None:
    engine = Engine(fleet_of("pools: {a: {nodes: 1, gpus: 1, product: A100, mig: {1g.10gb: 7}}}"))
    for pid in (1, 2):
        engine.start("a-1", 0, f"serve-{pid}", mig=3, pid=pid)
    shown = device(engine, 0, "a-1")
    assert shown.gpu_percent == 100 // 7
    assert shown.memory_used_bytes == shown.mig[3].memory_used_bytes == 9728 * MIB
    assert [process.sm_percent for process in shown.processes] == [50, 50]


@pytest.mark.parametrize(("mig", "words"), [(None, "is in MIG mode"), (3, "has no MIG instance 3")])
def test_a_task_on_a_cut_gpu_names_an_instance_there_is(mig: int | None, words: str) -> None:
    engine = Engine(fleet_of("pools: {a: {nodes: 1, gpus: 1, product: A100, mig: {2g.20gb: 3}}}"))
    with pytest.raises(InputError, match=words):
        engine.start("a-1", 0, "serve", mig=mig)


# ------------------------------------------------------------------------------------------------------- faults


def test_a_gpu_falls_off_the_bus_and_comes_back(engine: Engine) -> None:
    engine.start("node-1", 0, "train", pid=5)
    engine.fault("node-1", 0, read_fault("xid:79"), for_ms=5 * MINUTE)
    lost = device(engine)
    assert (lost.health, lost.last_xid, lost.xid_count) == (Health.OFF_THE_BUS, 79, 1)
    assert (lost.gpu_percent, lost.memory_used_bytes, lost.power_mw, lost.processes) == (0, 0, 0, ())
    engine.advance(5 * MINUTE)
    back = device(engine)
    assert (back.health, back.last_xid, back.xid_count, back.gpu_percent) == (Health.OK, 0, 1, 100)
    assert len(back.processes) == 1


def test_ecc_errors_are_counted_and_the_serious_ones_reset(engine: Engine) -> None:
    engine.fault("node-1", 0, read_fault("ecc:corrected:3"))
    engine.fault("node-1", 0, read_fault("ecc:uncorrected:2"), for_ms=MINUTE)
    shown = device(engine)
    assert shown.ecc is not None
    assert (shown.ecc.volatile_corrected, shown.ecc.volatile_uncorrected) == (3, 2)
    assert (shown.health, shown.last_xid, shown.remapped_rows_uncorrected) == (Health.UNHEALTHY, 48, 2)
    engine.advance(MINUTE)
    after = device(engine)
    assert after.ecc is not None
    assert (after.ecc.volatile_corrected, after.ecc.volatile_uncorrected) == (0, 0)
    assert (after.ecc.aggregate_corrected, after.ecc.aggregate_uncorrected) == (3, 2)
    assert after.health is Health.OK


def test_an_overheated_gpu_slows_down_and_recovers(engine: Engine) -> None:
    engine.start("node-1", 0, "train")
    engine.advance(10 * MINUTE)
    before = device(engine)
    engine.fault("node-1", 0, read_fault("throttle"), for_ms=10 * MINUTE)
    engine.advance(19 * MINUTE)
    hot = device(engine)
    assert hot.clocks.sm_mhz < before.clocks.sm_mhz
    assert hot.power_mw < before.power_mw
    assert hot.temperature_c == 89 > before.temperature_c
    assert hot.throttle_reasons == 0x48
    engine.advance(HOUR)
    assert device(engine).clocks == before.clocks
    assert device(engine).throttle_reasons == 0


def test_memory_is_lost_and_found(engine: Engine) -> None:
    engine.start("node-1", 0, "train", pid=5)
    engine.fault("node-1", 0, read_fault("memory-loss:60GiB"), for_ms=MINUTE)
    shown = device(engine)
    assert shown.memory_total_bytes == 20 << 30
    assert shown.memory_free_bytes == 0
    assert shown.processes[0].memory_bytes == shown.memory_used_bytes
    engine.advance(MINUTE)
    assert device(engine).memory_total_bytes == 80 << 30
    engine.fault("node-1", 1, read_fault("memory-loss"))
    assert device(engine, 1).memory_total_bytes == 40 << 30


def test_a_fault_lasts_until_it_is_healed(engine: Engine) -> None:
    engine.fault("node-1", "GPU-" + device(engine).uuid[4:], read_fault("unhealthy"))
    engine.fault("node-1", 0, read_fault("xid:74"))
    engine.advance(365 * 24 * HOUR)
    assert device(engine).health is Health.UNHEALTHY
    assert [str(active.fault) for active in engine.faults("node-1")] == ["unhealthy", "xid:74"]
    assert engine.heal("node-1", 0, read_fault("unhealthy")) == 1
    assert (device(engine).health, device(engine).last_xid) == (Health.UNHEALTHY, 74)
    assert engine.heal("node-1", 0) == 1
    assert device(engine).health is Health.OK


def test_faults_and_tasks_of_the_file_happen_at_their_time() -> None:
    engine = Engine(read_fleet(VALID / "fleet.yaml"), at_ms=7 * HOUR)
    engine.advance(7 * HOUR + 10 * MINUTE - 1)
    assert device(engine, 0, "node-a").health is Health.OK
    assert [task.task for task in engine.tasks("cut")] == ["inference", "profile"]
    engine.advance(7 * HOUR + 10 * MINUTE)
    assert device(engine, 0, "node-a").health is Health.OFF_THE_BUS
    engine.advance(7 * HOUR + 15 * MINUTE)
    assert seen(engine, 0, "node-a") == (10, 5000, 6441)
    engine.advance(8 * HOUR + 5 * MINUTE)
    assert [task.task for task in engine.tasks("cut")] == ["profile"]


def test_scripts_happen_the_same_in_one_step_or_many() -> None:
    fleet = read_fleet(VALID / "fleet.yaml")
    leaping, walking = Engine(fleet, seed=3), Engine(fleet, seed=3)
    leaping.advance(2 * HOUR)
    for now in range(0, 2 * HOUR + 1, 7200):
        walking.advance(now)
    assert list(leaping.readings()) == list(walking.readings())


def test_two_scripted_tasks_share_what_memory_there_is() -> None:
    tasks = "tasks: [{node: a-1, memory: 50GiB, pid: 1}, {node: a-1, memory: 50GiB, pid: 2}]"
    shown = device(Engine(fleet_of("pools: {a: {nodes: 1, gpus: 1, product: A100}}\n" + tasks)), 0, "a-1")
    assert [process.memory_bytes for process in shown.processes] == [50 << 30, (30 << 30) - shown.memory_reserved_bytes]
    assert shown.memory_free_bytes == 0


# -------------------------------------------------------------------------------------------------- hot change


def test_a_hot_change_keeps_what_stays() -> None:
    engine = Engine(fleet_of("pools: {a: {nodes: 2, gpus: 2, product: A100}}"))
    engine.start("a-1", 0, "train", pid=5, memory_bytes=1 << 30)
    engine.start("a-2", 1, "other")
    engine.fault("a-1", 1, read_fault("unhealthy"), for_ms=HOUR)
    engine.advance(MINUTE)
    before = engine.reading("a-1")
    engine.replace(fleet_of("nodes: {new: {gpu-product: T4, gpus: 1}}\npools: {a: {nodes: 1, gpus: 2, product: A100}}"))
    assert engine.machines == ("new", "a-1")
    assert engine.reading("a-1") == before
    with pytest.raises(InputError, match='no machine "a-2"'):
        engine.reading("a-2")
    engine.advance(HOUR)
    assert device(engine, 1, "a-1").health is Health.OK
    assert device(engine, 0, "a-1").gpu_percent == 100


def test_a_hot_change_of_the_memory_shows_at_once() -> None:
    engine = Engine(fleet_of("pools: {a: {nodes: 1, gpus: 1, product: A100}}"))
    engine.start("a-1", 0, "train")
    engine.replace(fleet_of("pools: {a: {nodes: 1, gpus: 1, product: A100, memory: 40GiB, power-limit: 150}}"))
    shown = device(engine, 0, "a-1")
    assert (shown.memory_total_bytes, shown.memory_free_bytes) == (40 << 30, 0)
    assert shown.power_mw == 150_000


def test_a_state_written_anew_shows_unless_something_was_observed() -> None:
    gpus = "[{{id: x, metrics: &m {{utilization: {0}}}}}, {{id: y, metrics: *m}}]"
    text = f"nodes: {{{{a: {{{{gpu-product: K80, gpus: {gpus}}}}}}}}}"
    engine = Engine(fleet_of(text.format(10)))
    engine.start("a", "y", "train")
    engine.replace(fleet_of(text.format(50)))
    assert [each.gpu_percent for each in engine.reading("a").devices] == [50, 100]
    engine.replace(fleet_of(text.format(50)))
    assert [each.gpu_percent for each in engine.reading("a").devices] == [50, 100]


def test_scripts_that_go_end_and_scripts_that_come_begin() -> None:
    pool = "pools: {a: {nodes: 1, gpus: 2, product: A100}}\n"
    first = fleet_of(pool + "faults: [{node: a-1, gpu: 0, fault: unhealthy}]\ntasks: [{node: a-1, gpu: 0, task: t}]")
    second = fleet_of(pool + "faults: [{node: a-1, gpu: 1, fault: throttle, at: 1m, for: 10m}]")
    engine = Engine(first)
    engine.advance(5 * MINUTE)
    engine.replace(second)
    assert (device(engine, 0, "a-1").health, engine.tasks("a-1")) == (Health.OK, ())
    assert device(engine, 1, "a-1").throttle_reasons & 0x40
    engine.advance(11 * MINUTE)
    assert not device(engine, 1, "a-1").throttle_reasons & 0x40


def test_a_task_whose_instance_is_gone_ends() -> None:
    cut = "pools: {{a: {{nodes: 1, gpus: 1, product: A100, mig: {{1g.10gb: {}}}}}}}"
    engine = Engine(fleet_of(cut.format(7)))
    for mig in range(7):
        engine.start("a-1", 0, f"serve-{mig}", mig=mig)
    engine.replace(fleet_of(cut.format(3)))
    assert [task.task for task in engine.tasks("a-1")] == ["serve-0", "serve-1", "serve-2"]
    assert device(engine, 0, "a-1").gpu_percent == 300 // 7


# ------------------------------------------------------------------------------- what began before it was known

TEXTS = (
    "[{time: 10m, utilization: 80, memory: 4GiB}, {time: 5m, utilization: 10-60}]",
    "{phases: [{time: 10m, utilization: 80-90}, {time: 5m, memory: 10-60%}], repeat: 3}",
    "{phases: [{time: 7m, utilization: 20}, {time: 3m, utilization: 0, memory: 1GiB-8GiB}], repeat: forever}",
    "[{time: 10m, utilization: 80}, {utilization: 5, memory: 20%}]",
)


@given(st.sampled_from(TEXTS), st.integers(0, 2 * HOUR), st.integers(0, 2 * HOUR))
@example(TEXTS[1], 45 * MINUTE, 0)
def test_a_task_that_is_known_late_does_what_it_would_do_had_it_been_known(text: str, known: int, later: int) -> None:
    """Load and memory only: what it had done to the GPU before is not known."""
    profile = read_profile(text)
    early, late = Engine(a_fleet("A100-80", gpus=1)), Engine(a_fleet("A100-80", gpus=1))
    early.start("node-1", 0, "train", profile=profile)
    late.advance(known)
    late.start("node-1", 0, "train", profile=profile, since_ms=0)
    for at_ms in (known, known + later):
        early.advance(at_ms)
        late.advance(at_ms)
        seen_early, seen_late = device(early), device(late)
        assert seen_late.gpu_percent == seen_early.gpu_percent
        assert seen_late.memory_used_bytes == seen_early.memory_used_bytes


def test_a_task_from_the_future_begins_now(engine: Engine) -> None:
    engine.start("node-1", 0, "train", profile=read_profile("[{time: 1s, utilization: 80}]"), since_ms=HOUR)
    assert device(engine).gpu_percent == 80


def test_who_is_ill_is_told_by_machine() -> None:
    engine = Engine(a_fleet("T4", gpus=2, machines=("a", "b")))
    assert engine.unhealthy() == {}
    engine.fault("b", 1, read_fault("xid:79"))
    engine.fault("a", 0, read_fault("throttle"))
    assert engine.unhealthy() == {"b": frozenset({engine.reading("b").devices[1].uuid})}
    engine.heal("b", 1)
    assert engine.unhealthy() == {}


# ------------------------------------------------------------------------------------------- what cannot be done


def breaks(engine: Engine, for_ms: int) -> None:
    engine.fault("node-1", 0, read_fault("throttle"), for_ms=for_ms)


def test_what_cannot_be_is_told(engine: Engine) -> None:
    engine.start("node-1", 0, "train", memory_bytes=70 << 30)
    cannot: list[tuple[Callable[[], None], str]] = [
        (lambda: engine.start("node-2", 0, "x"), 'no machine "node-2"; did you mean "node-1"'),
        (lambda: engine.start("node-1", 2, "x"), "node-1 has no GPU 2"),
        (lambda: engine.start("node-1", "GPU-x", "x"), 'node-1 has no GPU "GPU-x"'),
        (lambda: engine.start("node-1", 0, "train"), 'task "train" runs on GPU 0 of node-1 already'),
        (lambda: engine.start("node-1", 0, "x", memory_bytes=10 << 30), "has 9473 MiB free, not 10240 MiB"),
        (lambda: engine.start("node-1", 0, "x", pid=0), "0 is not a process id"),
        (lambda: engine.stop("node-1", "trian"), 'no task "trian" runs on node-1; did you mean "train"?'),
        (lambda: engine.advance(-1), "time cannot go back"),
        (lambda: breaks(engine, 0), "a fault must last some time, not 0 ms"),
    ]
    before = engine.reading("node-1")
    for call, words in cannot:
        with pytest.raises(InputError) as caught:
            call()
        assert words in str(caught.value)
        assert engine.reading("node-1") == before


def test_a_fleet_without_gpus_has_nothing_to_show() -> None:
    engine = Engine(fleet_of("nodes: {a: {gpu-product: T4, gpus: 0}}"))
    engine.advance(HOUR)
    assert engine.reading("a").devices == ()
    assert Engine(fleet_of("mig-strategy: none")).machines == ()
