"""Who holds what: every job's place, and what is free on every device.

Place in the flow: fold ─jobs come and go─▶ **books** ─room, use─▶ planner. Two of them are kept: *now* is what is
confirmed, *later* is what will be once all open plans are carried out. Machines of one type are the rows of one table,
in the order of their names, so that a look at all of them is a few steps of numpy.
Invariant: no device is booked beyond its 1000 thousandths.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from gpuyard.errors import LedgerError
from gpuyard.model.quantities import MILLI
from gpuyard.vdk.model import DeviceShare, JobUniqueIdentifier, Machine, Place

Table = npt.NDArray[np.int32]
Column = npt.NDArray[np.int64]

WHOLE: Final = MILLI
"""What a device has, in thousandths."""


class Holding(msgspec.Struct, frozen=True, gc=False):
    """A job as the books have it. `place` is None while it is stopped on its way from one place to another."""

    id: JobUniqueIdentifier
    amount_milli: int
    device_type: str
    priority: bool
    checkpointable: bool
    place: Place | None
    since_ms: int

    @property
    def is_movable(self) -> bool:
        return self.checkpointable or not self.priority

    @property
    def shares(self) -> tuple[DeviceShare, ...]:
        return () if self.place is None else self.place.shares

    def at(self, place: Place | None) -> Holding:
        return msgspec.structs.replace(self, place=place)


Jobs = dict[JobUniqueIdentifier, Holding]


class Grid:
    """The machines of one device type."""

    def __init__(self, machines: list[Machine]) -> None:
        self.machines = sorted(machines, key=lambda machine: machine.name)
        self.rows = {machine.name: row for row, machine in enumerate(self.machines)}
        self.width = max((machine.devices for machine in machines), default=0)
        # Column by column in memory: sums over the devices of all machines are then ten times as fast.
        self.free: Table = np.zeros((len(machines), self.width), dtype=np.int32, order="F")
        for row, machine in enumerate(self.machines):
            self.free[row, : machine.devices] = WHOLE
        self.jobs: list[Jobs] = [{} for _ in machines]
        self.soft: dict[str, Column] = {}
        """Team → what its jobs without priority hold on each machine."""
        self.changed: set[int] = set(range(len(machines)))
        """Rows that are not what they were when `clearing` last looked."""
        self.cleared: Table = np.zeros((len(machines), self.width + 1), dtype=np.int32)
        """How many jobs must leave each machine before so many of its devices are empty; see `clearing`."""
        self.cleared_of_singles: Table = self.cleared.copy()
        """The same, if only jobs on a single device may leave: those find other places easily."""

    def copy(self) -> Grid:
        twin = Grid.__new__(Grid)
        twin.machines, twin.rows, twin.width = self.machines, self.rows, self.width
        twin.free = self.free.copy(order="K")
        twin.cleared, twin.cleared_of_singles = self.cleared.copy(), self.cleared_of_singles.copy()
        twin.jobs = [jobs.copy() for jobs in self.jobs]
        twin.soft = {team: column.copy() for team, column in self.soft.items()}
        twin.changed = self.changed.copy()
        return twin

    def remember(self, other: Grid) -> None:
        """Take over what the other has found out about machines that hold the same jobs here."""
        if self.machines != other.machines:
            return
        self.cleared, self.cleared_of_singles = other.cleared, other.cleared_of_singles
        self.changed = {row for row, jobs in enumerate(self.jobs) if row in other.changed or jobs != other.jobs[row]}

    @property
    def capacity_milli(self) -> int:
        return WHOLE * sum(machine.devices for machine in self.machines)

    @property
    def free_milli(self) -> int:
        return int(self.free.sum())

    def put(self, holding: Holding, place: Place) -> None:
        row = self.rows[place.machine]
        for share in place.shares:
            if self.free[row, share.device] < share.amount_milli:
                raise LedgerError(f"device {share.device} of {place.machine} has no room for job {holding.id}")
        for share in place.shares:
            self.free[row, share.device] -= share.amount_milli
        self.jobs[row][holding.id] = holding
        self._changed(row, holding, holding.amount_milli)

    def take(self, holding: Holding, place: Place) -> None:
        row = self.rows[place.machine]
        del self.jobs[row][holding.id]
        for share in place.shares:
            self.free[row, share.device] += share.amount_milli
        self._changed(row, holding, -holding.amount_milli)

    def _changed(self, row: int, holding: Holding, amount_milli: int) -> None:
        self.changed.add(row)
        if not holding.priority:
            team = holding.id.team
            if team not in self.soft:
                self.soft[team] = np.zeros(len(self.machines), dtype=np.int64)
            self.soft[team][row] += amount_milli

    def holds(self, place: Place) -> bool:
        """Whether all of this is free."""
        row = self.rows.get(place.machine)
        if row is None:
            return False
        devices = self.machines[row].devices
        return all(one.device < devices and self.free[row, one.device] >= one.amount_milli for one in place.shares)


class Books:
    """All machines and jobs, as one of the two views has them."""

    def __init__(self) -> None:
        self.grids: dict[str, Grid] = {}
        self.types: dict[str, str] = {}
        """Machine → its device type."""
        self.jobs: Jobs = {}
        self.parked: Jobs = {}
        """Those of the jobs that have no place."""
        self._used: dict[tuple[str, str], int] = {}

    def copy(self) -> Books:
        twin = Books()
        twin.grids = {name: grid.copy() for name, grid in self.grids.items()}
        twin.types, twin.jobs, twin.parked = dict(self.types), dict(self.jobs), dict(self.parked)
        twin._used = dict(self._used)
        return twin

    # --------------------------------------------------------------------------------------------------------- machines

    def set_machines(self, machines: list[Machine]) -> None:
        """All of them anew; the jobs stay where they are."""
        self.types = {machine.name: machine.device_type for machine in machines}
        self.grids = {}
        for device_type in sorted(set(self.types.values())):
            self.grids[device_type] = Grid([one for one in machines if one.device_type == device_type])
        for holding in self.jobs.values():
            if holding.place is not None:
                self.grids[holding.device_type].put(holding, holding.place)

    # ------------------------------------------------------------------------------------------------------------- jobs

    def used_milli(self, team: str, device_type: str) -> int:
        """What the team's jobs hold."""
        return self._used.get((team, device_type), 0)

    def teams_using(self, device_type: str) -> list[tuple[str, int]]:
        return [(team, used) for (team, type_), used in self._used.items() if type_ == device_type and used]

    def put(self, holding: Holding) -> None:
        """Enter a job, at its place or without one."""
        if holding.id in self.jobs:
            raise LedgerError(f"job {holding.id} is in the books already")
        if holding.place is None:
            self.parked[holding.id] = holding
        else:
            self.grids[holding.device_type].put(holding, holding.place)
            self._use(holding, holding.amount_milli)
        self.jobs[holding.id] = holding

    def take(self, id: JobUniqueIdentifier) -> Holding:
        holding = self.jobs.pop(id)
        if holding.place is None:
            del self.parked[id]
        else:
            self.grids[holding.device_type].take(holding, holding.place)
            self._use(holding, -holding.amount_milli)
        return holding

    def replace(self, holding: Holding) -> None:
        """The same job with other marks, or at another place."""
        self.take(holding.id)
        self.put(holding)

    def holds(self, place: Place) -> bool:
        device_type = self.types.get(place.machine)
        return device_type is not None and self.grids[device_type].holds(place)

    def free_milli(self, machine: str, device: int) -> int:
        grid = self.grids[self.types[machine]]
        return int(grid.free[grid.rows[machine], device])

    def _use(self, holding: Holding, milli: int) -> None:
        key = (holding.id.team, holding.device_type)
        self._used[key] = self._used.get(key, 0) + milli
