"""VDK's query for lists of data jobs: GraphQL by its looks, of which its command line uses a small part.

    { jobs(pageNumber: 1, pageSize: 100, filter: [{ property: "config.team", pattern: "vision", sort: ASC }, ...])
      { content { jobName config { team ... } deployments { enabled ... } } } }

Place in the flow: query ─▶ **query** ─Query─▶ rest. Pure. A page, a team, and which fields are wanted are read off it;
the order is always by team and name.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gpuyard.errors import RefusedError
from gpuyard.service.problems import ProblemReason

MAX_PAGE_SIZE: Final = 1_000
DEFAULT_PAGE_SIZE: Final = 100
_NUMBER: Final = r"\b{name}\s*:\s*([0-9]{{1,9}})"
_PATTERN: Final = re.compile(r'property\s*:\s*"([\w.]+)"\s*,\s*pattern\s*:\s*"([^"]*)"')
_WORD: Final = re.compile(r"\w+")


class Query(msgspec.Struct, frozen=True):
    """What is asked for."""

    page: int
    """From 1."""
    size: int
    patterns: tuple[tuple[str, str], ...]
    """Property → what it must be."""
    fields: frozenset[str]

    def wants(self, field: str) -> bool:
        return field in self.fields

    def accepts(self, team: str, name: str) -> bool:
        known = {"config.team": team, "jobName": name}
        return all(known[property] == pattern for property, pattern in self.patterns if pattern)


def read_query(text: str) -> Query:
    patterns = tuple(_PATTERN.findall(text))
    unknown = next((property for property, _ in patterns if property not in ("config.team", "jobName")), None)
    page, size = _number(text, "pageNumber", 1), _number(text, "pageSize", DEFAULT_PAGE_SIZE)
    if unknown or not page or not 1 <= size <= MAX_PAGE_SIZE:
        what = f"the property {unknown} cannot be looked for" if unknown else f"page {page} of {size} makes no sense"
        fix = f"properties are config.team and jobName, a page has 1 to {MAX_PAGE_SIZE} jobs"
        raise RefusedError(ProblemReason.BAD_PARAMETER, what, fix=fix, field="query")
    return Query(page, size, patterns, frozenset(_WORD.findall(text)))


def _number(text: str, name: str, default: int) -> int:
    found = re.search(_NUMBER.format(name=name), text)
    return int(found.group(1)) if found else default
