"""Users and tokens. The secret of a token is in one answer and nowhere else."""

from __future__ import annotations

import re
from typing import Final

from gpuyard.errors import RefusedError
from gpuyard.files.format import NAME_PATTERN
from gpuyard.service.authorise import no_such, not_allowed
from gpuyard.service.call import Answer, Call
from gpuyard.service.limits import MAX_JOIN_TOKEN_MS, MAX_NAME_LENGTH, MAX_TOKEN_MS, MAX_TOKEN_NAME, MIN_TOKEN_MS
from gpuyard.service.problems import ProblemReason
from gpuyard.service.signin import may_have_scope, new_token
from gpuyard.service.views import token_object
from gpuyard.wire.access import Permission, Scope
from gpuyard.wire.rest import CreatedToken, Page, TokenObject, TokenRequest, UserChange, UserObject
from gpuyard.worlds.standalone.intents import RemoveUser, RevokeToken, SetUser
from gpuyard.worlds.standalone.records import State, TokenRecord, UserRecord

# --------------------------------------------------------------------------------------------------------------- users


async def list_users(call: Call) -> Answer:
    users = sorted(call.state.users.values(), key=lambda user: user.name)
    return Answer(Page(tuple(_user(call.state, user) for user in users), None, call.state.seq))


async def set_user(call: Call) -> Answer:
    assert isinstance(call.value, UserChange)
    name = call.path["name"]
    for field, value in (("name", name), ("unix_user", call.value.unix_user or "x")):
        if not re.fullmatch(NAME_PATTERN, value) or len(value) > MAX_NAME_LENGTH:
            fix = f"no blanks, slashes or invisible characters, at most {MAX_NAME_LENGTH} long"
            raise RefusedError(ProblemReason.BAD_VALUE, f'"{value[:80]}" is no name', fix=fix, field=field)
    intent = SetUser(name, call.value.grants, call.value.unix_user, call.if_match)
    await call.manager.do(intent, call.caller)
    user = call.state.users[name]
    return Answer(_user(call.state, user), revision=user.revision)


async def remove_user(call: Call) -> Answer:
    known = call.state.users.get(call.path["name"])
    if known is not None and call.if_match not in (None, known.revision):
        what = f'user "{known.name}" has changed: it is at revision {known.revision}, not {call.if_match}'
        raise RefusedError(ProblemReason.CHANGED, what, fix="look again, then decide")
    await call.manager.do(RemoveUser(call.path["name"]), call.caller)
    return Answer()


def _user(state: State, user: UserRecord) -> UserObject:
    return UserObject(user.name, user.grants, user.unix_user, user.revision, state.uids.get(user.name, 0))


# -------------------------------------------------------------------------------------------------------------- tokens


async def list_tokens(call: Call) -> Answer:
    everybodys = call.caller.may(Permission.SET_USERS)
    tokens = [token for token in call.state.tokens.values() if everybodys or token.user == call.caller.user]
    return Answer(Page(tuple(_token(call, token) for token in tokens), None, call.state.seq))


async def create_token(call: Call) -> Answer:
    assert isinstance(call.value, TokenRequest)
    asked = call.value
    user = asked.user or call.caller.user
    if user != call.caller.user and not call.caller.may(Permission.SET_USERS):
        raise not_allowed("your role does not allow to make tokens of somebody else", "user")
    _check_token(call, asked, user)
    lifetime_ms = min(asked.expires_in_ms, MAX_JOIN_TOKEN_MS) if asked.scope is Scope.JOIN else asked.expires_in_ms
    made = new_token(user, asked.name, asked.scope, call.manager.now_ms() + lifetime_ms)
    await call.manager.do(made.intent, call.caller)
    authority = call.service.settings.authority
    pin = f".{authority.pin}" if asked.scope is Scope.JOIN and authority else ""
    return Answer(CreatedToken(_token(call, call.state.tokens[made.intent.id]), made.secret + pin))


def _check_token(call: Call, asked: TokenRequest, user: str) -> None:
    if not MIN_TOKEN_MS <= asked.expires_in_ms <= MAX_TOKEN_MS:
        fix = f"expires_in_ms is {MIN_TOKEN_MS} to {MAX_TOKEN_MS}"
        what = "a token is good for a minute at least and for 400 days at most"
        raise RefusedError(ProblemReason.BAD_VALUE, what, fix=fix, field="expires_in_ms")
    if len(asked.name) > MAX_TOKEN_NAME or not asked.name.isprintable():
        what = "the name of the token is too long, or not to be printed"
        raise RefusedError(ProblemReason.BAD_VALUE, what, fix=f"at most {MAX_TOKEN_NAME} characters", field="name")
    owner = call.state.users.get(user)
    if owner is None:
        raise no_such(ProblemReason.USER_UNKNOWN, f'there is no user "{user[:80]}"', "gpuyard user ls")
    if not may_have_scope(asked.scope, user, owner.grants):
        raise not_allowed(f'the role of "{user}" allows no token for {asked.scope}', "scope")


async def revoke_token(call: Call) -> Answer:
    id = call.path["id"]
    token = call.state.tokens.get(id)
    if token is None or not (token.user == call.caller.user or call.caller.may(Permission.SET_USERS)):
        raise no_such(ProblemReason.TOKEN_UNKNOWN, f"there is no token {id[:80]}", "gpuyard token ls")
    if not token.revoked:
        await call.manager.do(RevokeToken(id), call.caller)
    return Answer()


def _token(call: Call, token: TokenRecord) -> TokenObject:
    return token_object(token, call.service.signin.last_used_ms.get(token.id))


HANDLERS: Final = {
    "list_users": list_users,
    "set_user": set_user,
    "remove_user": remove_user,
    "list_tokens": list_tokens,
    "create_token": create_token,
    "revoke_token": revoke_token,
}
