"""A value of a file, with the name an error message gives it and where it stands.

Place in the flow: every reader of a part gets its typed spec and the Place of it, and raises errors from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from gpuyard.errors import InputError, QuantityError, Where
from gpuyard.files.tree import Spot

Value = TypeVar("Value")
Result = TypeVar("Result")


class Place(msgspec.Struct, frozen=True):
    """One value of a file. `name` is its path from the top, as in `queues.vision.quota`."""

    file: str
    spot: Spot
    name: str = ""
    key: tuple[int, int] | None = None
    """Where its key stands, if it has one."""

    @property
    def where(self) -> Where:
        return Where(self.file, self.spot.line, self.spot.column, self.name)

    @property
    def where_key(self) -> Where:
        """Where its name stands: the better place to point at when the whole value is meant."""
        return Where(self.file, *self.key, self.name) if self.key else self.where

    def at(self, *steps: str | int) -> Place:
        """The value some fields or items further down; where one is missing, what would hold it."""
        place = self
        for step in steps:
            below = place._below(step)
            if below is None:
                return place
            place = below
        return place

    def _below(self, step: str | int) -> Place | None:
        if isinstance(step, int):
            items = self.spot.items
            return Place(self.file, items[step], f"{self.name}[{step}]") if step < len(items) else None
        if step not in self.spot.fields:
            return None
        name = f"{self.name}.{step}" if self.name else step
        return Place(self.file, self.spot.fields[step], name, self.spot.keys[step])

    def error(self, what: str, fix: str = "") -> InputError:
        return InputError(what, where=self.where, fix=fix)

    def read(self, convert: Callable[[Value, str], Result], value: Value, what: str) -> Result:
        """Convert a value; an error of the conversion then says where it stands."""
        try:
            return convert(value, what)
        except QuantityError as error:
            raise QuantityError(error.what, where=self.where, fix=error.fix) from None
