"""Who asks: tokens. Nothing else tells callers apart; what a web page may not do is in heads.py.

Place in the flow: request ─headers─▶ **signin** ─Caller─▶ authorise. A token is `gy_<id>_<secret>`; only the SHA-256 of
the secret is kept. Neither an address nor a forwarded header is ever trusted.
Invariant: without a valid token nobody learns anything but that the service lives, and its version.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gpuyard.errors import RefusedError
from gpuyard.model.queues import Queue
from gpuyard.platform.chance import token
from gpuyard.platform.files import write_private
from gpuyard.platform.home import ADMIN_TOKEN_FILE
from gpuyard.service.limits import (
    FAILURE_WINDOW_MS,
    MAX_ADDRESSES,
    MAX_AUTHORIZATION_LENGTH,
    MAX_FAILURES,
    MAX_REACHED,
    MAX_TOKEN_MS,
)
from gpuyard.service.problems import ProblemReason
from gpuyard.wire.access import Caller, Grant, Permission, Role, Scope
from gpuyard.worlds.standalone.intents import CreateToken, Intent, SetUser
from gpuyard.worlds.standalone.permits import reaching
from gpuyard.worlds.standalone.records import State, TokenRecord, UserRecord

PREFIX: Final = "gy"
JOIN_PREFIX: Final = "gyj"
"""Of a token to join with, which is read by an agent and not by a person's client."""
ID_BYTES: Final = 8
SECRET_BYTES: Final = 32
ADMIN: Final = "admin"

_TOKEN: Final = re.compile(r"gyj?_([0-9a-f]{16})_([0-9a-f]{64})(?:\.[0-9a-f]{1,64})?")
"""A token to join with ends in a part of the authority's fingerprint, which is for the machine that joins alone."""
_SIGN_IN: Final = "gpuyard login, or send Authorization: Bearer with a token of yours"

_SPECIAL: Final = {Scope.SCRAPE: Permission.SCRAPE, Scope.JOIN: Permission.RUN_NODES}
"""What the owner of a token must be allowed for it to be good for this."""


class NewToken(msgspec.Struct, frozen=True):
    """A token that was just made: the intent that records it, and the secret, which is shown once."""

    intent: CreateToken
    secret: str


def new_token(user: str, name: str, scope: Scope, expires_at_ms: int) -> NewToken:
    id, secret = token(ID_BYTES), token(SECRET_BYTES)
    intent = CreateToken(id, name, user, digest_of(secret), scope, expires_at_ms)
    prefix = JOIN_PREFIX if scope is Scope.JOIN else PREFIX
    return NewToken(intent, f"{prefix}_{id}_{secret}")


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def admin_of_home(state: State, home: Path, now_ms: int) -> tuple[Intent, ...]:
    """What lets whoever owns the home in: the user `admin`, made at the first start, with a token in a private file.

    A file that is missing, or whose token is no longer good here (it is over, or of another database), is written
    anew: who may start the manager owns its state anyway, and could else be locked out of it. Empty where it is good,
    and where `admin` is no admin any more. The caller carries the intents out after the file is written: should it
    end in between, the next start writes another.
    """
    if state.users and (_admin(state) is None or admin_token_file(state, home, now_ms) is not None):
        return ()
    made = new_token(ADMIN, "admin of the manager's machine", Scope.FULL, now_ms + MAX_TOKEN_MS)
    write_private(home / ADMIN_TOKEN_FILE, f"{made.secret}\n".encode())
    return (made.intent,) if state.users else (SetUser(ADMIN, (Grant(Role.ADMIN),)), made.intent)


def admin_token_file(state: State, home: Path, now_ms: int) -> Path | None:
    """Where a good token of the user `admin` lies; None where there is none."""
    path = home / ADMIN_TOKEN_FILE
    try:
        match = _TOKEN.fullmatch(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return None
    record = state.tokens.get(match.group(1)) if match else None
    if match is None or record is None or record.user != ADMIN or _admin(state) is None:
        return None
    fits = hmac.compare_digest(digest_of(match.group(2)), record.digest)
    return path if fits and not record.revoked and record.expires_at_ms > now_ms else None


def _admin(state: State) -> UserRecord | None:
    user = state.users.get(ADMIN)
    return user if user and any(grant.role is Role.ADMIN for grant in user.grants) else None


class _Reached(NamedTuple):
    """How far the roles of a user reach, and what that was worked out from."""

    user: UserRecord
    queues: tuple[Queue, ...]
    grants: tuple[Grant, ...]


class SignIn:
    """Checks every request. Keeps nothing but when tokens were last used, and who failed how often."""

    def __init__(self, state: Callable[[], State], now_ms: Callable[[], int]) -> None:
        self._state = state
        self._now_ms = now_ms
        self._failures: dict[str, tuple[int, int]] = {}
        self._reached: dict[str, _Reached] = {}
        self.last_used_ms: dict[str, int] = {}

    def caller(self, headers: Mapping[str, str], address: str) -> Caller:
        """Whom the request speaks for; a RefusedError where nobody."""
        record = self._valid(headers.get("authorization", ""))
        if record is None:
            raise self._refused(headers, address)
        self.last_used_ms[record.id] = self._now_ms()
        return self._caller(record)

    def still(self, caller: Caller) -> Caller:
        """Whom the same token speaks for now; a RefusedError where it is not good any more."""
        state = self._state()
        record = state.tokens.get(caller.token)
        if record is None or not self._good(state, record):
            what = "the token is not valid any more: it has expired, was revoked or used, or its user is gone"
            raise RefusedError(ProblemReason.SIGN_IN_NEEDED, what, fix=_SIGN_IN)
        return self._caller(record)

    def _caller(self, record: TokenRecord) -> Caller:
        return Caller(record.user, self._reaching(record.user), record.scope, record.id)

    def _reaching(self, name: str) -> tuple[Grant, ...]:
        """How far a user's roles reach: worked out once for as long as neither they nor the queues change."""
        state = self._state()
        user, known = state.users[name], self._reached.get(name)
        if known is None or known.user is not user or known.queues is not state.queues:
            if len(self._reached) >= MAX_REACHED:
                self._reached.clear()
            known = self._reached[name] = _Reached(user, state.queues, reaching(user.grants, state.queues))
        return known.grants

    def _valid(self, authorization: str) -> TokenRecord | None:
        if len(authorization) > MAX_AUTHORIZATION_LENGTH:
            return None
        kind, _, credential = authorization.partition(" ")
        match = _TOKEN.fullmatch(credential.strip())
        if kind.lower() != "bearer" or match is None:
            return None
        state = self._state()
        record = state.tokens.get(match.group(1))
        # An unknown id costs as much time as a wrong secret.
        expected = record.digest if record else digest_of("")
        right = hmac.compare_digest(digest_of(match.group(2)), expected)
        return record if right and record and self._good(state, record) else None

    def _good(self, state: State, record: TokenRecord) -> bool:
        user = state.users.get(record.user)
        if user is None or record.revoked or record.used or record.expires_at_ms <= self._now_ms():
            return False
        needed = _SPECIAL.get(record.scope)
        return needed is None or Caller(user.name, user.grants).may(needed)

    def _refused(self, headers: Mapping[str, str], address: str) -> RefusedError:
        tried = "authorization" in headers
        if tried and self._failed_too_often(address):
            what = "too many wrong credentials came from this address"
            return RefusedError(ProblemReason.TOO_MANY_FAILURES, what, fix="wait a minute, then use a valid token")
        what = "the token is not valid: wrong, expired, revoked or used" if tried else "no token was sent"
        return RefusedError(ProblemReason.SIGN_IN_NEEDED, what, fix=_SIGN_IN)

    def _failed_too_often(self, address: str) -> bool:
        """Counts a failure. Valid tokens are never held up, whoever else fails from the same address."""
        now = self._now_ms()
        since, count = self._failures.get(address, (now, 0))
        if now - since >= FAILURE_WINDOW_MS:
            since, count = now, 0
        if len(self._failures) >= MAX_ADDRESSES and address not in self._failures:
            self._failures.clear()
        self._failures[address] = (since, count + 1)
        return count >= MAX_FAILURES


def may_have_scope(scope: Scope, user: str, grants: tuple[Grant, ...]) -> bool:
    """Whether a token of this user can be good for that."""
    needed = _SPECIAL.get(scope)
    return needed is None or Caller(user, grants).may(needed)
