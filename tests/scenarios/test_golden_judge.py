"""The judge of golden scenarios, with a scheduler that does as it is told."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuyard.files.scenario import GoldenScenario, read_scenario
from gpuyard.model.jobs import DeviceShare
from gpuyard.model.plan import Action, Bind, Evict, Move, Plan, Promise, Waiting
from gpuyard.model.reasons import Reason, Token
from gpuyard.scenarios.golden import judge_golden, judge_golden_file
from gpuyard.scenarios.verdict import Verdict

VALID = Path(__file__).parents[1] / "files" / "valid" / "scenario.yaml"
CLUSTER = """
rule: A rule.
nodes: 2
queues: {vision: 4, speech: 4}
running: [{job: old, team: vision, gpus: 3, gang: 2, on: node-1}]
pending: [{job: late, team: speech, gpus: 2, gang: 2}, {job: last, team: speech}]
"""
PLACED = Reason(Token.PLACED)
RECLAIMED = Reason(Token.RECLAIMED, beneficiary="late")

Judge = Callable[..., Verdict]


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    def judged(expect: str, *actions: Action, waiting: tuple[Waiting, ...] = ()) -> Verdict:
        path = tmp_path / "rule.yaml"
        path.write_text(f"{CLUSTER}expect: {expect}\n", encoding="utf-8")
        return judge_golden(read_scenario(path), "rule", lambda snapshot, policy: Plan(actions, waiting))

    return judged


def bind(task: int, node: str = "node-1") -> Bind:
    return Bind("late", f"late/{task}", node, (DeviceShare(6), DeviceShare(7)), PLACED)


def promise(task: int, node: str = "node-1") -> Promise:
    return Promise("late", f"late/{task}", node, (), PLACED)


def evict(task: int, reason: Reason = RECLAIMED) -> Evict:
    return Evict("old", f"old/{task}", "node-1", reason)


def waits(*reasons: Reason) -> tuple[Waiting, ...]:
    return (Waiting("speech", ("last",), reasons),)


@pytest.mark.parametrize(
    "expect",
    [
        "{placed: {late: node-1}}",
        "{placed: {late: {node-1: 2}}}",
        "{placed: {late: [node-1, node-1]}}",
        "{started: {late: anywhere}}",
    ],
)
def test_what_starts_as_expected_passes(judge: Judge, expect: str) -> None:
    assert judge(expect, bind(1), bind(2)) == Verdict("rule", True)


def test_a_promised_place_is_placed_but_not_started(judge: Judge) -> None:
    assert judge("{placed: {late: node-1}, promised: {late: node-1}}", promise(1), promise(2)).passed
    verdict = judge("{started: {late: node-1}}", promise(1))
    assert verdict.outcome_mismatches == ("late: expected to be started, but it is promised a place on node-1",)


def test_another_node_is_a_mismatch_of_its_own(judge: Judge) -> None:
    verdict = judge("{placed: {late: [node-1, node-2]}}", bind(1), bind(2))
    assert not verdict.passed
    assert verdict.outcome_mismatches == ()
    assert verdict.node_mismatches == ("late: expected on node-1, node-2, got node-1 x 2",)


def test_what_does_not_start_says_what_it_does_instead(judge: Judge) -> None:
    verdict = judge("{placed: {last: node-1}}", waiting=waits(Reason(Token.NOT_ENOUGH)))
    assert verdict.outcome_mismatches == ("last: expected to be placed, but it waits (NotEnough)",)


def test_what_is_not_mentioned_must_not_happen(judge: Judge) -> None:
    verdict = judge("{waiting: {last: null}}", bind(1), bind(2), evict(1), waiting=waits())
    assert verdict.outcome_mismatches == (
        "late: not mentioned, but it starts on node-1 x 2",
        "old: not mentioned, but it is evicted",
    )


@pytest.mark.parametrize(
    ("expect", "mismatch"),
    [
        ("NotEnough", ""),
        ("[NotEnough]", ""),
        ("null", ""),
        ("{reason: NotEnough, have: 0.5, need: 1, subject: x, never: false}", ""),
        ("Fragmented", "last: expected to wait for Fragmented, got NotEnough"),
        ("{reason: NotEnough, have: 1}", "last: NotEnough expected have 1, got 0.5"),
        ("{reason: NotEnough, need: 2Gi}", "last: NotEnough expected need 2Gi, got 1"),
        ("{reason: NotEnough, subject: y}", "last: NotEnough expected to be about y, got x"),
        ("{reason: NotEnough, never: true}", "last: NotEnough expected never: true, got false"),
    ],
)
def test_reasons_are_compared_as_far_as_they_are_given(judge: Judge, expect: str, mismatch: str) -> None:
    reason = Reason(Token.NOT_ENOUGH, "gpu", have=500, need=1000, subject="x")
    verdict = judge(f"{{waiting: {{last: {expect}}}}}", waiting=waits(reason))
    assert verdict.outcome_mismatches == ((mismatch,) if mismatch else ())


@pytest.mark.parametrize(
    ("resource", "have", "expected"),
    [("memory", 64 << 30, "64Gi"), ("cpu", 1500, "1.5"), ("tasks", 3, "3"), ("nic", 2, "2"), ("gpu/H100", 4000, "4")],
)
def test_amounts_are_compared_in_the_unit_of_their_resource(
    judge: Judge, resource: str, have: int, expected: str
) -> None:
    reason = Reason(Token.FRAGMENTED, resource, have=have)
    assert judge(f"{{waiting: {{last: {{reason: Fragmented, have: {expected}}}}}}}", waiting=waits(reason)).passed


def test_a_job_that_waits_must_not_get_a_place(judge: Judge) -> None:
    verdict = judge("{waiting: {late: null}}", bind(1))
    assert verdict.outcome_mismatches == ("late: expected to wait, but it starts on node-1",)


def test_evictions_are_compared_as_far_as_they_are_given(judge: Judge) -> None:
    expect = "{evicted: {old: {reason: Reclaimed, beneficiary: late, shortfall: 4}}, placed: {late: node-1}}"
    short = Reason(Token.RECLAIMED, "gpu", 6000, 4000, "vision", beneficiary="late", shortfall=4000)
    assert judge(expect, evict(1, short), evict(2, short), promise(1), promise(2)).passed


def test_a_shortfall_the_plan_does_not_tell_is_told(judge: Judge) -> None:
    verdict = judge("{evicted: {old: {reason: Reclaimed, shortfall: 4}}}", evict(1), evict(2))
    assert verdict.outcome_mismatches == ("old: its queue is 4 GPUs short, but the plan says 0",)


def test_the_order_of_actions_is_compared(judge: Judge) -> None:
    expect = "{{evicted: {{old: Reclaimed}}, promised: {{late: node-1}}, order: [{}]}}"
    actions = [evict(1), evict(2), promise(1), promise(2)]
    assert judge(expect.format("old, late"), *actions).passed
    verdict = judge(expect.format("late, old"), *actions)
    assert verdict.outcome_mismatches == ("expected the order late, old, got old, late",)


@pytest.mark.parametrize(
    ("expect", "actions", "mismatch"),
    [
        ("Reclaimed", [], "old: expected to be evicted, but it stays as it is"),
        ("Preempted", [evict(1), evict(2)], "old: expected to be evicted as Preempted, got Reclaimed"),
        (
            "{reason: Reclaimed, beneficiary: last}",
            [evict(1), evict(2)],
            "old: expected to give way to last, got late",
        ),
        ("Reclaimed", [evict(1)], "old: expected 2 tasks to be evicted, got 1"),
        (
            "{reason: Reclaimed, tasks: 1, shortfall: 0}",
            [evict(1, Reason(Token.RECLAIMED, shortfall=1000))],
            "old: expected its queue to be 0 GPUs short, got 1",
        ),
    ],
)
def test_a_wrong_eviction_is_told(judge: Judge, expect: str, actions: list[Action], mismatch: str) -> None:
    assert judge(f"{{evicted: {{old: {expect}}}}}", *actions).outcome_mismatches == (mismatch,)


def test_a_move_is_compared_by_where_it_goes(judge: Judge) -> None:
    moves = [Move("old", f"old/{task}", "node-1", "node-2", (), Reason(Token.MOVED)) for task in (1, 2)]
    assert judge("{moved: {old: node-2}}", *moves).passed
    assert judge("{moved: {old: node-1}}", *moves).node_mismatches == ("old: expected on node-1, got node-2 x 2",)


def test_a_file_that_cannot_be_read_fails_with_its_error(tmp_path: Path) -> None:
    path = tmp_path / "rule.yaml"
    path.write_text("rule: A rule.\n", encoding="utf-8")
    verdict = judge_golden_file(path)
    assert (verdict.id, verdict.passed) == (str(path), False)
    assert 'lacks "expect"' in verdict.outcome_mismatches[0]


def test_a_scheduler_that_breaks_fails_the_scenario() -> None:
    def broken(snapshot: object, policy: object) -> Plan:
        raise ZeroDivisionError("oops")

    scenario = read_scenario(VALID)
    assert judge_golden(scenario, "rule", broken).outcome_mismatches == ("no plan: ZeroDivisionError: oops",)


def test_a_scenario_in_all_its_details_can_be_read() -> None:
    scenario = read_scenario(VALID)
    assert isinstance(scenario, GoldenScenario)
    assert scenario.expectation.evicted[0].shortfall_milli == 4000
    assert scenario.expectation.placed[1].per_node == (("node-1", 2), ("node-2", 1))
    assert scenario.expectation.started[0].per_node == ()
