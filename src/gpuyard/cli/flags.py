"""Kinds of values on the command line; each refuses what it cannot be with the way out.

Invariant: a value is checked here exactly as the server reads it, by the same functions, and sent as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import click

MAX_PRIORITY: Final = 1_000_000
PRIORITIES: Final = ("low", "normal", "high", "urgent")
"""Spelled out here, so that the help needs no reader; a test compares them with model.work."""

_ARRAY: Final = re.compile(r"[0-9]+(-[0-9]+(:[1-9][0-9]*)?)?(,[0-9]+(-[0-9]+(:[1-9][0-9]*)?)?)*(%[1-9][0-9]*)?")


class Checked(click.ParamType[Any]):
    """Text that a reader accepts."""

    def __init__(self, name: str, check: Callable[[str], object]) -> None:
        self.name = name
        self._check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        from gpuyard.errors import InputError

        try:
            self._check(value)
        except InputError as error:
            self.fail(f"{error.what}; {error.fix}" if error.fix else error.what, param, ctx)
        return value


def _duration(text: str) -> None:
    from gpuyard.files.durations import duration_ms

    duration_ms(text)


def _gpus(text: str) -> None:
    from gpuyard.model.quantities import memory_mib, milli

    if is_memory(text):
        memory_mib(text)
    else:
        milli(text, "gpus")


def _cpu(text: str) -> None:
    from gpuyard.model.quantities import cpu_milli

    cpu_milli(text)


def _memory(text: str) -> None:
    from gpuyard.model.quantities import memory_bytes

    memory_bytes(text)


def _amount(text: str) -> None:
    from gpuyard.model.quantities import milli

    if text != "unlimited":
        milli(text)


def _array(text: str) -> None:
    from gpuyard.errors import InputError

    if not _ARRAY.fullmatch(text):
        raise InputError(f'"{text}" is no array', fix="write it as 0-9, 1,3,5 or 0-99:10, and %4 for four at a time")


def is_memory(text: str) -> bool:
    """6GiB asks for memory of a GPU, 0.5 for a part of one."""
    return text[:1].isdigit() and text[-1:].isalpha()


DURATION: Final = Checked("duration", _duration)
GPUS: Final = Checked("gpus", _gpus)
CPU: Final = Checked("cores", _cpu)
MEMORY: Final = Checked("memory", _memory)
AMOUNT: Final = Checked("gpus", _amount)
ARRAY: Final = Checked("array", _array)


class KeyValue(click.ParamType[Any]):
    """k=v"""

    name = "k=v"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        if isinstance(value, tuple):
            return value
        key, equals, text = value.partition("=")
        if not key or not equals:
            self.fail(f'"{value}" has no name and value; write NAME=VALUE', param, ctx)
        return key, text


class Bounds(click.ParamType[Any]):
    """MIN-MAX"""

    name = "min-max"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"([0-9]{1,6})-([0-9]{1,6})", value)
        if not found:
            self.fail(f'"{value}" is no range of tasks; write it as 2-8', param, ctx)
        least, most = int(found[1]), int(found[2])
        if not 1 <= least <= most:
            self.fail(f"{value} is no range of tasks: from 1, the smaller number first", param, ctx)
        return least, most


class Priority(click.ParamType[Any]):
    """A word or a number."""

    name = "priority"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        if isinstance(value, int) or value in PRIORITIES:
            return value
        if not re.fullmatch(r"-?[0-9]{1,7}", value) or abs(int(value)) > MAX_PRIORITY:
            self.fail(f'"{value}" is no priority; write {", ".join(PRIORITIES)} or a whole number', param, ctx)
        return int(value)


KEY_VALUE: Final = KeyValue()
BOUNDS: Final = Bounds()
PRIORITY: Final = Priority()


def labels_of(given: tuple[str, ...]) -> dict[str, str]:
    """`-l a=1,b=2 -l c=3` as a map."""
    pairs = [KEY_VALUE.convert(part, None, None) for text in given for part in text.split(",")]
    return dict(pairs)
