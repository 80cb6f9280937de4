"""The judge of conformance files: every situation is played by the production scheduler and compared.

Place in the flow: a file ─read─▶ situations ─**play**─▶ what became of every task ─compare─▶ a verdict each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from gpuyard.model.plan import Plan
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import Policy
from gpuyard.scenarios.corpus_cluster import policy_of
from gpuyard.scenarios.corpus_fairshare import judge_vector
from gpuyard.scenarios.corpus_format import Defaults, ExpectedTask, Kind, Outcome, Scenario
from gpuyard.scenarios.corpus_reader import read_corpus
from gpuyard.scenarios.corpus_world import lived_outcomes, planned_outcomes, played, snapshot_of
from gpuyard.scenarios.verdict import Verdict
from gpuyard.scheduler.cycle import schedule

Scheduler = Callable[[Snapshot, Policy], Plan]
Outcomes = dict[str, tuple[Outcome, str]]

PLACED = frozenset({Outcome.KEPT, Outcome.ALLOCATED, Outcome.PIPELINED, Outcome.MOVED})
"""Outcomes after which a task has a node that can be compared."""


def judge_corpus_file(path: Path, scheduler: Scheduler = schedule) -> Iterator[Verdict]:
    """Judge every situation of a file, in order. A file with a mistake is refused before anything is judged."""
    corpus = read_corpus(path)
    for scenario in corpus.scenarios:
        yield judge_scenario(scenario, corpus.defaults, scheduler)
    for vector in corpus.vectors:
        yield judge_vector(vector)


def judge_scenario(scenario: Scenario, defaults: Defaults, scheduler: Scheduler = schedule) -> Verdict:
    try:
        return _verdict(scenario, list(_play(scenario, defaults, scheduler)))
    except Exception as error:  # One situation that breaks the scheduler must not hide the verdicts on all others.
        return Verdict(scenario.id, False, (f"no plan: {type(error).__name__}: {error}",))


# ------------------------------------------------------------------------------------------------------------- play


def _play(scenario: Scenario, defaults: Defaults, scheduler: Scheduler) -> Iterator[tuple[str, Outcomes]]:
    """What became of every task at each moment that counts, with a word for that moment."""
    world = snapshot_of(scenario, defaults)
    policy = policy_of(scenario)
    if scenario.kind is Kind.SINGLE_CYCLE:
        yield "", planned_outcomes(world, scheduler(world, policy))
        return
    beginning = world
    ending_for_ever = {job.name for job in scenario.input.jobs if job.delete_in_test}
    for cycle in range(1, scenario.cycles_until_match + scenario.cycles_stable_after + 1):
        world = played(world, scheduler(world, policy), ending_for_ever)
        if cycle >= scenario.cycles_until_match:
            yield f"after cycle {cycle}: ", lived_outcomes(beginning, world)


# ---------------------------------------------------------------------------------------------------------- compare


def _verdict(scenario: Scenario, moments: list[tuple[str, Outcomes]]) -> Verdict:
    """Outcomes are reported for the first moment at which one is wrong, nodes for all of them."""
    wrong: tuple[str, ...] = ()
    nodes: dict[str, None] = {}
    for moment, outcomes in moments:
        wrong = wrong or tuple(moment + line for line in _outcome_mismatches(scenario, outcomes))
        nodes |= dict.fromkeys(_node_mismatches(scenario, outcomes))
    return Verdict(scenario.id, not wrong, wrong, tuple(nodes))


def _outcome_mismatches(scenario: Scenario, outcomes: Outcomes) -> Iterator[str]:
    for task, expected in scenario.expected.per_task.items():
        if task not in outcomes:
            yield f"{task}: expected {expected.outcome}, but the input has no such task"
        elif outcomes[task][0] is not expected.outcome:
            yield f"{task}: expected {expected.outcome}, got {outcomes[task][0]}{_lost_node(scenario, expected)}"


def _node_mismatches(scenario: Scenario, outcomes: Outcomes) -> Iterator[str]:
    for task, expected in scenario.expected.per_task.items():
        outcome, node = outcomes.get(task, (Outcome.PENDING, ""))
        comparable = expected.node and outcome is expected.outcome and outcome in PLACED
        if comparable and node != expected.node:
            yield f"{task}: expected on {expected.node}, got {node or 'no node'}{_lost_node(scenario, expected)}"


def _lost_node(scenario: Scenario, expected: ExpectedTask) -> str:
    if expected.node is None or expected.node in {node.name for node in scenario.input.nodes}:
        return ""
    return f" (expected on {expected.node}, which the input does not have)"
