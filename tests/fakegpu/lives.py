"""Random lives of a small fleet: what starts, stops, breaks and heals, and when. All instants are whole seconds."""

from collections.abc import Callable
from typing import TypeAlias

import msgspec
from hypothesis import strategies as st

from gpuyard.errors import InputError
from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.faults import Fault, read_fault
from gpuyard.fakegpu.fleet import Fleet, MachineSpec, a_gpu
from gpuyard.fakegpu.products import MigProfile, Product, products
from gpuyard.fakegpu.profile import FULL_MILLI_PERCENT, Memory, Phase, Profile

SECOND = 1000
LAST_SECOND = 90
MACHINES = ("a", "b")
GPUS = 2


class Started(msgspec.Struct, frozen=True):
    machine: str
    gpu: int
    task: str
    profile: Profile
    memory_bytes: int | None
    pid: int | None
    mig: int | None


class Stopped(msgspec.Struct, frozen=True):
    machine: str
    task: str


class Broken(msgspec.Struct, frozen=True):
    machine: str
    gpu: int
    fault: Fault
    for_ms: int | None


class Healed(msgspec.Struct, frozen=True):
    machine: str
    gpu: int


Event: TypeAlias = Started | Stopped | Broken | Healed
Life: TypeAlias = list[tuple[int, Event]]

seconds = st.integers(0, LAST_SECOND)
machines = st.sampled_from(MACHINES)
gpus = st.integers(0, GPUS - 1)
tasks = st.sampled_from(("x", "y", "z"))


@st.composite
def ranges(draw: st.DrawFn, highest: int) -> tuple[int, int]:
    low = draw(st.integers(0, highest))
    return low, draw(st.integers(low, highest))


@st.composite
def memories(draw: st.DrawFn) -> Memory:
    if draw(st.booleans()):
        return Memory(*draw(ranges(FULL_MILLI_PERCENT)), relative=True)
    return Memory(*draw(ranges(100 << 30)), relative=False)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    times = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    phases = [Phase(time * SECOND, *draw(ranges(100)), draw(st.none() | memories())) for time in times]
    return Profile(tuple(phases), draw(st.sampled_from((1, 2, 5, None))))


started = st.builds(
    Started,
    machine=machines,
    gpu=gpus,
    task=tasks,
    profile=profiles(),
    memory_bytes=st.none() | st.integers(0, 50 << 30),
    pid=st.none() | st.integers(1, 99_999),
    mig=st.none() | st.integers(0, 2),
)
faults = st.sampled_from(
    (
        "unhealthy",
        "xid:79",
        "xid:13",
        "ecc:corrected:2",
        "ecc:uncorrected",
        "throttle",
        "memory-loss",
        "memory-loss:3GiB",
    )
).map(read_fault)
broken = st.builds(
    Broken,
    machine=machines,
    gpu=gpus,
    fault=faults,
    for_ms=st.none() | st.integers(1, LAST_SECOND).map(lambda second: second * SECOND),
)
events = started | st.builds(Stopped, machine=machines, task=tasks) | broken | st.builds(Healed, machines, gpus)


def lives() -> st.SearchStrategy[Life]:
    return st.lists(st.tuples(seconds, events), max_size=15).map(lambda life: sorted(life, key=lambda entry: entry[0]))


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Two machines of two GPUs each, of any product, whole or cut."""
    return Fleet(tuple(_machine(draw, name) for name in MACHINES))


def _machine(draw: st.DrawFn, name: str) -> MachineSpec:
    product = draw(st.sampled_from(list(products().values())))
    return MachineSpec(
        name=name,
        gpus=tuple(a_gpu(name, index, product, mig=draw(_cuts(product))) for index in range(GPUS)),
        driver_version=product.driver,
        cuda_version=product.cuda,
    )


def _cuts(product: Product) -> st.SearchStrategy[tuple[MigProfile, ...]]:
    if not product.mig:
        return st.just(())
    by_id = {profile.id: profile for profile in product.mig}
    return st.sampled_from([(), (by_id[9], by_id[14], by_id[19]), (by_id[19],) * 7, (by_id[0],)])


def live(engine: Engine, life: Life, between: Callable[[Engine, int], None]) -> None:
    """Let a life happen; `between` brings the engine to each instant that matters."""
    for second, event in life:
        between(engine, second * SECOND)
        _happen(engine, event)
    between(engine, (LAST_SECOND + 30) * SECOND)


def _happen(engine: Engine, event: Event) -> None:
    """What cannot be is refused and changes nothing."""
    try:
        match event:
            case Started(machine, gpu, task, profile, memory_bytes, pid, mig):
                engine.start(machine, gpu, task, profile=profile, memory_bytes=memory_bytes, pid=pid, mig=mig)
            case Stopped(machine, task):
                engine.stop(machine, task)
            case Broken(machine, gpu, fault, for_ms):
                engine.fault(machine, gpu, fault, for_ms=for_ms)
            case Healed(machine, gpu):
                engine.heal(machine, gpu)
    except InputError:
        return


def shown(engine: Engine) -> bytes:
    """All that can be read, as bytes."""
    return msgspec.json.encode(list(engine.readings()))
