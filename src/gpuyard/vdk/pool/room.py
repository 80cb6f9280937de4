"""Where a job fits as things are: the fullest place that still holds it.

Place in the flow: planner, search ─amount─▶ **room** ─place─▶. An amount is whole devices, each alone on its device,
and a rest below one on a further device, all on one machine. Ties go by the names of the machines, then by the
numbers of their devices: rows and columns of the table are in that order.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gpuyard.vdk.model import DeviceShare, Place
from gpuyard.vdk.pool.books import WHOLE, Grid, Table

_NEVER: Final = np.int32(2**31 - 1)

Spot = tuple[int, tuple[DeviceShare, ...]]
"""A row, and shares of its devices."""


def place_of(grid: Grid, spot: Spot) -> Place:
    row, shares = spot
    return Place(grid.machines[row].name, shares)


def find_room(free: Table, amount_milli: int) -> Spot | None:
    """The fullest spot that holds so much, or None."""
    if not free.size:
        return None
    wholes, rest_milli = divmod(amount_milli, WHOLE)
    row = _row_for_part(free, rest_milli) if not wholes else _row_for_wholes(free, wholes, rest_milli)
    return None if row is None else (row, _shares(free[row], wholes, rest_milli))


def find_room_on(free: Table, row: int, amount_milli: int) -> Spot | None:
    """The same, on one machine only."""
    found = find_room(free[row : row + 1], amount_milli)
    return None if found is None else (row, found[1])


def largest_room(free: Table) -> int:
    """The largest amount that would find room as things are."""
    if not free.size:
        return 0
    wholes = np.count_nonzero(free == WHOLE, axis=1) * WHOLE
    parts = np.where(free < WHOLE, free, 0).max(axis=1)
    return int((wholes + parts).max())


def _row_for_part(free: Table, part_milli: int) -> int | None:
    """The machine of the fullest device with room; among equals the fullest machine."""
    fitting = np.where(free >= part_milli, free, _NEVER)
    least = fitting.min()
    if least == _NEVER:
        return None
    rows = np.flatnonzero((fitting == least).any(axis=1))
    return int(rows[free[rows].sum(axis=1).argmin()])


def _row_for_wholes(free: Table, wholes: int, rest_milli: int) -> int | None:
    """The fullest machine with so many empty devices, and room for the rest on one more."""
    empty = np.count_nonzero(free == WHOLE, axis=1)
    fits = empty >= wholes
    if rest_milli:
        beside = ((free >= rest_milli) & (free < WHOLE)).any(axis=1)
        fits &= beside | (empty > wholes)
    if not fits.any():
        return None
    return int(np.where(fits, free.sum(axis=1), _NEVER).argmin())


def _shares(devices: Table, wholes: int, rest_milli: int) -> tuple[DeviceShare, ...]:
    empty = [device for device, free in enumerate(devices.tolist()) if free == WHOLE]
    shares = [DeviceShare(device, WHOLE) for device in empty[:wholes]]
    if rest_milli:
        taken = set(empty[:wholes])
        fitting = [(free, at) for at, free in enumerate(devices.tolist()) if free >= rest_milli and at not in taken]
        shares.append(DeviceShare(min(fitting)[1], rest_milli))
    return tuple(shares)
