"""The rules by example: room first, then the budget, then who makes room."""

from __future__ import annotations

import pytest

import gpuyard.vdk
from gpuyard.vdk import (
    Budget,
    DeviceRequirements,
    GpuResourceManager,
    JobUniqueIdentifier,
    Machine,
    NeverFitsError,
    NoArrangementError,
    NoAvailableBudgetException,
    TeamHasNoBudgetException,
)
from tests.vdk.pools import a_pool, ask, job, start, told

# ---------------------------------------------------------------------------------------------------- room, and budget


def test_a_team_may_take_what_is_free_beyond_its_budget() -> None:
    pool = a_pool(2, a=0)
    assert told(ask(pool, "a/x", 1)) == ["create a/x m1:0"]


def test_a_job_goes_where_it_fits_most_tightly() -> None:
    pool = a_pool(4, 4, a=8)
    start(pool, "a/x", 3)
    assert told(ask(pool, "a/y", 1)) == ["create a/y m1:3"]
    assert told(ask(pool, "a/z", 0.5)) == ["create a/z m2:0"]
    assert told(ask(pool, "a/u", 0.25)) == ["create a/u m2:0"]
    assert told(ask(pool, "a/v", 1.25)) == ["create a/v m2:1,0"]


def test_no_budget_and_nowhere_free_is_the_seeds_exception_by_both_names() -> None:
    pool = a_pool(1, a=1)
    start(pool, "a/x", 1)
    with pytest.raises(NoAvailableBudgetException) as refused:
        ask(pool, "a/y", 0.5)
    assert NoAvailableBudgetException is TeamHasNoBudgetException is gpuyard.vdk.TeamHasNoBudgetException
    for words in ('team "a" has no budget', "asks for 0.5", "uses 1 of its budget of 1", "0 are free"):
        assert words in str(refused.value)


def test_budget_without_an_arrangement_is_another_error_that_explains_itself() -> None:
    pool = a_pool(1, a=1, b=1)
    start(pool, "a/x", 1)
    with pytest.raises(NoArrangementError) as refused:
        ask(pool, "b/y", 0.5)
    assert not isinstance(refused.value, NoAvailableBudgetException)
    for words in ('team "b" has budget', "no arrangement", "the budgets add up to 2, the machines to 1"):
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("amount", "error"), [(2, NeverFitsError), (2.5, NoAvailableBudgetException), (1000, NoAvailableBudgetException)]
)
def test_what_no_machine_can_hold_is_no_budget_where_there_is_none_and_never_fits_where_there_is(
    amount: float, error: type[Exception]
) -> None:
    pool = a_pool(1, 1, 1, a=2)
    with pytest.raises(error):
        ask(pool, "a/x", amount)


def test_without_machines_a_team_has_budget_or_not_all_the_same() -> None:
    pool = a_pool(a=1)
    with pytest.raises(NeverFitsError, match="there are no machines"):
        ask(pool, "a/x", 1)
    with pytest.raises(NoAvailableBudgetException, match="no machine has gpu"):
        ask(pool, "a/x", 2)


# ----------------------------------------------------------------------------------------------------------- deletions


def test_a_team_within_its_budget_gets_it_from_one_that_is_over() -> None:
    pool = a_pool(2, a=1, b=1)
    start(pool, "a/x", 1)
    start(pool, "a/y", 1)
    assert told(ask(pool, "b/z", 1)) == ["delete a/x", "create b/z m1:0"]


def test_deleting_stops_as_soon_as_the_team_is_within_its_budget() -> None:
    pool = a_pool(4, a=2, b=2)
    for name in ("a/x", "a/y", "a/z", "b/own"):
        start(pool, name, 1)
    with pytest.raises(NoAvailableBudgetException):
        ask(pool, "b/two", 2)
    pool.set_budget(Budget("b", 3000))
    with pytest.raises(NoArrangementError):
        ask(pool, "b/two", 2)
    assert told(ask(pool, "b/one", 1)) == ["delete a/x", "create b/one m1:0"]


def test_the_last_job_deleted_may_take_its_team_below_its_budget() -> None:
    pool = a_pool(4, a=3, b=1)
    start(pool, "a/large", 4)
    assert told(ask(pool, "b/z", 1)) == ["delete a/large", "create b/z m1:0"]


def test_but_by_as_little_as_possible() -> None:
    pool = a_pool(4, a="3.5", b=1)
    start(pool, "a/large", 3)
    start(pool, "a/small", 1)
    assert told(ask(pool, "b/z", 1)) == ["delete a/small", "create b/z m1:3"]


def test_a_job_with_priority_is_never_deleted() -> None:
    pool = a_pool(2, a=0, b=2)
    start(pool, "a/x", 1, priority=True)
    start(pool, "a/y", 1)
    assert told(ask(pool, "b/u", 1)) == ["delete a/y", "create b/u m1:1"]
    with pytest.raises(NoArrangementError, match="1 with priority may not be deleted"):
        ask(pool, "b/v", 1)
    pool.mark_job_priority(job("a/x"), False)
    assert told(ask(pool, "b/v", 1)) == ["delete a/x", "create b/v m1:0"]


def test_jobs_of_a_team_within_its_budget_are_not_deleted() -> None:
    pool = a_pool(1, a=1, b=1)
    start(pool, "a/x", 1)
    with pytest.raises(NoArrangementError):
        ask(pool, "b/y", 1)


# --------------------------------------------------------------------------------------------------------------- moves


def fragmented(**flags: bool) -> GpuResourceManager:
    """Two machines of two devices with one device free on each."""
    pool = a_pool(2, 2, a=4, b=2)
    start(pool, "a/x", 1, **flags)
    start(pool, "a/y", 1)
    start(pool, "a/z", 1, **flags)
    pool.job_ended(job("a/y"))
    return pool


def test_others_are_moved_together_for_a_team_within_its_budget() -> None:
    assert told(ask(fragmented(), "b/wide", 2)) == ["move a/x m1:0 > m2:1", "create b/wide m1:0,1"]


def test_a_move_is_cheaper_than_a_deletion() -> None:
    pool = fragmented()
    pool.set_budget(Budget("a", 0))
    assert told(ask(pool, "b/wide", 2)) == ["move a/x m1:0 > m2:1", "create b/wide m1:0,1"]


def test_nothing_is_moved_for_a_team_over_its_budget() -> None:
    pool = fragmented()
    pool.set_budget(Budget("b", 1999))
    with pytest.raises(NoAvailableBudgetException, match="2 are free, at most 1 of 2 on one machine"):
        ask(pool, "b/wide", 2)


def test_a_job_with_priority_is_moved_only_if_it_can_be_checkpointed() -> None:
    with pytest.raises(NoArrangementError):
        ask(fragmented(priority=True), "b/wide", 2)
    actions = ask(fragmented(priority=True, checkpointable=True), "b/wide", 2)
    assert told(actions) == ["move a/x m1:0 > m2:1", "create b/wide m1:0,1"]


@pytest.mark.parametrize(
    ("portability", "expected"),
    [
        ("0.9", ["move a/p m2:0 > m3:0", "move a/q m2:0 > m3:0", "create b/new m2:0"]),
        ("1", ["move a/p m2:0 > m3:0", "move a/q m2:0 > m3:0", "create b/new m2:0"]),
        ("0.4", ["delete a/whole", "create b/new m1:0"]),
    ],
)
def test_how_much_is_moved_instead_of_deleted_is_a_question_of_portability(
    portability: str, expected: list[str]
) -> None:
    pool = GpuResourceManager(job_portability=portability)
    for name in ("m1", "m2", "m3"):
        pool.set_machine(Machine(name, 1))
    for team, milli in (("a", 1000), ("b", 1000), ("c", 400)):
        pool.set_budget(Budget(team, milli))
    start(pool, "a/whole", 1)
    start(pool, "a/p", 0.3)
    start(pool, "a/q", 0.3)
    start(pool, "c/beside", 0.4)
    start(pool, "c/stays", 0.4, priority=True)
    pool.job_ended(job("c/beside"))
    assert told(ask(pool, "b/new", 1)) == expected


def test_moves_stay_on_machines_of_their_type() -> None:
    pool = GpuResourceManager()
    pool.set_machine(Machine("old", 1, "t4"))
    pool.set_machine(Machine("new", 2, "a100"))
    for team in ("a", "b"):
        pool.set_budget(Budget(team, 2000, "a100"))
    pool.try_provision_resources(job("a/x"), DeviceRequirements(1000, "a100"))
    with pytest.raises(NoArrangementError):
        pool.try_provision_resources(job("b/y"), DeviceRequirements(2000, "a100"))


# ----------------------------------------------------------------------------------------------- amounts, alternatives


def test_ten_tenths_fit_on_one_device_and_three_times_six_tenths_not_on_two() -> None:
    pool = a_pool(1, a=1)
    for number in range(10):
        assert told(ask(pool, f"a/{number}", 0.1)) == [f"create a/{number} m1:0"]
    with pytest.raises(NoAvailableBudgetException):
        ask(pool, "a/more", 0.001)
    pool = a_pool(2, a=2)
    ask(pool, "a/1", 0.6)
    ask(pool, "a/2", 0.6)
    with pytest.raises(NoArrangementError):
        ask(pool, "a/3", 0.6)


def two_types() -> GpuResourceManager:
    pool = GpuResourceManager()
    pool.set_machine(Machine("slow", 2, "t4"))
    pool.set_machine(Machine("fast", 1, "a100"))
    for team in ("a", "b"):
        pool.set_budget(Budget(team, 1000, "a100"))
        pool.set_budget(Budget(team, 2000, "t4"))
    return pool


WISHES = [DeviceRequirements(1000, "a100"), DeviceRequirements(2000, "t4")]


def test_alternatives_are_tried_in_the_order_of_preference() -> None:
    pool = two_types()
    assert told(pool.try_provision_resources(job("a/x"), WISHES)) == ["create a/x fast:0"]
    assert told(pool.try_provision_resources(job("a/y"), WISHES)) == ["create a/y slow:0,1"]
    with pytest.raises(NoAvailableBudgetException, match=r"1 a100.*2 t4"):
        pool.try_provision_resources(job("a/z"), WISHES)


def test_room_for_the_second_choice_is_better_than_a_reshuffle_for_the_first() -> None:
    pool = two_types()
    pool.set_budget(Budget("a", 0, "a100"))
    pool.try_provision_resources(job("a/x"), WISHES)
    assert told(pool.try_provision_resources(job("b/y"), WISHES)) == ["create b/y slow:0,1"]
    assert told(pool.try_provision_resources(job("b/z"), WISHES)) == ["delete a/x", "create b/z fast:0"]


def test_an_amount_alone_may_be_of_any_type_in_the_order_of_their_names() -> None:
    pool = two_types()
    assert told(ask(pool, "a/x", 1)) == ["create a/x fast:0"]
    assert told(ask(pool, "a/y", 1)) == ["create a/y slow:0"]


def test_budgets_are_by_type() -> None:
    pool = two_types()
    pool.try_provision_resources(job("a/x"), DeviceRequirements(1000, "a100"))
    with pytest.raises(NoAvailableBudgetException, match="uses 1 of its budget of 1"):
        pool.try_provision_resources(job("a/y"), DeviceRequirements(1000, "a100"))


def test_jobs_of_the_same_name_in_different_teams_are_different() -> None:
    pool = a_pool(2, a=1, b=1)
    for team in ("a", "b"):
        pool.try_provision_resources(JobUniqueIdentifier(job="train", team=team), 1.0)
    assert [view.id.unique_id for view in pool.jobs()] == ["a____train", "b____train"]
