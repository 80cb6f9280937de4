"""Teams files: the tree of teams as it is to be, or some changed teams.

Place in the flow: body ─tree─▶ shape ─TeamsFileSpec─▶ **teams** ─TeamsFile─▶ a SetTeams intent. The queues are read as
those of cluster files are. Invariant: settings and members belong to queues without children.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from gpuyard.errors import InputError
from gpuyard.files.durations import read_duration
from gpuyard.files.format import MemberRole, TeamChangesFileSpec, TeamChangeSpec, TeamsFileSpec, TeamSpec
from gpuyard.files.place import Place
from gpuyard.files.queues import QueueTree, changed_queues, queue_entries, read_tree
from gpuyard.files.shape import shaped

NEW_TEAM: Final = "new: true"
SETTINGS: Final = ("idle_limit", "idle_percent", "unix_user", "members")


class TeamSettings(msgspec.Struct, frozen=True):
    """What a team has besides its quotas; None: not said."""

    idle_limit_ms: int | None = None
    idle_percent: int | None = None
    unix_user: str | None = None
    members: tuple[tuple[str, MemberRole], ...] | None = None


class TeamsFile(msgspec.Struct, frozen=True):
    """What a teams file says."""

    tree: QueueTree
    settings: dict[str, TeamSettings]
    """Of the teams that say any."""


def read_teams(place: Place) -> TeamsFile:
    """The whole tree."""
    spec = shaped(place, TeamsFileSpec, "teams")
    if not spec.queues:
        raise place.at("queues").error("no team is left", "name at least one: queues: {vision: {quota: 4}}")
    entries = queue_entries(spec.queues, None, place.at("queues"))
    tree = read_tree(entries)
    written = [(entry.name, entry.spec, entry.place) for entry in entries if isinstance(entry.spec, TeamSpec)]
    return TeamsFile(tree, _settings(written, tree))


def read_team_changes(place: Place, tree: QueueTree, busy: frozenset[str]) -> TeamsFile:
    """The tree after the changes; `busy` are the queues that hold jobs."""
    spec = shaped(place, TeamChangesFileSpec, "team-changes")
    here = place.at("queues")
    if not spec.queues:
        raise here.error("nothing changes", "write what does: queues: {vision: {quota: 8}}")
    for name, change in spec.queues.items():
        if change is None or change == TeamChangeSpec():
            what, fix = f'nothing about queue "{name}" changes', f"write what changes: {name}: {{quota: 8}}"
            raise InputError(what, where=here.at(name).where_key, fix=fix)
    changed = _changed_tree(spec, here, tree, busy)
    written = [(name, spec, here.at(name)) for name, spec in spec.queues.items() if isinstance(spec, TeamChangeSpec)]
    return TeamsFile(changed, _settings(written, changed))


def _settings(
    written: Iterable[tuple[str, TeamSpec | TeamChangeSpec, Place]], tree: QueueTree
) -> dict[str, TeamSettings]:
    leaves = frozenset(tree.leaves)
    found = {}
    for name, spec, place in written:
        given = [field for field in SETTINGS if getattr(spec, field) is not None]
        if given and name not in leaves:
            what, fix = (
                f'queue "{name}" has queues below it and says {given[0]}',
                "only teams, which hold jobs, have it",
            )
            raise InputError(what, where=place.at(given[0]).where_key, fix=fix)
        if given:
            found[name] = _team_settings(spec, place)
    return found


def _team_settings(spec: TeamSpec | TeamChangeSpec, place: Place) -> TeamSettings:
    return TeamSettings(
        idle_limit_ms=read_duration(spec.idle_limit, place.at("idle_limit")),
        idle_percent=spec.idle_percent,
        unix_user=spec.unix_user,
        members=None if spec.members is None else tuple(sorted(spec.members.items())),
    )


def _changed_tree(spec: TeamChangesFileSpec, place: Place, tree: QueueTree, busy: frozenset[str]) -> QueueTree:
    try:
        return changed_queues(spec.queues or {}, place, tree, busy)
    except InputError as error:
        if NEW_TEAM not in error.fix:
            raise
        fix = f"{error.fix}; on the command line: --new, or --replace where a file is the whole tree"
        raise InputError(error.what, where=error.where, fix=fix) from None
