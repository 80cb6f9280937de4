"""Utilisation profiles: what a task does over time, as phases of utilisation and memory.

Place in the flow: file, annotation or option ─**profile**─▶ engine ─▶ load of a GPU. A phase lasts `time_ms`, or as
long as the task where it has none. After the last round a task does nothing and keeps the memory it last had.
Invariant: 0 ≤ low ≤ high ≤ 100 for utilisation, and only the last phase may be without an end.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gpuyard.errors import InputError, QuantityError
from gpuyard.fakegpu.format import PhaseSpec, ProfileSpec
from gpuyard.files.durations import duration_ms
from gpuyard.files.place import Place
from gpuyard.files.shape import shaped
from gpuyard.files.tree import Kind, parse
from gpuyard.model.quantities import memory_bytes, memory_mib, milli

FULL_MILLI_PERCENT: Final = 100_000
DEFAULT_MEMORY_MILLI_PERCENT: Final = 90_000
"""Of the memory a task may use, where neither the task nor its profile says how much it takes."""

MAX_PHASES: Final = 10_000
MAX_REPEAT: Final = 1_000_000_000
FOREVER: Final = "forever"

ACCEPTED: Final = (
    'write {"phases": [{"time": "1h", "utilization": 80}, {"time": "1h", "utilization": 0}], "repeat": 5},\n'
    "  or the list of phases alone and `repeat` beside it; as JSON or YAML"
)
"""What an error about a profile shows: the one form that always works."""

_RANGE: Final = re.compile(r"\s*([0-9.]+\s*[A-Za-z]*\s*%?)\s*-\s*([0-9.]+\s*[A-Za-z]*\s*%?)\s*")
_WHOLE: Final = re.compile(r"[0-9]{1,9}")


class Memory(msgspec.Struct, frozen=True):
    """Memory of a phase: bytes, or thousandths of a per cent of the GPU; drawn anew in each phase."""

    low: int
    high: int
    relative: bool


class Phase(msgspec.Struct, frozen=True):
    """One phase. A range is drawn from anew every few seconds; `memory` is the task's own where it is None."""

    time_ms: int | None
    low_percent: int
    high_percent: int
    memory: Memory | None = None


class Profile(msgspec.Struct, frozen=True):
    """Phases, one after the other, so many rounds; None repeats as long as the task runs."""

    phases: tuple[Phase, ...]
    repeat: int | None = 1


BUSY: Final = Profile((Phase(None, 100, 100),))
"""What a task does that says nothing: all it can, while it runs."""


def steady(percent: int) -> Profile:
    """The same utilisation as long as the task runs."""
    return Profile((Phase(None, percent, percent),))


class Progress(msgspec.Struct, frozen=True):
    """Where in a profile a task is: in which phase of which round, and for how long already."""

    phase: int
    round: int
    into_ms: int


def progress(profile: Profile, elapsed_ms: int) -> Progress:
    """How far a task has come that began so long ago; after the last round it stands at the begin of one more."""
    times = [phase.time_ms for phase in profile.phases]
    whole_ms = sum(time_ms or 0 for time_ms in times)
    rounds = elapsed_ms // whole_ms if times[-1] is not None else 0
    if profile.repeat is not None and rounds >= profile.repeat:
        return Progress(0, profile.repeat, elapsed_ms - profile.repeat * whole_ms)
    into_ms = elapsed_ms - rounds * whole_ms
    for at, time_ms in enumerate(times):
        if time_ms is None or into_ms < time_ms:
            return Progress(at, rounds, into_ms)
        into_ms -= time_ms
    raise AssertionError("a round is as long as its phases")


def read_profile(text: str, repeat: str | int | None = None, source: str = "profile") -> Profile:
    """A profile of its own, as JSON or YAML, with `repeat` beside it; errors say where in the text."""
    try:
        place = Place(source, parse(text, source))
    except InputError as error:
        raise InputError(f"not a profile: {error.what}", where=error.where, fix=ACCEPTED) from None
    if place.spot.kind is Kind.LIST:
        spec: list[PhaseSpec] | ProfileSpec = shaped(place, list[PhaseSpec], "fleet")
    elif place.spot.kind is Kind.MAP:
        spec = shaped(place, ProfileSpec, "fleet")
    else:
        raise place.error(f"a profile is a list of phases or a map, not {place.spot.shown()}", ACCEPTED)
    return profile_of(spec, place, repeat, place)


def profile_of(
    spec: list[PhaseSpec] | ProfileSpec,
    place: Place,
    repeat: str | int | None = None,
    repeat_place: Place | None = None,
) -> Profile:
    """A checked profile; `repeat` is what stands beside it."""
    beside = repeat_place or place
    if isinstance(spec, ProfileSpec):
        if spec.repeat is not None and repeat is not None:
            raise beside.error("repeat is given both in the profile and beside it", "keep one")
        if spec.repeat is not None:
            repeat, beside = spec.repeat, place.at("repeat")
        phases, here = spec.phases, place.at("phases")
    else:
        phases, here = spec, place
    if not 1 <= len(phases) <= MAX_PHASES:
        raise here.error(f"a profile has 1 to {MAX_PHASES} phases, not {len(phases)}", ACCEPTED)
    read = tuple(_phase(phase, here.at(index), index == len(phases) - 1) for index, phase in enumerate(phases))
    return repeated(_with_memory(read), repeat, beside)


def _with_memory(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """A phase that says nothing about memory holds what the one before it does: who pauses frees nothing."""
    held = [phase.memory for phase in phases]
    for index in range(1, len(held)):
        held[index] = held[index] or held[index - 1]
    return tuple(msgspec.structs.replace(phase, memory=memory) for phase, memory in zip(phases, held, strict=True))


def repeated(phases: tuple[Phase, ...], repeat: str | int | None, place: Place) -> Profile:
    """Phases so many rounds; `place` is where the number of rounds stands."""
    times = _rounds(repeat, place)
    if times != 1 and phases[-1].time_ms is None:
        raise place.error("the last phase has no time, so the profile cannot repeat", "give it a time, as 10m or 1h")
    return Profile(phases, times)


def _rounds(repeat: str | int | None, place: Place) -> int | None:
    """How often; text holds a number where it comes from an option or an annotation."""
    if repeat is None:
        return 1
    if repeat == FOREVER:
        return None
    text = str(repeat)
    if not _WHOLE.fullmatch(text) or not 1 <= int(text) <= MAX_REPEAT:
        raise place.error(f'repeat cannot be "{repeat}"', f"a whole number from 1 to {MAX_REPEAT}, or {FOREVER}")
    return int(text)


def _phase(spec: PhaseSpec, place: Place, last: bool) -> Phase:
    low, high = place.at("utilization").read(_percent_range, spec.utilization, "utilization")
    memory = None if spec.memory is None else place.at("memory").read(_memory, spec.memory, "memory")
    return Phase(_time(spec.time, place, last), low, high, memory)


def _time(text: str | None, place: Place, last: bool) -> int | None:
    if text is None:
        if last:
            return None
        raise place.error(
            "a phase lacks its time", "time: how long it lasts, as 90s, 10m or 1h; only the last may last on"
        )
    time_ms = place.at("time").read(duration_ms, text, "time")
    if time_ms == 0:
        raise place.at("time").error("a phase must last some time, not 0", "write it as 90s, 10m or 1h30m")
    return time_ms


def _percent_range(value: int | str | None, what: str) -> tuple[int, int]:
    if value is None:
        return 100, 100
    ends = _ends(str(value))
    numbers = [end.removesuffix("%").strip() for end in ends]
    if (
        not all(_WHOLE.fullmatch(number) for number in numbers)
        or int(numbers[0]) > int(numbers[-1])
        or int(numbers[-1]) > 100
    ):
        raise QuantityError(f"{what} cannot be {value}", fix="a whole number from 0 to 100, or a range such as 10-30")
    return int(numbers[0]), int(numbers[-1])


def _memory(value: str | int | float, what: str) -> Memory:
    ends = _ends(str(value))
    if ends[-1].endswith("%"):
        shares = [milli(end.removesuffix("%").strip(), what) for end in ends]
        _ascending(shares, value, what)
        if shares[-1] > FULL_MILLI_PERCENT:
            raise QuantityError(f"{what} {value} is more than the whole", fix="write at most 100%")
        return Memory(shares[0], shares[-1], relative=True)
    amounts = [memory_amount(end, what) for end in ends]
    _ascending(amounts, value, what)
    return Memory(amounts[0], amounts[-1], relative=False)


def memory_amount(value: str | int | float, what: str = "memory") -> int:
    """Bytes, from whole MiB or an amount with its unit."""
    text = str(value).strip()
    return memory_bytes(text, what) if text[-1:].isalpha() else memory_mib(text, what) << 20


def _ends(text: str) -> list[str]:
    """The one value, or both ends of a range."""
    found = _RANGE.fullmatch(text)
    return [found.group(1).strip(), found.group(2).strip()] if found else [text.strip()]


def _ascending(ends: list[int], value: object, what: str) -> None:
    if ends[0] > ends[-1]:
        raise QuantityError(f"{what} {value} counts down", fix="write the smaller end first, as in 40-60%")
