"""The client and the server use the same words."""

import msgspec
import pytest

from gpuyard import errors
from gpuyard.cli.exit_codes import code_of
from gpuyard.cli.follow import LOG_MISSING
from gpuyard.files.format import TeamChangeSpec
from gpuyard.sdk import answers, transport
from gpuyard.sdk.answers import problem_error
from gpuyard.sdk.bodies import TeamChange
from gpuyard.service import limits
from gpuyard.service.handlers.logs import OFFSET_HEADER
from gpuyard.service.problems import KINDS, PROBLEM_MEDIA, ProblemReason, problem

_R = ProblemReason
CODES = {
    2: (_R.MALFORMED, _R.BAD_FIELD, _R.BAD_VALUE, _R.BAD_PARAMETER, _R.WRONG_MEDIA, _R.TOO_LARGE),
    3: (_R.NOT_FOUND, _R.JOB_UNKNOWN, _R.TEAM_UNKNOWN, _R.NODE_UNKNOWN, _R.DEPENDENCY_UNKNOWN, _R.LOG_MISSING),
    4: (_R.SIGN_IN_NEEDED, _R.NOT_ALLOWED, _R.TOO_MANY_FAILURES),
    5: (_R.CHANGED, _R.WRONG_STATE, _R.TEAM_HAS_JOBS, _R.NODE_BUSY, _R.LAST_ADMIN),
    7: (_R.NEVER, _R.QUEUE_FULL, _R.TOO_MANY, _R.SHARED_USER),
    1: (_R.INTERNAL, _R.UNAVAILABLE),
}


@pytest.mark.parametrize(("code", "reason"), [(code, reason) for code, reasons in CODES.items() for reason in reasons])
def test_every_refusal_ends_with_its_exit_code(code: int, reason: ProblemReason) -> None:
    told = problem(reason, "what", fix="fix")
    assert code_of(problem_error(told.status, msgspec.json.encode(told), PROBLEM_MEDIA)) == code


def test_words_headers_and_bounds_are_those_of_the_server() -> None:
    assert set(answers._BY_REASON) <= set(ProblemReason)
    assert {kind.status for kind in KINDS.values()} >= {400, 401, 403, 404, 409, 412, 422}
    assert ProblemReason.LOG_MISSING.value == LOG_MISSING
    assert transport.LOG_OFFSET == OFFSET_HEADER
    assert transport.MAX_LOG_BYTES == limits.MAX_LOG_BYTES
    assert transport.STREAM_SILENCE_MS > 2 * limits.HEARTBEAT_SECONDS * 1000
    assert set(TeamChange.__struct_fields__) <= set(TeamChangeSpec.__struct_fields__)


def test_every_error_on_purpose_has_an_exit_code() -> None:
    for kind in errors.ClientError.__subclasses__():
        assert code_of(kind("what")) in (2, 3, 4, 5, 6, 7)
    assert code_of(errors.ServiceError("what")) == 1
    assert code_of(errors.InputError("what")) == 2
