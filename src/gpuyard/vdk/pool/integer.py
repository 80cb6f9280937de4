"""A mixed-integer program, built column by column, solved by HiGHS.

Limited by nodes and to one thread, never by time, so that the same program has the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import highspy
import msgspec
import numpy as np

Terms = Iterable[tuple[int, int]]
"""Columns and their factors."""

INFINITE: Final = highspy.kHighsInf
_SMALLER_PROGRAMS: Final = (
    "mip_heuristic_run_rins",
    "mip_heuristic_run_rens",
    "mip_heuristic_run_root_reduced_cost",
)
WHOLE_GAP: Final = 0.99
"""All costs are whole numbers: what is closer than one to the bound is the best."""


class Limits(msgspec.Struct, frozen=True, gc=False):
    """How long a program is worked on."""

    nodes: int
    smaller_programs: bool
    """Whether good answers are also looked for by solving smaller programs on the way, which takes most of the time."""


class Model:
    """Minimise, under constraints, over columns that are 0 or 1 or a bounded number."""

    def __init__(self) -> None:
        self._upper: list[float] = []
        self._whole: list[highspy.HighsVarType] = []
        self._least: list[float] = []
        self._most: list[float] = []
        self._starts = [0]
        self._columns: list[int] = []
        self._factors: list[float] = []

    @property
    def size(self) -> int:
        return len(self._upper)

    def binary(self) -> int:
        self._upper.append(1)
        self._whole.append(highspy.HighsVarType.kInteger)
        return len(self._upper) - 1

    def number(self) -> int:
        """Zero or more."""
        self._upper.append(INFINITE)
        self._whole.append(highspy.HighsVarType.kContinuous)
        return len(self._upper) - 1

    def at_most(self, terms: Terms, most: int) -> None:
        self._row(terms, -INFINITE, most)

    def equal(self, terms: Terms, value: int) -> None:
        self._row(terms, value, value)

    def _row(self, terms: Terms, least: float, most: float) -> None:
        for column, factor in terms:
            self._columns.append(column)
            self._factors.append(factor)
        self._starts.append(len(self._columns))
        self._least.append(least)
        self._most.append(most)

    def minimise(self, terms: Terms, limits: Limits) -> list[int] | None:
        """The best values that were found, rounded; None: there are none, or none were found within the limits."""
        program = self._program(terms)
        solver = _solved(program, limits, presolve="choose")
        if solver.getModelStatus() == highspy.HighsModelStatus.kSolveError:
            # HiGHS 1.15 gives up on some sound programs in its presolve; without it they are solved.
            solver = _solved(program, limits, presolve="off")
        if solver.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        return [round(value) for value in solver.getSolution().col_value]

    def _program(self, terms: Terms) -> highspy.HighsLp:
        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = self.size, len(self._least)
        costs = np.zeros(self.size)
        for column, factor in terms:
            costs[column] += factor
        program.col_cost_ = costs
        program.col_lower_ = np.zeros(self.size)
        program.col_upper_ = np.array(self._upper, dtype=float)
        program.integrality_ = self._whole
        program.row_lower_ = np.array(self._least, dtype=float)
        program.row_upper_ = np.array(self._most, dtype=float)
        matrix = program.a_matrix_
        matrix.format_ = highspy.MatrixFormat.kRowwise
        matrix.start_ = np.array(self._starts)
        matrix.index_ = np.array(self._columns)
        matrix.value_ = np.array(self._factors, dtype=float)
        return program


def _solved(program: highspy.HighsLp, limits: Limits, presolve: str) -> highspy.Highs:
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in {**_options(limits), "presolve": presolve}.items():
        solver.setOptionValue(option, value)
    solver.passModel(program)
    solver.run()
    return solver


def _options(limits: Limits) -> dict[str, int | float | str | bool]:
    return {
        "output_flag": False,
        "threads": 1,
        "parallel": "off",
        "random_seed": 0,
        "mip_max_nodes": limits.nodes,
        **dict.fromkeys(_SMALLER_PROGRAMS, limits.smaller_programs),
        "mip_allow_restart": False,
        "mip_rel_gap": 0.0,
        "mip_abs_gap": WHOLE_GAP,
    }
