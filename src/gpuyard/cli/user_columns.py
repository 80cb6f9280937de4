"""How users and tokens look in lists."""

from __future__ import annotations

from gpuyard.cli.listing import Column, Kind
from gpuyard.cli.times import exact, since, until
from gpuyard.wire.access import EVERYWHERE, Grant
from gpuyard.wire.rest import TokenObject, UserObject


def _grant(grant: Grant) -> str:
    return grant.role if grant.team == EVERYWHERE else f"{grant.role}@{grant.team}"


USERS: Kind[UserObject] = Kind(
    UserObject,
    (
        Column("USER", lambda user, at: user.name),
        Column("ROLES", lambda user, at: ",".join(map(_grant, user.grants))),
        Column("UNIX-USER", lambda user, at: user.unix_user),
        Column("UID", lambda user, at: str(user.uid or ""), wide=True),
    ),
    lambda user: user.name,
)

TOKENS: Kind[TokenObject] = Kind(
    TokenObject,
    (
        Column("ID", lambda token, at: token.id),
        Column("NAME", lambda token, at: token.name),
        Column("USER", lambda token, at: token.user),
        Column("SCOPE", lambda token, at: token.scope),
        Column("AGE", lambda token, at: since(token.created_at, at), lambda token: exact(token.created_at)),
        Column(
            "EXPIRES",
            lambda token, at: "revoked" if token.revoked else until(token.expires_at, at),
            lambda token: exact(token.expires_at),
        ),
        Column("REVOKED", lambda token, at: "yes" if token.revoked else "no", wide=True),
        Column("USED", lambda token, at: since(token.last_used_at, at), lambda token: exact(token.last_used_at)),
    ),
    lambda token: token.id,
)
