"""Searching the history: what is asked for, and the statement that finds it by an index.

Place in the flow: `Store.history` ─Search─▶ **statement** ─▶ database. A million entries are kept, so no search may
read them all: each follows one index from the newest entry down, and stops at its limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from gpuyard.worlds.standalone.store.port import Entry
from gpuyard.worlds.standalone.store.session import Value

MAX_ARMS: Final = 50
"""More kinds or teams than this are looked up as a set, not one by one."""

MAX_RESULTS: Final = 10_000
END_OF_TIME_MS: Final = 2**63 - 1

COLUMNS: Final = "e.seq, e.at_ms, e.kind, e.body, e.actor, e.team, e.objects, e.checksum"


class Search(msgspec.Struct, frozen=True):
    """What an entry must be to be found; what is left out does not matter."""

    object: str = ""
    kinds: tuple[str, ...] = ()
    actor: str = ""
    teams: tuple[str, ...] | None = None
    since_ms: int = 0
    until_ms: int | None = None
    """The moment itself is no longer found."""
    before_seq: int | None = None
    limit: int = 100

    @property
    def finds_nothing(self) -> bool:
        return self.teams == () or self.limit <= 0

    @property
    def has_times(self) -> bool:
        return self.since_ms > 0 or self.until_ms is not None

    @property
    def end_ms(self) -> int:
        return END_OF_TIME_MS if self.until_ms is None else self.until_ms

    def matches(self, entry: Entry) -> bool:
        return (
            (not self.object or self.object in entry.objects)
            and (not self.kinds or entry.kind in self.kinds)
            and (not self.actor or self.actor == entry.actor)
            and (self.teams is None or entry.team in self.teams)
            and self.since_ms <= entry.at_ms < self.end_ms
            and (self.before_seq is None or entry.seq < self.before_seq)
        )


# The sum keeps PostgreSQL from walking the entries by their number until the first that is new enough.
TIMES_STATEMENT: Final = "SELECT min(seq + 0), max(seq + 0) FROM entries WHERE at_ms >= :since_ms AND at_ms < :end_ms"


class SeqRange(msgspec.Struct, frozen=True):
    """Both ends belong to it."""

    first: int
    last: int


def statement_of(search: Search, among: SeqRange, columns: str = COLUMNS) -> tuple[str, dict[str, Value]]:
    """One select for each value of the column that leads, each in the order of its index, merged at the end."""
    values: dict[str, Value] = {
        "first_seq": among.first,
        "last_seq": among.last,
        "since_ms": search.since_ms,
        "end_ms": search.end_ms,
        "limit": min(search.limit, MAX_RESULTS),
    }
    arms = list(_arms(search, values, columns))
    if len(arms) == 1:
        return arms[0], values
    merged = " UNION ALL ".join(f"SELECT * FROM ({arm}) AS arm_{number}" for number, arm in enumerate(arms))
    return f"SELECT * FROM ({merged}) AS merged ORDER BY 1 DESC LIMIT :limit", values


def _arms(search: Search, values: dict[str, Value], columns: str) -> Iterator[str]:
    """An object leads where one is given, because nothing leaves fewer entries."""
    kinds = _bind("kind", search.kinds, values)
    teams = None if search.teams is None else _bind("team", search.teams, values)
    conditions = []
    if search.has_times:
        conditions.append("e.at_ms >= :since_ms AND e.at_ms < :end_ms")
    if search.actor:
        values["actor"] = search.actor
        conditions.append("e.actor = :actor")
    if search.object:
        values["object"] = search.object
        rest = [*conditions, *_one_of("e.kind", kinds), *_one_of("e.team", teams)]
        source = "entry_objects AS o JOIN entries AS e ON e.seq = o.seq"
        yield _arm(columns, source, "o.seq", ["o.object = :object", *rest])
        return
    for leading in _leading(kinds, teams):
        yield _arm(columns, "entries AS e", "e.seq", [*leading, *conditions])


def _leading(kinds: list[str], teams: list[str] | None) -> Iterator[list[str]]:
    """Every team with every kind has an index, as long as there are few of them."""
    by_kind = [[f"e.kind = {kind}"] for kind in kinds] or [[]]
    by_team = [[f"e.team = {team}"] for team in teams or ()] or [[]]
    if len(by_kind) * len(by_team) <= MAX_ARMS:
        yield from ([*team, *kind] for team in by_team for kind in by_kind)
    else:
        yield [*_one_of("e.kind", kinds), *_one_of("e.team", teams)]


def _arm(columns: str, source: str, seq: str, conditions: list[str]) -> str:
    where = " AND ".join([f"{seq} BETWEEN :first_seq AND :last_seq", *conditions])
    return f"SELECT {columns} FROM {source} WHERE {where} ORDER BY {seq} DESC LIMIT :limit"


def _bind(name: str, given: tuple[str, ...], values: dict[str, Value]) -> list[str]:
    """A parameter for each, once."""
    names = []
    for number, value in enumerate(dict.fromkeys(given)):
        values[f"{name}_{number}"] = value
        names.append(f":{name}_{number}")
    return names


def _one_of(column: str, names: list[str] | None) -> list[str]:
    return [f"{column} IN ({', '.join(names)})"] if names else []
