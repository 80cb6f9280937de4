"""Why a request is refused, with the numbers and the ways out.

Place in the flow: planner ─books, request─▶ **refusals** ─errors─▶ the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from gpuyard.model.quantities import format_milli
from gpuyard.vdk.errors import NeverFitsError, NoArrangementError, NoAvailableBudgetException
from gpuyard.vdk.model import DeviceRequirements, JobUniqueIdentifier, Request
from gpuyard.vdk.pool.books import Books, Grid
from gpuyard.vdk.pool.room import largest_room

MAX_NAMES: Final = 5
"""Jobs that a text names; the others are counted."""


def job_text(job: JobUniqueIdentifier) -> str:
    return f'job "{job.job}" of team "{job.team}"'


def amount_text(amount_milli: int, device_type: str = "") -> str:
    return f"{format_milli(amount_milli)} {device_type}".rstrip()


def names_text(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


class Refusals:
    def __init__(
        self,
        books: Books,
        budgets: Mapping[tuple[str, str], int],
        request: Request,
        wanted: Sequence[DeviceRequirements],
    ) -> None:
        self.books = books
        self.budgets = budgets
        self.request = request
        self.wanted = wanted

    def never_fits(self) -> NeverFitsError:
        asked = " or ".join(amount_text(one.amount_milli, one.device_type) for one in self.request.alternatives)
        sizes = [f"{grid.width} x {name}" for name, grid in sorted(self.books.grids.items())]
        have = f"the largest machines have {names_text(sizes)}" if sizes else "there are no machines"
        return NeverFitsError(
            f"no machine can ever hold {asked} for {job_text(self.request.id)}: {have}",
            fix="ask for no more than one machine has, of a type that is there, or add a larger machine",
        )

    def no_budget(self) -> NoAvailableBudgetException:
        team = self.request.id.team
        parts = [self._budget_text(one) for one in self.wanted]
        return NoAvailableBudgetException(
            f'team "{team}" has no budget for {job_text(self.request.id)}, and there is nowhere free: '
            + "; ".join(parts),
            fix="try again when jobs have ended, ask for less, or have the budget raised",
        )

    def _budget_text(self, wanted: DeviceRequirements) -> str:
        team, device_type = self.request.id.team, wanted.device_type
        used_milli = self.books.used_milli(team, device_type)
        budget_milli = self.budgets.get((team, device_type), 0)
        return (
            f"it asks for {amount_text(wanted.amount_milli, device_type)}, uses {format_milli(used_milli)} of its"
            f" budget of {format_milli(budget_milli)}; {self._free_text(device_type)}"
        )

    def _free_text(self, device_type: str) -> str:
        grid = self.books.grids.get(device_type)
        if grid is None:
            return f"no machine has {device_type}"
        largest_milli = largest_room(grid.free)
        largest = f"at most {format_milli(largest_milli)} of {grid.width} on one machine"
        return f"{format_milli(grid.free_milli)} are free, {largest}"

    def no_arrangement(self, wanted: Iterable[DeviceRequirements]) -> NoArrangementError:
        parts = [self._arrangement_text(one) for one in wanted]
        return NoArrangementError(
            f'team "{self.request.id.team}" has budget for {job_text(self.request.id)}, but no arrangement of the jobs'
            " makes room: " + "; ".join(parts),
            fix="try again when jobs have ended, ask for less, or see in a quote what would make it run",
        )

    def _arrangement_text(self, wanted: DeviceRequirements) -> str:
        grid = self.books.grids.get(wanted.device_type)
        asked = f"{amount_text(wanted.amount_milli, wanted.device_type)}: {self._free_text(wanted.device_type)}"
        return "; ".join([asked, *([] if grid is None else self._causes(grid, wanted))])

    def _causes(self, grid: Grid, wanted: DeviceRequirements) -> list[str]:
        causes = []
        promised_milli = sum(milli for (_, type_), milli in self.budgets.items() if type_ == wanted.device_type)
        if promised_milli > grid.capacity_milli:
            causes.append(
                f"the budgets add up to {format_milli(promised_milli)}, the machines to"
                f" {format_milli(grid.capacity_milli)}"
            )
        if grid.free_milli >= wanted.amount_milli:
            causes.append(f"what is free is spread over {_machines_with_room(grid)} machines")
        stuck = [
            job_text(one.id) for jobs in grid.jobs for one in sorted(jobs.values(), key=lambda x: x.id) if one.priority
        ]
        if stuck:
            causes.append(f"{len(stuck)} with priority may not be deleted: {names_text(stuck)}")
        return causes


def _machines_with_room(grid: Grid) -> int:
    return int(np.count_nonzero(grid.free.sum(axis=1)))
