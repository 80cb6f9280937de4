"""User numbers of jobs: one for each submitting user, none given twice, whatever happens to users and ranges."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.errors import InputError, RefusedError, ServiceError
from gpuyard.model.work import Array, Work
from gpuyard.service.clock import Clock
from gpuyard.service.core import Core
from gpuyard.wire.agents import RunAs
from gpuyard.worlds.standalone.desired import run_as
from gpuyard.worlds.standalone.events import Restored, UidRangeSet
from gpuyard.worlds.standalone.intents import RemoveUser, SetUser, Submission, Submit
from gpuyard.worlds.standalone.journal import Journal, load
from gpuyard.worlds.standalone.store.memory import MemoryDisk, MemoryStore
from gpuyard.worlds.standalone.uids import DEFAULT_UIDS, TEAM_UIDS, UidRange, check_range, read_uid_range
from tests.worlds.standalone.yard import BEGIN_MS, Yard, a_form

FIRST = DEFAULT_UIDS.first


def submit(yard: Yard, user: str, team: str = "vision") -> int:
    """The number of a new job of that user."""
    id = str(yard.state.next_job)
    yard.do(Submit(Submission("job", user, a_form(team), Work(("train",)))))
    return yard.job(id).uid


# ------------------------------------------------------------------------------------------------------------- ranges


@pytest.mark.parametrize("text", ["1000-1000", "20000-29999", "4294967293-4294967293", "2100000000-2100999999"])
def test_a_range_is_read(text: str) -> None:
    found = read_uid_range(text, "--job-uids")
    assert (str(found), found.next) == (text, found.first)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no range"),
        ("20000", "is no range"),
        ("a-b", "is no range"),
        ("-1-5", "is no range"),
        ("20000-99999999999", "is no range"),
        ("٢٠٠٠٠-٢٠٠٠١", "is no range"),
        ("29999-20000", "ends before"),
        ("999-20000", "between 1000 and"),
        ("0-5", "between 1000 and"),
        ("4294967000-4294967294", "between 1000 and"),
        ("60000-70000", "mean nobody"),
        ("65535-65535", "mean nobody"),
        ("100000-1100000", "holds 1000001 numbers"),
    ],
)
def test_a_range_that_will_not_do_is_refused_with_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as found:
        read_uid_range(text, "--job-uids")
    assert found.value.fix


def test_another_range_must_not_hold_numbers_that_are_given() -> None:
    yard = Yard()
    submit(yard, "ada")
    for bad in (UidRange(FIRST - 5, FIRST + 5, 0), UidRange(FIRST + 1, FIRST + 9, 0), UidRange(610_001, 610_009, 0)):
        with pytest.raises(ServiceError, match="overlap"):
            check_range(yard.state, bad)
    for good in (UidRange(20_000, 20_009, 0), UidRange(FIRST, FIRST, 0), UidRange(FIRST, FIRST + 9, 0)):
        check_range(yard.state, good)
    submit(yard, "bob")
    with pytest.raises(ServiceError, match="of which 2 are given"):
        check_range(yard.state, UidRange(FIRST, FIRST, 0))


def test_a_range_that_nobody_has_a_number_of_may_be_replaced_by_any() -> None:
    check_range(Yard().state, UidRange(FIRST + 5, FIRST + 9, 0))


# -------------------------------------------------------------------------------------------------------------- users


def test_every_user_has_a_number_whatever_the_team_and_keeps_it() -> None:
    yard = Yard()
    assert [submit(yard, "ada"), submit(yard, "bob"), submit(yard, "ada", "speech")] == [FIRST, FIRST + 1, FIRST]


def test_all_elements_of_an_array_have_the_number_of_their_user() -> None:
    yard = Yard()
    submit(yard, "bob")
    id = yard.submit(array=Array((0, 1, 2)))
    assert {yard.job(f"{id}_{index}").uid for index in range(3)} == {FIRST + 1}


def test_a_user_of_the_same_name_as_one_who_was_removed_gets_another_number() -> None:
    yard = Yard()
    yard.do(SetUser("ada", ()))
    first = submit(yard, "ada")
    yard.do(RemoveUser("ada"))
    yard.do(SetUser("ada", ()))
    assert submit(yard, "ada") == first + 1
    assert yard.job("1").uid == first


def test_an_account_of_the_user_goes_before_one_of_the_team_and_the_number_stays_its_own() -> None:
    yard = Yard()
    uid = submit(yard, "ada")
    assert run_as(yard.state, yard.job("1")) == RunAs(uid=uid)
    yard.do(SetUser("ada", (), "ada"))
    assert run_as(yard.state, yard.job("1")) == RunAs("ada", uid)


def test_after_a_restore_no_number_is_given_that_may_have_been() -> None:
    yard = Yard()
    submit(yard, "ada")
    yard.enter(Restored())
    assert submit(yard, "bob") == FIRST + 1_001
    assert submit(yard, "ada") == FIRST


def test_a_range_that_a_restore_may_have_lost_begins_beyond_what_it_may_have_given() -> None:
    """It was chosen after the backup, so the state that was put back does not know it."""
    yard = Yard()
    yard.enter(Restored(), UidRangeSet(20_000, 29_999))
    assert submit(yard, "ada") == 21_000


def test_when_all_numbers_are_given_only_users_with_a_number_or_an_account_submit() -> None:
    yard = Yard()
    yard.enter(UidRangeSet(20_000, 20_001))
    assert [submit(yard, "ada"), submit(yard, "bob")] == [20_000, 20_001]
    with pytest.raises(RefusedError, match="all 2 user numbers") as found:
        submit(yard, "cleo")
    assert (found.value.reason, "--job-uids" in found.value.fix) == ("UidsExhausted", True)
    assert submit(yard, "ada") == 20_000
    yard.do(SetUser("cleo", (), "cleo"))
    assert submit(yard, "cleo") == 0
    yard.enter(UidRangeSet(20_000, 20_002))
    yard.do(SetUser("cleo", ()))
    assert submit(yard, "cleo") == 20_002


def test_a_range_that_was_left_goes_on_where_it_was() -> None:
    yard = Yard()
    submit(yard, "ada")
    yard.enter(UidRangeSet(20_000, 20_009))
    assert [submit(yard, "ada"), submit(yard, "bob")] == [FIRST, 20_000]
    yard.enter(UidRangeSet(FIRST, FIRST + 9))
    assert submit(yard, "cleo") == FIRST + 1


STEP = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from("abcdef")),
    st.tuples(st.just("remove"), st.sampled_from("abcdef")),
    st.tuples(st.just("restore"), st.just("")),
    st.tuples(st.just("range"), st.sampled_from(("20000-20003", "20000-23000", "30000-39999", "25000-32000"))),
)


@given(st.lists(STEP, max_size=40))
def test_no_number_is_ever_that_of_two_users(steps: list[tuple[str, str]]) -> None:
    yard, owners, lives = Yard(), dict[int, str](), dict[str, int]()
    for what, name in steps:
        if what == "submit":
            try:
                uid = submit(yard, name)
            except RefusedError:
                continue
            life = f"{name}{lives.get(name, 0)}"
            assert owners.setdefault(uid, life) == life
        elif what == "remove":
            yard.do(SetUser(name, ()))
            yard.do(RemoveUser(name))
            lives[name] = lives.get(name, 0) + 1
        elif what == "restore":
            yard.enter(Restored())
        else:
            wanted = read_uid_range(name, "--job-uids")
            try:
                check_range(yard.state, wanted)
            except ServiceError:
                continue
            yard.enter(UidRangeSet(wanted.first, wanted.last))


# ------------------------------------------------------------------------------------------- databases from before that


def as_before(yard: Yard) -> MemoryStore:
    """The log as it was written before users had numbers."""
    store = MemoryStore(MemoryDisk())
    store.open()
    entries = []
    for entry in yard.journal.take_pending():
        body = json.loads(entry.body)
        body.get("job", {}).pop("uid", None) if isinstance(body.get("job"), dict) else None
        entries.append(replace(entry, body=json.dumps(body).encode()))
    store.append(entries)
    return store


def opened(store: MemoryStore, uids: UidRange | None = None) -> Journal:
    journal = load(store)
    Core(journal, Clock(lambda: BEGIN_MS, lambda: 0), uids=uids)
    return journal


def test_jobs_from_before_get_numbers_and_those_that_have_run_keep_their_teams() -> None:
    yard = Yard()
    for user in ("bob", "ada", "cleo"):
        submit(yard, user)
    yard.run("2")
    store = as_before(yard)
    journal = opened(store)
    assert [journal.state.jobs[id].uid for id in "123"] == [FIRST, TEAM_UIDS + 1, FIRST + 1]
    assert journal.state.uids == {"bob": FIRST, "cleo": FIRST + 1}
    again = opened(store)
    assert again.state.uids == journal.state.uids


def test_what_was_numbered_once_stays_so_at_the_next_start() -> None:
    yard = Yard()
    submit(yard, "bob")
    submit(yard, "ada")
    store = as_before(yard)
    journal = opened(store)
    store.append(journal.take_pending())
    assert opened(store).state.uids == {"bob": FIRST, "ada": FIRST + 1}
    assert not [entry for entry in opened(store).pending if entry.kind == "job-numbered"]


def test_a_range_named_at_the_first_start_is_that_of_the_jobs_from_before() -> None:
    yard = Yard()
    submit(yard, "bob")
    journal = opened(as_before(yard), UidRange(20_000, 20_009, 20_000))
    assert journal.state.jobs["1"].uid == 20_000


def test_a_range_that_overlaps_keeps_the_manager_from_starting() -> None:
    yard = Yard()
    submit(yard, "bob")
    store = MemoryStore(MemoryDisk())
    store.open()
    store.append(yard.journal.take_pending())
    with pytest.raises(ServiceError, match="are given to users"):
        opened(store, UidRange(FIRST - 1, FIRST + 9, FIRST - 1))
