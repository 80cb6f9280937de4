"""The token exchange: an API token in, an access token out, as OAuth 2 words it (RFC 6749, sections 5 and 6).

Place in the flow: vdkcli login ─form─▶ **exchange** ─▶ sign-in. A token of ours is its own access token: it is checked
as on every request, so one that is revoked is of no use at once; the client is told to come back within the hour.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from gpuyard.errors import RefusedError
from gpuyard.service.call import Answer, Call
from gpuyard.service.problems import KINDS, ProblemReason
from gpuyard.wire.data_jobs import AccessToken

EXCHANGE_AGAIN_S: Final = 3_600
MAX_FIELDS: Final = 20
MAX_FORM_BYTES: Final = 8 << 10
FIELDS: Final = ("refresh_token", "api_token")
"""OAuth 2's word for it, and the one that VMware's own provider uses."""


async def exchange_token(call: Call) -> Answer:
    token = _token(call.body)
    if not token:
        return _error("invalid_request", "the form holds no refresh_token: send your gpuyard token as one", 400)
    signin = call.service.signin
    try:
        caller = signin.caller({"authorization": f"Bearer {token}"}, call.address)
    except RefusedError as error:
        kind = KINDS[ProblemReason(error.reason)]
        status = 400 if kind.status == 401 else kind.status
        return _error("invalid_grant", f"{error.what}; make one: gpuyard token create", status)
    expires_at_ms = call.state.tokens[caller.token].expires_at_ms
    left_s = max((expires_at_ms - call.manager.now_ms()) // 1000, 0)
    return Answer(AccessToken(token, "bearer", min(left_s, EXCHANGE_AGAIN_S)))


def _token(body: bytes) -> str:
    if len(body) > MAX_FORM_BYTES:
        return ""
    try:
        form = dict(parse_qsl(body.decode("ascii"), max_num_fields=MAX_FIELDS))
    except ValueError:
        return ""
    return next((form[field].strip() for field in FIELDS if field in form), "")


def _error(word: str, why: str, status: int) -> Answer:
    return Answer({"error": word, "error_description": why}, status=status)
