"""The tasks on all GPUs as one table: in which phase each is, what it uses, when that changes.

Place in the flow: engine ─**load**─▶ per GPU: utilisation and memory ─▶ physics. Rows are columns of numbers so that
tens of thousands change phase in one pass. Invariant: a draw depends on the seed, the task and the time it is for, and
on nothing else, so that the order and the size of steps cannot change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuyard.fakegpu.physics import Bools, Ints
from gpuyard.fakegpu.profile import FULL_MILLI_PERCENT, Memory, Phase, Profile, progress

NEVER: Final = np.iinfo(np.int64).max
DRAW_EVERY_MS: Final = 10_000
"""A utilisation given as a range is drawn anew this often."""
WHOLE_SHARE: Final = 7
"""A task on a whole GPU counts in full; one on a MIG instance by its slices of seven."""

ROWS_AT_FIRST: Final = 64
MAX_UNUSED_PHASES: Final = 10_000
"""Phases of profiles nobody has any more that are kept before they are forgotten."""

_U64 = np.uint64


TIME, LOW, HIGH, MEMORY_LOW, MEMORY_HIGH, RELATIVE = range(6)
"""Columns of the table of phases."""


class Phases:
    """The phases of all profiles in use, end to end; a profile is where it starts and how many it has."""

    def __init__(self) -> None:
        self.table = np.zeros((ROWS_AT_FIRST, 6), np.int64)
        self._start: dict[Profile, int] = {}
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def start_of(self, profile: Profile) -> int:
        """Where the phases of a profile are; they are added when it is first seen."""
        if profile not in self._start:
            self._start[profile] = self._used
            self._add([_row(phase) for phase in profile.phases])
        return self._start[profile]

    def _add(self, rows: list[tuple[int, ...]]) -> None:
        end = self._used + len(rows)
        while end > len(self.table):
            self.table = np.concatenate((self.table, np.zeros_like(self.table)))
        self.table[self._used : end] = rows
        self._used = end


def _row(phase: Phase) -> tuple[int, ...]:
    """A phase as a row; a memory of -1 is the task's own."""
    time_ms = NEVER if phase.time_ms is None else phase.time_ms
    memory = phase.memory or Memory(-1, -1, relative=False)
    return time_ms, phase.low_percent, phase.high_percent, memory.low, memory.high, int(memory.relative)


class Needs(NamedTuple):
    """What one task takes of its device, besides what its profile says."""

    own_bytes: int
    """Where its profile says nothing about memory."""
    whole_bytes: int
    """What percentages of memory are of."""
    room_bytes: int
    """The most it can get."""
    share: int
    """Slices of seven; WHOLE_SHARE for a whole GPU."""
    unit: int
    """0 for the whole GPU, else the number of its instance, from 1."""


class Start(NamedTuple):
    """A task that starts on a GPU; `key` tells its draws from those of all others."""

    gpu: int
    key: int
    profile: Profile
    needs: Needs
    elapsed_ms: int = 0
    """How long ago it began, where it did before we knew of it."""


class Load:
    """Rows of tasks, as columns."""

    def __init__(self, seed: int) -> None:
        self._seed: Final = _mixed(np.array([seed & 0xFFFF_FFFF_FFFF_FFFF], np.uint64))
        """The seed, scattered; one number for all rows."""
        self.phases = Phases()
        self.gpu = _no_rows()
        """The GPU it runs on; -1 where the row is free."""
        self.key = np.zeros(0, np.uint64)
        self.first = _no_rows()
        """Where the phases of its profile start, how many there are and how often they are gone through."""
        self.count = _no_rows()
        self.rounds = _no_rows()
        self.phase = _no_rows()
        """The phase and round it is in, since when and until when."""
        self.round = _no_rows()
        self.entered = _no_rows()
        self.until = _no_rows()
        self.next_ms = _no_rows()
        """When anything about it changes next."""
        self.low = _no_rows()
        """Utilisation of its phase at least, how much more it may be, and what it is now."""
        self.spread = _no_rows()
        self.percent = _no_rows()
        self.memory = _no_rows()
        self.own_memory = _no_rows()
        """What it needs; see Needs."""
        self.whole = _no_rows()
        self.room = _no_rows()
        self.share = _no_rows()
        self.unit = _no_rows()
        self._free: list[int] = []
        self._profiles: dict[int, Profile] = {}
        self._most_phases = MAX_UNUSED_PHASES
        self._grow(ROWS_AT_FIRST)

    def _grow(self, more: int) -> None:
        """More rows, all free."""
        old = len(self.gpu)
        for name, column in list(vars(self).items()):
            if isinstance(column, np.ndarray) and name != "_seed":
                setattr(self, name, np.concatenate((column, np.zeros(more, column.dtype))))
        self.gpu[old:] = -1
        self.next_ms[old:] = NEVER
        self._free.extend(range(old + more - 1, old - 1, -1))

    def add(self, starts: Sequence[Start], at_ms: int) -> Ints:
        """Tasks that start now: the numbers of their rows."""
        self._forget_unused_profiles()
        while len(self._free) < len(starts):
            self._grow(len(self.gpu))
        rows = np.array([self._free.pop() for _ in starts], np.int64)
        self.gpu[rows] = [start.gpu for start in starts]
        self._profiles.update(zip(rows.tolist(), (start.profile for start in starts), strict=True))
        self.key[rows] = np.array([start.key for start in starts], np.uint64)
        self.first[rows] = [self.phases.start_of(start.profile) for start in starts]
        self.count[rows] = [len(start.profile.phases) for start in starts]
        self.rounds[rows] = [NEVER if start.profile.repeat is None else start.profile.repeat for start in starts]
        come = [progress(start.profile, start.elapsed_ms) for start in starts]
        self.phase[rows] = [each.phase for each in come]
        self.round[rows] = [each.round for each in come]
        self.entered[rows] = [at_ms - each.into_ms for each in come]
        self.give([start.needs for start in starts], rows)
        self._keep_memory(rows[self.round[rows] >= self.rounds[rows]])
        self._enter(rows)
        self._draw(rows, np.full(len(rows), at_ms))
        return rows

    def _keep_memory(self, rows: Ints) -> None:
        """Tasks that are through with their profile hold what they had in its last phase."""
        last = self.phases.table[self.first[rows] + self.count[rows] - 1]
        self.memory[rows] = self._phase_memory(rows, last, self.entered[rows] - last[:, TIME])

    def give(self, needs: Sequence[Needs], rows: Ints) -> None:
        """What tasks can have of their devices."""
        columns = np.array(needs, np.int64).T
        self.own_memory[rows], self.whole[rows], self.room[rows], self.share[rows], self.unit[rows] = columns
        self.memory[rows] = np.minimum(self.memory[rows], self.room[rows])

    def _forget_unused_profiles(self) -> None:
        """Every task may bring a profile of its own; those of tasks that have ended must not pile up."""
        if len(self.phases) <= self._most_phases:
            return
        self.phases = Phases()
        for row, profile in self._profiles.items():
            self.first[row] = self.phases.start_of(profile)
        self._most_phases = 2 * len(self.phases) + MAX_UNUSED_PHASES

    def remove(self, row: int) -> None:
        del self._profiles[row]
        self.gpu[row] = -1
        self.next_ms[row] = NEVER
        self._free.append(row)

    def change(self, rows: Ints, at_ms: Ints) -> None:
        """Bring rows up to the instant at which something of each changes."""
        ended = rows[self.until[rows] <= at_ms]
        if len(ended):
            self._next_phase(ended)
        self._draw(rows, at_ms)

    def _next_phase(self, rows: Ints) -> None:
        self.entered[rows] = self.until[rows]
        after = self.phase[rows] + 1
        wrapped = after >= self.count[rows]
        self.phase[rows] = np.where(wrapped, 0, after)
        self.round[rows] += wrapped
        self._enter(rows)

    def _enter(self, rows: Ints) -> None:
        """What holds for a whole phase: when it ends, its utilisation and how much memory it takes."""
        over = self.round[rows] >= self.rounds[rows]
        table = self.phases.table[self.first[rows] + self.phase[rows]]
        endless = over | (table[:, TIME] == NEVER)
        self.until[rows] = np.where(endless, NEVER, self.entered[rows] + np.where(endless, 0, table[:, TIME]))
        self.low[rows] = np.where(over, 0, table[:, LOW])
        self.spread[rows] = np.where(over, 0, table[:, HIGH] - table[:, LOW])
        going = rows[~over]
        self.memory[going] = self._phase_memory(going, table[~over], self.entered[going])

    def _phase_memory(self, rows: Ints, table: Ints, entered: Ints) -> Ints:
        low, high = table[:, MEMORY_LOW], table[:, MEMORY_HIGH]
        drawn = low + self._random(rows, entered, 1, high - low + 1)
        # Bytes times thousandths of a per cent would leave 64 bits; in units of 1 KiB they do not.
        relative = (self.whole[rows] >> 10) * drawn // FULL_MILLI_PERCENT << 10
        asked = np.where(table[:, RELATIVE] == 1, relative, drawn)
        return np.minimum(np.where(low < 0, self.own_memory[rows], asked), self.room[rows])

    def _draw(self, rows: Ints, at_ms: Ints) -> None:
        """What holds from now: the utilisation, and until when."""
        slot = at_ms // DRAW_EVERY_MS
        spread = self.spread[rows]
        self.percent[rows] = self.low[rows] + self._random(rows, slot, 0, spread + 1)
        again = np.where(spread == 0, NEVER, (slot + 1) * DRAW_EVERY_MS)
        self.next_ms[rows] = np.minimum(self.until[rows], again)

    def _random(self, rows: Ints, about: Ints, salt: int, sides: Ints) -> Ints:
        """A number below `sides` that depends on seed, task, what it is about and nothing else."""
        mixed = _mixed(_mixed(about.view(np.uint64) * _U64(2) + _U64(salt)) ^ self.key[rows] ^ self._seed)
        return (mixed % sides.view(np.uint64)).view(np.int64)

    def rows_of(self, chosen: Bools) -> Ints:
        """Rows on the GPUs that are marked."""
        used = np.flatnonzero(self.gpu >= 0)
        return used[chosen[self.gpu[used]]]


def _no_rows() -> Ints:
    return np.zeros(0, np.int64)


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Well-scattered bits of a number (the finisher of splitmix64)."""
    value = value + _U64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> _U64(27))) * _U64(0x94D049BB133111EB)
    return value ^ (value >> _U64(31))
