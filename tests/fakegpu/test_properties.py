"""What holds for every fleet and everything that can happen on it."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.fleet import Fleet
from gpuyard.fakegpu.reading import DeviceReading, Health
from tests.fakegpu.lives import MACHINES, SECOND, Life, fleets, live, lives, shown


def second_by_second(engine: Engine, to_ms: int) -> list[tuple[DeviceReading, ...]]:
    """All devices at every whole second up to an instant."""
    states = [_devices(engine)]
    while engine.now_ms < to_ms:
        engine.advance(engine.now_ms + SECOND)
        states.append(_devices(engine))
    return states


def _devices(engine: Engine) -> tuple[DeviceReading, ...]:
    return tuple(device for reading in engine.readings() for device in reading.devices)


@given(fleets(), lives())
def test_energy_is_the_integral_of_power(fleet: Fleet, life: Life) -> None:
    def check(engine: Engine, to_ms: int) -> None:
        states = second_by_second(engine, to_ms)
        for before, after in pairwise(states):
            for was, now in zip(before, after, strict=True):
                assert now.energy_mj - was.energy_mj == was.power_mw

    live(Engine(fleet), life, check)


@given(fleets(), lives())
def test_memory_never_exceeds_what_there_is_and_adds_up(fleet: Fleet, life: Life) -> None:
    def check(engine: Engine, to_ms: int) -> None:
        for state in second_by_second(engine, to_ms):
            for device in state:
                assert device.memory_free_bytes >= 0
                assert sum(process.memory_bytes for process in device.processes) <= device.memory_used_bytes
                assert sum(instance.memory_used_bytes for instance in device.mig) <= device.memory_used_bytes
                for instance in device.mig:
                    own = [process for process in device.processes if process.mig_instance == instance.index]
                    assert sum(process.memory_bytes for process in own) <= instance.memory_used_bytes
                    assert instance.memory_used_bytes <= instance.memory_total_bytes

    live(Engine(fleet), life, check)


@given(fleets(), lives())
def test_every_number_stays_where_a_real_device_has_it(fleet: Fleet, life: Life) -> None:
    products = {gpu.uuid: gpu.product for machine in fleet.machines for gpu in machine.gpus}

    def check(engine: Engine, to_ms: int) -> None:
        for state in second_by_second(engine, to_ms):
            for device in state:
                product = products[device.uuid]
                assert 0 <= device.gpu_percent <= 100
                assert 0 <= device.memory_percent <= 100
                for unit in {process.mig_instance for process in device.processes}:
                    own = [process.sm_percent for process in device.processes if process.mig_instance == unit]
                    assert 0 <= sum(own) <= 100
                assert device.power_mw <= device.power_limit_mw
                assert (device.power_mw == 0) == (device.health is Health.OFF_THE_BUS)
                assert 20 <= device.temperature_c <= product.slowdown_celsius
                assert product.idle_clocks.sm_mhz <= device.clocks.sm_mhz <= product.max_clocks.sm_mhz
                assert (device.throttle_reasons & 1) == (device.clocks.sm_mhz == product.idle_clocks.sm_mhz)

    live(Engine(fleet), life, check)


@given(fleets(), lives(), st.integers(0, 2**64 - 1))
def test_the_same_seed_gives_the_same_bytes(fleet: Fleet, life: Life, seed: int) -> None:
    def run() -> list[bytes]:
        states: list[bytes] = []

        def look(engine: Engine, to_ms: int) -> None:
            engine.advance(to_ms)
            states.append(shown(engine))

        live(Engine(fleet, seed=seed), life, look)
        return states

    assert run() == run()


@given(fleets(), lives(), st.lists(st.integers(300, 40_000), min_size=1, max_size=5))
def test_one_step_or_many_steps_give_the_same_reading(fleet: Fleet, life: Life, steps: list[int]) -> None:
    at_once: list[bytes] = []
    in_steps: list[bytes] = []

    def leap(engine: Engine, to_ms: int) -> None:
        engine.advance(to_ms)
        at_once.append(shown(engine))

    def walk(engine: Engine, to_ms: int) -> None:
        number = 0
        while engine.now_ms < to_ms:
            engine.advance(min(to_ms, engine.now_ms + steps[number % len(steps)]))
            number += 1
        in_steps.append(shown(engine))

    live(Engine(fleet), life, leap)
    live(Engine(fleet), life, walk)
    assert at_once == in_steps


@given(fleets(), lives())
def test_looking_changes_nothing_and_one_machine_reads_as_it_does_among_all(fleet: Fleet, life: Life) -> None:
    def check(engine: Engine, to_ms: int) -> None:
        engine.advance(to_ms)
        among_all = list(engine.readings())
        assert [engine.reading(machine) for machine in MACHINES] == among_all
        assert list(engine.readings()) == among_all

    live(Engine(fleet), life, check)


@given(fleets(), lives())
def test_a_hot_change_to_the_same_fleet_is_not_seen(fleet: Fleet, life: Life) -> None:
    undisturbed: list[bytes] = []
    disturbed: list[bytes] = []

    def look(engine: Engine, to_ms: int) -> None:
        engine.advance(to_ms)
        undisturbed.append(shown(engine))

    def disturb(engine: Engine, to_ms: int) -> None:
        engine.advance(to_ms)
        engine.replace(Fleet(fleet.machines))
        disturbed.append(shown(engine))

    live(Engine(fleet), life, look)
    live(Engine(fleet), life, disturb)
    assert undisturbed == disturbed
