"""Who may do what: roles, how far each reaches, and the scopes of tokens.

Place in the flow: operations.py names one permission per operation; the router asks `reach_of` for every request, and
the tests walk the same table cell by cell. Nothing else decides about access.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

EVERYWHERE: Final = "*"
"""In a grant: all teams."""


class Role(enum.StrEnum):
    """What a person is in a team, or (admin, operator) in the cluster."""

    ADMIN = "admin"
    OPERATOR = "operator"
    LEAD = "lead"
    MEMBER = "member"
    VIEWER = "viewer"


CLUSTER_ROLES: Final = frozenset({Role.ADMIN, Role.OPERATOR})
"""Granted for the whole cluster only."""


class Reach(enum.IntEnum):
    """How far a permission reaches: from nothing, over one's own jobs and one's team's, to everything."""

    NONE = 0
    OWN = 1
    TEAM = 2
    ALL = 3


class Permission(enum.StrEnum):
    """Kinds of operations that are allowed together."""

    SEE_CLUSTER = "see-cluster"
    """Nodes, devices, the tree of teams with its numbers: no jobs."""
    SEE_JOBS = "see-jobs"
    """Jobs, their explanations, events and use."""
    SEE_SECRETS = "see-secrets"
    """Command, variables, working directory and logs of a job."""
    SUBMIT = "submit"
    STEER_JOBS = "steer-jobs"
    """Cancel, hold, release, suspend, resume, requeue, scale."""
    RAISE_PRIORITY = "raise-priority"
    """Priorities above the default, jobs that may not be preempted, jobs of the pool that may not be deleted."""
    SET_MEMBERS = "set-members"
    SET_TEAMS = "set-teams"
    RUN_NODES = "run-nodes"
    """Drain, resume, label, remove, declare lost, admit."""
    SET_USERS = "set-users"
    """Users and other people's tokens."""
    OWN_TOKENS = "own-tokens"
    READ_AUDIT = "read-audit"
    SCRAPE = "scrape"
    JOIN = "join"
    """Let one machine join; only with a token made for it."""
    SEE_POOL = "see-pool"
    """The pool: machines, and of one's teams the budgets, jobs, plans and quotes."""
    USE_POOL = "use-pool"
    """Ask for places in the pool, confirm what was done, end jobs."""
    SET_POOL = "set-pool"
    """Machines and budgets of the pool."""


_ALL, _TEAM, _OWN, _NONE = Reach.ALL, Reach.TEAM, Reach.OWN, Reach.NONE

TABLE: Final[dict[Permission, dict[Role, Reach]]] = {
    permission: dict(zip(Role, reaches, strict=True))
    for permission, reaches in {
        #                           admin  operator lead  member  viewer
        Permission.SEE_CLUSTER: (_ALL, _ALL, _ALL, _ALL, _ALL),
        Permission.SEE_JOBS: (_ALL, _ALL, _TEAM, _TEAM, _TEAM),
        Permission.SEE_SECRETS: (_ALL, _NONE, _TEAM, _OWN, _NONE),
        Permission.SUBMIT: (_ALL, _NONE, _TEAM, _TEAM, _NONE),
        Permission.STEER_JOBS: (_ALL, _ALL, _TEAM, _OWN, _NONE),
        Permission.RAISE_PRIORITY: (_ALL, _ALL, _TEAM, _NONE, _NONE),
        Permission.SET_MEMBERS: (_ALL, _NONE, _TEAM, _NONE, _NONE),
        Permission.SET_TEAMS: (_ALL, _NONE, _NONE, _NONE, _NONE),
        Permission.RUN_NODES: (_ALL, _ALL, _NONE, _NONE, _NONE),
        Permission.SET_USERS: (_ALL, _NONE, _NONE, _NONE, _NONE),
        Permission.OWN_TOKENS: (_OWN, _OWN, _OWN, _OWN, _OWN),
        Permission.READ_AUDIT: (_ALL, _ALL, _TEAM, _NONE, _NONE),
        Permission.SCRAPE: (_ALL, _ALL, _NONE, _NONE, _NONE),
        Permission.JOIN: (_NONE, _NONE, _NONE, _NONE, _NONE),
        Permission.SEE_POOL: (_ALL, _ALL, _TEAM, _TEAM, _TEAM),
        Permission.USE_POOL: (_ALL, _ALL, _TEAM, _TEAM, _NONE),
        Permission.SET_POOL: (_ALL, _ALL, _NONE, _NONE, _NONE),
    }.items()
}


class Scope(enum.StrEnum):
    """What a token is good for, within what its owner may do."""

    FULL = "full"
    READ = "read"
    """Everything that changes nothing."""
    SCRAPE = "scrape"
    """Metrics only."""
    JOIN = "join"
    """One machine may join."""
    POOL = "pool"
    """The pool only: for a platform that places its jobs there."""


READING: Final = frozenset(
    {
        Permission.SEE_CLUSTER,
        Permission.SEE_JOBS,
        Permission.SEE_SECRETS,
        Permission.READ_AUDIT,
        Permission.SEE_POOL,
    }
)
IN_POOL: Final = frozenset({Permission.SEE_POOL, Permission.USE_POOL, Permission.SET_POOL, Permission.RAISE_PRIORITY})


class Grant(msgspec.Struct, frozen=True, order=True, gc=False):
    """A role in one team, or everywhere."""

    role: Role
    team: str = EVERYWHERE


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Whom a valid credential speaks for."""

    user: str
    grants: tuple[Grant, ...]
    scope: Scope = Scope.FULL
    token: str = ""
    """The id of the token, for the audit."""

    def allowed_by_scope(self, permission: Permission) -> bool:
        match self.scope:
            case Scope.FULL:
                return permission is not Permission.JOIN
            case Scope.READ:
                return permission in READING
            case Scope.SCRAPE:
                return permission is Permission.SCRAPE
            case Scope.JOIN:
                return permission is Permission.JOIN
            case Scope.POOL:
                return permission in IN_POOL

    def may(self, permission: Permission, *, team: str | None = None, owner: str | None = None) -> bool:
        """Whether this is allowed on something of that team and owner; without a team, on the whole cluster."""
        if not self.allowed_by_scope(permission):
            return False
        if self.scope in (Scope.SCRAPE, Scope.JOIN):
            return True
        return any(self._grant_allows(grant, permission, team, owner) for grant in self.grants)

    def anywhere(self, permission: Permission) -> bool:
        """Whether this is allowed on anything at all."""
        if not self.allowed_by_scope(permission):
            return False
        if self.scope in (Scope.SCRAPE, Scope.JOIN):
            return True
        return any(TABLE[permission][grant.role] is not Reach.NONE for grant in self.grants)

    def teams(self, permission: Permission, known: Iterable[str]) -> frozenset[str] | None:
        """The teams whose things this is allowed on, own things aside; None: all, and what belongs to none."""
        if self.may(permission):
            return None
        return frozenset(team for team in known if self.may(permission, team=team))

    def _grant_allows(self, grant: Grant, permission: Permission, team: str | None, owner: str | None) -> bool:
        reach = TABLE[permission][grant.role]
        here = team is not None and grant.team in (EVERYWHERE, team)
        match reach:
            case Reach.ALL:
                return True
            case Reach.TEAM:
                return here
            case Reach.OWN:
                return owner == self.user and (here or team is None)
            case Reach.NONE:
                return False
