"""What a data job asks of the cluster: the section [gpuyard] of its config.ini.

    [gpuyard]
    gpus = 0.5              ; GPUs on one machine: a part of one (three decimals), or whole ones; 0 unless given
    device_type = A100      ; models of GPU that will do, with commas; any unless given
    priority = true         ; never stopped for others; needs a lead of the team, and budget
    checkpointable = true   ; with priority: may be moved for others, because it goes on from where it was; else not
    movable = false         ; never moved to make room for others; true unless given
    cpu = 2                 ; cores
    ram = 8Gi               ; memory of the machine
    run_limit = 2h          ; it is ended after so long

Place in the flow: config.ini ─▶ **needs** ─Needs─▶ a Job for the scheduler. Pure. Invariant: what is deployed can be
asked for: a wrong value is refused with file, line, key, value and the way out.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from gpuyard.errors import InputError, QuantityError, Where
from gpuyard.files.durations import duration_ms
from gpuyard.files.format import NAME_PATTERN
from gpuyard.files.suggest import did_you_mean
from gpuyard.model.jobs import Request, Sharing
from gpuyard.model.jobs import Where as Allowed
from gpuyard.model.quantities import MILLI, cpu_milli, memory_bytes, milli
from gpuyard.vdk.control.sources import CONFIG_FILE

SECTION: Final = "gpuyard"
MAX_DEVICE_TYPES: Final = 16
_FLAGS: Final = configparser.ConfigParser.BOOLEAN_STATES
_SHOWN: Final = 60

Value = TypeVar("Value")


class Needs(msgspec.Struct, frozen=True):
    """Read and checked."""

    gpu_milli: int = 0
    device_types: tuple[str, ...] = ()
    priority: bool = False
    movable: bool = True
    checkpointable: bool = False
    cpu_milli: int = 0
    memory_bytes: int = 0
    run_limit_ms: int | None = None

    @property
    def request(self) -> Request:
        """Of its one task."""
        part = 0 < self.gpu_milli < MILLI
        return Request(
            devices=1 if part else self.gpu_milli // MILLI,
            gpu_milli=self.gpu_milli if part else MILLI,
            cpu_milli=self.cpu_milli,
            memory_bytes=self.memory_bytes,
            sharing=Sharing.TIME_SLICED if part else Sharing.EXCLUSIVE,
            where=Allowed(gpu_models=tuple(sorted(self.device_types))),
        )


def read_needs(text: str) -> Needs:
    """Of the text of a config.ini; an InputError says what is wrong where."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text, CONFIG_FILE)
    except configparser.Error as error:
        line = getattr(error, "lineno", None) or (getattr(error, "errors", None) or [(0,)])[0][0]
        what = error.message.splitlines()[0]
        raise InputError(what, where=Where(CONFIG_FILE, line, 1 if line else 0), fix="see VDK's config.ini") from None
    written = dict(parser[SECTION]) if parser.has_section(SECTION) else {}
    values = _Values({key: value for key, value in written.items() if key not in parser.defaults()}, text)
    values.refuse_unknown()
    return Needs(
        gpu_milli=values.read("gpus", _gpus, 0),
        device_types=values.read("device_type", _device_types, ()),
        priority=values.read("priority", _flag, False),
        movable=values.read("movable", _flag, True),
        checkpointable=values.read("checkpointable", _flag, False),
        cpu_milli=values.read("cpu", cpu_milli, 0),
        memory_bytes=values.read("ram", memory_bytes, 0),
        run_limit_ms=values.read("run_limit", _run_limit, None),
    )


KEYS: Final = ("gpus", "device_type", "priority", "checkpointable", "movable", "cpu", "ram", "run_limit")


class _Values:
    """What is written in the section, and where."""

    def __init__(self, written: Mapping[str, str], text: str) -> None:
        self._written = written
        self._text = text

    def read(self, key: str, reader: Callable[[str, str], Value], default: Value) -> Value:
        written = self._written.get(key)
        if written is None:
            return default
        try:
            return reader(written.strip(), key)
        except QuantityError as error:
            raise InputError(error.what, where=self._where(key), fix=error.fix) from None

    def refuse_unknown(self) -> None:
        for key in self._written:
            if key not in KEYS:
                what = f"[{SECTION}] has no key {key[:_SHOWN]}{did_you_mean(key, KEYS)}"
                raise InputError(what, where=self._where(key), fix=f"known are {', '.join(KEYS)}")

    def _where(self, key: str) -> Where:
        """The line of a key: inside its section, and not before it."""
        inside = False
        for number, line in enumerate(self._text.splitlines(), 1):
            if line.startswith("["):
                inside = line.strip() == f"[{SECTION}]"
            elif inside and re.match(rf"{re.escape(key)}\s*[=:]", line, re.IGNORECASE):
                return Where(CONFIG_FILE, line=number, column=1, field=f"{SECTION}.{key}")
        return Where(CONFIG_FILE, field=f"{SECTION}.{key}")


def _gpus(text: str, key: str) -> int:
    found = milli(text, key)
    if found > MILLI and found % MILLI:
        fix = "ask for whole GPUs, or for a part of one: 0.5"
        raise QuantityError(f"{key} {text} is neither a whole number nor below 1", fix=fix)
    return found


def _device_types(text: str, key: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found or len(found) > MAX_DEVICE_TYPES or not all(re.fullmatch(NAME_PATTERN, one) for one in found):
        fix = f"write 1 to {MAX_DEVICE_TYPES} models as gpuyard gpu ls shows them, with commas; or leave it out"
        raise QuantityError(f'{key} "{text[:_SHOWN]}" names no models of GPU', fix=fix)
    return found


def _flag(text: str, key: str) -> bool:
    found = _FLAGS.get(text.lower())
    if found is None:
        raise QuantityError(
            f'{key} must be true or false, not "{text[:_SHOWN]}"', fix=f"write {key} = true, or leave it out"
        )
    return found


def _run_limit(text: str, key: str) -> int | None:
    found = duration_ms(text, key)
    if not found:
        raise QuantityError(f"{key} must be more than 0", fix="leave it out for no limit")
    return found
