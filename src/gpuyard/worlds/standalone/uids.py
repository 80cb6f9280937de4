"""The user numbers that jobs run under on the nodes: one for each submitting user, and none given twice.

Place in the flow: submitting ─▶ **uids** ─uid─▶ JobRecord ─desired─▶ RunAs ─▶ agent. Pure. A job keeps the number it
was submitted with, so its tasks have the same one on every node and after every restart.
Invariant: a number belongs to one user for good. A user who is removed and made again under the same name gets another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from gpuyard.errors import InputError, RefusedError, ServiceError

if TYPE_CHECKING:
    from gpuyard.worlds.standalone.records import JobRecord, State

MIN_UID: Final = 1_000
"""Numbers below belong to the system and its services."""
MAX_UID: Final = (1 << 32) - 3
"""The two numbers above mean "none" to the kernel and to some file systems."""
NOBODY: Final = (65_534, 65_535)
"""The first is everybody's who is not known, the second means "none" where numbers have 16 bits."""
MAX_UIDS: Final = 1_000_000
"""Numbers of one range."""
UIDS_APART: Final = 1_000
"""After a restore numbers go on so much higher: more users than first submitted since the backup."""
TEAM_UIDS: Final = 610_000
"""Before users had numbers, a team's jobs ran as this plus the team's number. Jobs that began so stay so."""


class UidRange(msgspec.Struct, frozen=True, gc=False):
    """Numbers from `first` to `last`; those from `next` on were never given."""

    first: int
    last: int
    next: int

    def holds(self, uid: int) -> bool:
        return self.first <= uid <= self.last

    def overlaps(self, first: int, last: int) -> bool:
        return first <= self.last and last >= self.first

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


DEFAULT_UIDS: Final = UidRange(2_100_000_000, 2_100_999_999, 2_100_000_000)
"""Beyond people, containers of systemd (to 1 879 048 191), sub-ids (to 600 100 000) and SSSD (to 2 000 200 000)."""


def read_uid_range(text: str, option: str) -> UidRange:
    """The range that an operator wrote as FIRST-LAST; InputError where it will not do."""
    found = re.fullmatch(r"([0-9]{1,10})-([0-9]{1,10})", text)
    if not found:
        raise InputError(f'{option} "{text[:40]}" is no range of user numbers', fix="write FIRST-LAST: 20000-29999")
    first, last = int(found[1]), int(found[2])
    problem = _problem(first, last)
    if problem:
        raise InputError(f"{option} {text}: {problem[0]}", fix=problem[1])
    return UidRange(first, last, first)


def _problem(first: int, last: int) -> tuple[str, str] | None:
    """What is wrong with a range, and what to do about it."""
    if first > last:
        return f"it begins at {first} and ends before, at {last}", "write the lower number first"
    if first < MIN_UID or last > MAX_UID:
        return f"user numbers for jobs lie between {MIN_UID} and {MAX_UID}", f"numbers below {MIN_UID} are the system's"
    if any(first <= number <= last for number in NOBODY):
        return f"{NOBODY[0]} and {NOBODY[1]} mean nobody", "end the range before them, or begin behind them"
    if last - first >= MAX_UIDS:
        return f"it holds {last - first + 1} numbers", f"{MAX_UIDS} at most"
    return None


def check_range(state: State, wanted: UidRange) -> None:
    """Whether the cluster may take its numbers from that range from now on; ServiceError where it may not."""
    teams = UidRange(TEAM_UIDS, TEAM_UIDS + state.next_team, 0)
    if teams.overlaps(wanted.first, wanted.last):
        what = f"the user numbers {wanted} overlap {teams}, under which the teams of this cluster have run jobs"
        raise ServiceError(what, fix="choose other numbers with --job-uids")
    for known in state.uid_ranges:
        if known.first == wanted.first and wanted.last >= known.next - 1:
            continue  # The same numbers, more or fewer of them.
        if known.next > known.first and known.overlaps(wanted.first, wanted.last):
            what = f"the user numbers {wanted} overlap {known}, of which {known.next - known.first} are given to users"
            same = f"begin at {known.first} and end at {known.next - 1} or later"
            fix = f"choose numbers beside these with --job-uids, or {same}"
            raise ServiceError(what, fix=fix)


def chosen(ranges: tuple[UidRange, ...], first: int, last: int, skip: int) -> tuple[UidRange, ...]:
    """The ranges, with that one as the current one: the last. What was given of it stays given."""
    former = next((known for known in ranges if known.first == first), None)
    others = tuple(known for known in ranges if known.first != first and known.next > known.first)
    return (*others, UidRange(first, last, former.next if former else min(first + skip, last + 1)))


def with_given(ranges: tuple[UidRange, ...], uid: int) -> tuple[UidRange, ...]:
    """The ranges, once that number is given."""
    if not any(known.holds(uid) and known.next <= uid for known in ranges):
        return ranges
    return tuple(replace(known, next=max(known.next, uid + 1)) if known.holds(uid) else known for known in ranges)


def skipped(ranges: tuple[UidRange, ...]) -> tuple[UidRange, ...]:
    """The ranges, beyond all that may have been given since a backup."""
    return tuple(replace(known, next=min(known.next + UIDS_APART, known.last + 1)) for known in ranges)


def uid_for(state: State, name: str) -> int:
    """The number of that user, or the one to give it; RefusedError where all are given."""
    given = state.uids.get(name)
    current = state.uid_ranges[-1]
    if given is not None:
        return given
    if current.next <= current.last:
        return current.next
    if _is_mapped(state, name):
        return 0
    what = f"all {current.last - current.first + 1} user numbers for jobs are given ({current})"
    fix = "an operator starts the manager with a wider range, --job-uids FIRST-LAST, or gives the user an account"
    raise RefusedError("UidsExhausted", what, fix=f"{fix}: gpuyard user set {name} --unix-user ACCOUNT")


def _is_mapped(state: State, name: str) -> bool:
    user = state.users.get(name)
    return bool(user and user.unix_user)


def unnumbered(state: State) -> Iterator[tuple[str, int]]:
    """Jobs of a database from before users had numbers, and the number of each.

    A job that has been on a node keeps its team's: its files there belong to that.
    """
    given, ranges = dict(state.uids), state.uid_ranges
    for job in state.jobs.values():
        if job.uid or job.over:
            continue
        if _has_begun(job):
            yield job.id, TEAM_UIDS + (state.teams[job.team].number if job.team in state.teams else 0)
            continue
        uid = given.get(job.user, ranges[-1].next)
        if ranges[-1].holds(uid) or job.user in given:
            given[job.user], ranges = uid, with_given(ranges, uid)
            yield job.id, uid


def _has_begun(job: JobRecord) -> bool:
    return job.attempts_before > 0 or any(task.attempt for task in job.tasks)
