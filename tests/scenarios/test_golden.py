"""The golden scenarios: one file a rule, readable as the specification of the planner."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from gpuyard.files.scenario import read_scenario
from gpuyard.scenarios.golden import judge_golden_file
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.verify import verify

GOLDEN: Final = Path(__file__).parent / "golden"
FILES: Final = sorted(GOLDEN.rglob("*.yaml"))
NAMES: Final = [path.relative_to(GOLDEN).with_suffix("").as_posix() for path in FILES]
FEWEST: Final = 200


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_the_rule_holds(path: Path) -> None:
    verdict = judge_golden_file(path)
    assert [*verdict.outcome_mismatches, *verdict.node_mismatches] == []


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_the_plan_holds_action_by_action(path: Path) -> None:
    scenario = read_scenario(path)
    verdicts = verify(schedule(scenario.snapshot, scenario.policy), scenario.snapshot)
    assert [verdict for verdict in verdicts if not verdict.holds] == []


def test_every_file_states_a_rule_of_its_own_in_a_sentence() -> None:
    rules = [read_scenario(path).rule for path in FILES]
    assert len(set(rules)) == len(rules) >= FEWEST
    assert [rule for rule in rules if not (rule[0].isupper() and rule.endswith("."))] == []
