"""An explicit PodGroup as the tree of groups it describes.

Place in the flow: PodGroup ─**podgroups**─▶ grouping. A subgroup with others below it is a group of groups and has
`minSubGroup`; one without holds pods and has `minMember`. Invariant: a spec that contradicts itself is one plain gang,
so that its pods still start together, and a note says what is wrong with it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from gpuyard.model.jobs import MAX_GROUP_DEPTH, MAX_TASKS_PER_JOB, TaskGroup, TopologyRule
from gpuyard.worlds.kubernetes.notes import Note
from gpuyard.worlds.kubernetes.objects import KaiTopology, PodGroupSpec, TopologyConstraint
from gpuyard.worlds.kubernetes.topologies import NO_TOPOLOGIES, Topologies, topology_rule

MAX_SUBGROUPS: Final = 10_000


class PodGroupShape(msgspec.Struct, frozen=True, gc=False):
    """What a PodGroup makes of its pods."""

    group: TaskGroup
    """The root is named '', and is itself the leaf where there are no subgroups."""
    leaves: frozenset[str] = frozenset({""})
    """Subgroups that hold pods."""
    notes: tuple[Note, ...] = ()
    """What of the spec is not applied."""
    shortfall: str = ""
    """Why it can never be complete; empty: it can."""

    def leaf(self, subgroup: str) -> str | None:
        """The leaf of a pod that names this subgroup; None where there is none."""
        if self.group.leaf:
            return ""
        name = subgroup.lower()
        return name if name in self.leaves else None


class _Part(NamedTuple):
    """A subgroup, its names in lower case and its rule made out."""

    name: str
    parent: str
    min_tasks: int | None
    min_groups: int | None
    topology: TopologyRule | None


class _Whole(NamedTuple):
    """A spec as something to look up: groups that are alike share one tree, which the core compares often."""

    min_tasks: int | None
    min_groups: int | None
    topology: TopologyRule | None
    parts: tuple[_Part, ...]


def tree_of(spec: PodGroupSpec, topologies: Topologies = NO_TOPOLOGIES) -> TaskGroup:
    """The groups of a PodGroup."""
    return shape_of(spec, topologies).group


class _LastAsked:
    """The spec that was asked about last: all pods of a large group ask, one after the other."""

    def __init__(self) -> None:
        self._spec: PodGroupSpec | None = None
        self._topologies: tuple[KaiTopology, ...] = ()
        self._shape = PodGroupShape(TaskGroup())

    def shape(self, spec: PodGroupSpec, topologies: Topologies) -> PodGroupShape:
        around = tuple(topologies.values())
        if spec is not self._spec or around != self._topologies:
            self._shape = _shape(_whole(spec, topologies))
            self._spec, self._topologies = spec, around
        return self._shape


_LAST_ASKED: Final = _LastAsked()


def shape_of(spec: PodGroupSpec, topologies: Topologies = NO_TOPOLOGIES) -> PodGroupShape:
    """All that follows from the spec of a PodGroup."""
    return _LAST_ASKED.shape(spec, topologies)


def _whole(spec: PodGroupSpec, topologies: Topologies) -> _Whole:
    parts = tuple(
        _Part(
            one.name.lower(),
            (one.parent or "").lower(),
            _count(one.min_member),
            _count(one.min_sub_group),
            _rule(one.topology_constraint, topologies),
        )
        for one in spec.sub_groups or ()
    )
    root = _rule(spec.topology_constraint, topologies)
    return _Whole(_count(spec.min_member), _count(spec.min_sub_group), root, parts)


def _count(value: int | None) -> int | None:
    return None if value is None else max(0, min(value, MAX_TASKS_PER_JOB))


def _rule(constraint: TopologyConstraint | None, topologies: Topologies) -> TopologyRule | None:
    if constraint is None:
        return None
    levels = constraint.required_topology_level, constraint.preferred_topology_level
    return topology_rule(constraint.topology, *levels, topologies)


@lru_cache(maxsize=2048)
def _shape(whole: _Whole) -> PodGroupShape:
    problem = next(_problems(whole), None)
    if problem is not None:
        note = Note("BadPodGroup", f"{problem}; until then all its pods are one plain gang")
        return PodGroupShape(_plain(whole), notes=(note,))
    if not whole.parts:
        return PodGroupShape(_plain(whole))
    inner = {part.parent for part in whole.parts}
    return PodGroupShape(
        _nested(whole),
        leaves=frozenset(part.name for part in whole.parts) - inner,
        notes=tuple(_ignored(whole, inner)),
        shortfall=_shortfall(whole),
    )


# ---------------------------------------------------------------------------------------------------- what is wrong


def _problems(whole: _Whole) -> Iterator[str]:
    """Contradictions, the coarsest first."""
    if whole.min_tasks is not None and whole.min_groups is not None:
        yield "minMember and minSubGroup are both set; keep minSubGroup where there are subGroups, else minMember"
    if len(whole.parts) > MAX_SUBGROUPS:
        yield f"there are {len(whole.parts)} subGroups, more than {MAX_SUBGROUPS}"
    for name, count in Counter(part.name for part in whole.parts).items():
        if not name:
            yield "a subGroup has no name"
        elif count > 1:
            yield f'two subGroups are named "{name}"; rename one'
    for part in whole.parts:
        if part.min_tasks is not None and part.min_groups is not None:
            yield f'subGroup "{part.name}" has both minMember and minSubGroup; remove one'
    yield from _no_tree(whole.parts)


def _no_tree(parts: tuple[_Part, ...]) -> Iterator[str]:
    names = {part.name for part in parts}
    below: defaultdict[str, list[str]] = defaultdict(list)
    for part in parts:
        if part.parent and part.parent not in names:
            yield f'the parent "{part.parent}" of subGroup "{part.name}" does not exist; add it, or name another'
        below[part.parent].append(part.name)
    reached, level = 0, below[""]
    # The root is a level, too.
    for _ in range(MAX_GROUP_DEPTH - 1):
        reached += len(level)
        level = [child for name in level for child in below[name]]
    if level:
        yield f"subGroups are nested more than {MAX_GROUP_DEPTH - 1} deep; flatten them"
    elif reached < len(names):
        yield "some subGroups are above themselves; give one of them another parent"


def _ignored(whole: _Whole, inner: set[str]) -> Iterator[Note]:
    holds_groups = [part for part in whole.parts if part.name in inner]
    holds_pods = [part for part in whole.parts if part.name not in inner]
    misplaced = [f"minMember of {part.name}" for part in holds_groups if part.min_tasks is not None]
    misplaced += [f"minSubGroup of {part.name}" for part in holds_pods if part.min_groups is not None]
    if misplaced:
        rule = "minMember is for subGroups with none below them, minSubGroup for the others"
        yield Note("MinimumIgnored", f"not applied: {', '.join(misplaced)}; {rule}")


def _shortfall(whole: _Whole) -> str:
    below = Counter(part.parent for part in whole.parts)
    for name, minimum in [("", whole.min_groups), *((part.name, part.min_groups) for part in whole.parts)]:
        if minimum is not None and below[name] and minimum > below[name]:
            whose = f'subGroup "{name}"' if name else "the PodGroup"
            return f"minSubGroup of {whose} is {minimum}, and it has {below[name]} subGroups"
    return ""


# ------------------------------------------------------------------------------------------------------------- trees


def _plain(whole: _Whole) -> TaskGroup:
    in_all = sum(part.min_tasks or 0 for part in whole.parts)
    minimum = in_all if whole.min_tasks is None else whole.min_tasks
    return TaskGroup(min_tasks=max(1, min(minimum, MAX_TASKS_PER_JOB)), topology=whole.topology)


def _nested(whole: _Whole) -> TaskGroup:
    below: defaultdict[str, list[_Part]] = defaultdict(list)
    for part in whole.parts:
        below[part.parent].append(part)

    def built(part: _Part) -> TaskGroup:
        if part.name not in below:
            minimum = 1 if part.min_tasks is None else part.min_tasks
            return TaskGroup(part.name, min_tasks=minimum, topology=part.topology)
        children = tuple(map(built, below[part.name]))
        return TaskGroup(part.name, min_groups=part.min_groups, children=children, topology=part.topology)

    return TaskGroup(min_groups=whole.min_groups, children=tuple(map(built, below[""])), topology=whole.topology)
