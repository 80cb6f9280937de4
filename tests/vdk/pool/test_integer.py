"""Programs for HiGHS: what is asked is answered, also where its presolve gives up."""

from __future__ import annotations

import highspy
import pytest

from gpuyard.vdk.pool.integer import Limits, Model

LIMITS = Limits(nodes=20, smaller_programs=False)


def a_model() -> tuple[Model, int, int]:
    """One of two must be taken."""
    model = Model()
    cheap, dear = model.binary(), model.binary()
    model.equal([(cheap, 1), (dear, 1)], 1)
    return model, cheap, dear


def test_the_cheaper_one_is_taken_and_what_cannot_be_has_no_answer() -> None:
    model, cheap, dear = a_model()
    assert model.minimise([(cheap, 1), (dear, 10)], LIMITS) == [1, 0]
    model.at_most([(cheap, 1)], 0)
    assert model.minimise([(cheap, 1), (dear, 10)], LIMITS) == [0, 1]
    model.at_most([(dear, 1)], 0)
    assert model.minimise([(cheap, 1), (dear, 10)], LIMITS) is None


def test_a_program_on_which_presolve_gives_up_is_solved_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As HiGHS 1.15.1 does: status "solve error", and no solution."""
    presolves: list[str] = []

    class GivesUp(highspy.Highs):
        def run(self) -> highspy.HighsStatus:
            presolves.append(str(self.getOptionValue("presolve")[1]))
            return super().run() if presolves[-1] == "off" else highspy.HighsStatus.kError

        def getModelStatus(self) -> highspy.HighsModelStatus:  # noqa: N802
            return super().getModelStatus() if presolves[-1] == "off" else highspy.HighsModelStatus.kSolveError

    monkeypatch.setattr(highspy, "Highs", GivesUp)
    model, cheap, dear = a_model()
    assert model.minimise([(cheap, 1), (dear, 10)], LIMITS) == [1, 0]
    assert presolves == ["choose", "off"]
