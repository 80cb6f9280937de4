"""A state that is changed as a whole or not at all: its containers remember how to undo what is done to them.

Place in the flow: fold ─changes─▶ State, whose containers are **watched** ─▶ journal keeps the changes or undoes them.
The fold knows nothing of it. What is noted is in the size of what is written, not of the state.
Invariant: after `undo` the state equals what it was at `begin`; only the order of keys that were removed may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from gpuyard.worlds.standalone.records import State

Step = Callable[[], object]
"""Undoes one write."""

_GONE: Final = object()
"""Stands for a key that was not there."""


class Watch:
    """Watches one state. Whoever changes it calls `begin` first, and `undo` where the change cannot be finished."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._steps: list[Step] = []
        self._values: tuple[object, ...] = ()
        self._meter: tuple[object, ...] = ()
        self._finished = 0
        self._wrap()

    def begin(self) -> None:
        """Forget how to undo what was done so far, and note the state as it is."""
        self._steps.clear()
        self._wrap()
        self._values = msgspec.structs.astuple(self.state)
        self._meter = msgspec.structs.astuple(self.state.meter)
        self._finished = len(self.state.finished)

    def undo(self) -> None:
        """Put everything back as it was at `begin`."""
        while self._steps:
            self._steps.pop()()
        for name, value in zip(self.state.__struct_fields__, self._values, strict=True):
            setattr(self.state, name, value)
        for name, value in zip(self.state.meter.__struct_fields__, self._meter, strict=True):
            setattr(self.state.meter, name, value)
        del self.state.finished[self._finished :]

    def _wrap(self) -> None:
        """Watch containers that are new: a fold may replace a whole dictionary."""
        state, meter = self.state, self.state.meter
        for name in _STATE_DICTS:
            held = getattr(state, name)
            if type(held) is not WatchedDict or held.steps is not self._steps:
                setattr(state, name, WatchedDict(held, self._steps))
        for name in _METER_DICTS:
            held = getattr(meter, name)
            if type(held) is not WatchedDict or held.steps is not self._steps:
                setattr(meter, name, WatchedDict(held, self._steps))


class WatchedDict(dict[Any, Any]):
    """A dictionary that notes, before each write, how to undo it; dictionaries and lists put into it are watched."""

    __slots__ = ("steps",)

    def __init__(self, held: dict[Any, Any], steps: list[Step]) -> None:
        super().__init__(held)
        self.steps = steps
        for key, value in held.items():
            if isinstance(value, dict | list):
                super().__setitem__(key, _watched(value, steps))

    def __setitem__(self, key: object, value: object) -> None:
        self._note(key)
        super().__setitem__(key, _watched(value, self.steps) if isinstance(value, dict | list) else value)

    def __delitem__(self, key: object) -> None:
        self._note(key)
        super().__delitem__(key)

    def setdefault(self, key: object, default: object = None) -> Any:  # noqa: ANN401 - as the dictionary it stands for
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: object, *default: object) -> Any:  # noqa: ANN401 - as the dictionary it stands for
        self._note(key)
        return super().pop(key, *default)

    def update(self, *others: Any, **named: object) -> None:  # noqa: ANN401 - as the dictionary it stands for
        for key, value in dict(*others, **named).items():
            self[key] = value

    def __ior__(self, other: Any) -> WatchedDict:  # type: ignore[misc]  # noqa: ANN401
        self.update(other)
        return self

    def popitem(self) -> tuple[Any, Any]:
        key = next(reversed(self))
        return key, self.pop(key)

    def clear(self) -> None:
        for key in list(self):
            del self[key]

    def __deepcopy__(self, memo: dict[int, object]) -> dict[Any, Any]:
        """A copy stands alone: nobody undoes what is done to it."""
        return _plain(self)

    def __reduce__(self) -> tuple[type, tuple[dict[Any, Any]]]:
        return dict, (_plain(self),)

    def _note(self, key: object) -> None:
        was = self.get(key, _GONE)
        if was is _GONE:
            self.steps.append(lambda: dict.pop(self, key, None))
        else:
            self.steps.append(lambda: dict.__setitem__(self, key, was))


class WatchedList(list[Any]):
    """A list that only grows; a fold that wants it otherwise puts another in its place."""

    __slots__ = ("steps",)

    def __init__(self, held: list[Any], steps: list[Step]) -> None:
        super().__init__(held)
        self.steps = steps

    def append(self, value: object) -> None:
        length = len(self)
        self.steps.append(lambda: list.__delitem__(self, slice(length, None)))
        super().append(value)

    def __reduce__(self) -> tuple[type, tuple[list[Any]]]:
        return list, (list(self),)


def _watched(value: dict[Any, Any] | list[Any], steps: list[Step]) -> WatchedDict | WatchedList:
    return WatchedDict(value, steps) if isinstance(value, dict) else WatchedList(value, steps)


def _plain(held: dict[Any, Any]) -> dict[Any, Any]:
    return {
        key: _plain(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value
        for key, value in held.items()
    }


def _dicts(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(one.name for one in msgspec.structs.fields(struct) if getattr(one.type, "__origin__", None) is dict)


_STATE_DICTS: Final = _dicts(State)
_METER_DICTS: Final = _dicts(type(State().meter))
