"""Executions over REST: start, list, look, cancel, logs.

Place in the flow: routing ─Call─▶ **execution_rest** ─▶ starting, or the state of the manager.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import quote

import msgspec

from gpuyard.errors import RefusedError
from gpuyard.service.authorise import check_submission, not_allowed
from gpuyard.service.call import Answer, Call
from gpuyard.service.handlers import Handler
from gpuyard.service.problems import ProblemReason
from gpuyard.service.redact import Veil
from gpuyard.service.rights import Rights
from gpuyard.vdk.control.desk import Desk, key_of, sees
from gpuyard.vdk.control.executions import STATUSES, execution, executions_of, is_of
from gpuyard.vdk.control.launch import Start, Vdk, submission
from gpuyard.vdk.control.rest import deployment_of
from gpuyard.vdk.control.starting import Starter
from gpuyard.wire.agents import MAX_LOG_PIECE_BYTES, AttemptId
from gpuyard.wire.data_jobs import DataJobExecution, DataJobExecutionLogs, DataJobExecutionRequest
from gpuyard.worlds.standalone.intents import Steer, Submit
from gpuyard.worlds.standalone.lifecycle import OVER
from gpuyard.worlds.standalone.records import JobRecord

MAX_ARGUMENTS_BYTES: Final = 64 << 10
"""As JSON: they are handed over in one variable."""
MAX_LISTED: Final = 200
MAX_LOG_BYTES: Final = 8 << 20
"""The end of a log, which VDK's command line gets whole."""
MAX_STARTED_BY: Final = 100
MANUAL: Final = "manual"


class ExecutionsDesk:
    """The handlers of executions."""

    def __init__(self, desk: Callable[[], Awaitable[Desk]], vdk: Vdk) -> None:
        self._desk = desk
        self._vdk = vdk
        self._starter = Starter()
        self.handlers: Final[dict[str, Handler]] = {
            "list_executions": self.list,
            "list_deployment_executions": self.list,
            "start_execution": self.start,
            "get_execution": self.get,
            "cancel_execution": self.cancel,
            "execution_logs": self.logs,
        }

    async def start(self, call: Call) -> Answer:
        job = await (await self._desk()).job(call)
        body = call.value
        assert isinstance(body, DataJobExecutionRequest)
        start = Start(call.caller.user, _started_by(body), _arguments(body))
        wanted = submission(job, deployment_of(job), start, self._vdk)
        check_submission(call, wanted.form, {})
        intent = Submit(wanted, f"{call.caller.user}/{call.key}" if call.key else "", _fingerprint(call))
        return _accepted(call, await self._starter.start(call, intent, job.key))

    async def list(self, call: Call) -> Answer:
        job = await (await self._desk()).job(call)
        wanted = _statuses(call.text("execution_status"))
        veil = Veil(call.state, call.caller)
        found: list[DataJobExecution] = []
        for record in executions_of(call.state, job.key):
            shown = execution(record, veil)
            if not wanted or shown.status in wanted:
                found.append(shown)
            if len(found) == MAX_LISTED:
                break
        return Answer(tuple(found))

    async def get(self, call: Call) -> Answer:
        return Answer(execution(_record(call), Veil(call.state, call.caller)))

    async def cancel(self, call: Call) -> Answer:
        record = _allowed(call, _record(call))
        if record.state in OVER:
            what = f"execution {record.id} is over"
            raise RefusedError(ProblemReason.WRONG_STATE, what, fix="only one that is not over can be cancelled")
        await call.manager.do(Steer(record.id, "cancel"), call.caller)
        return Answer()

    async def logs(self, call: Call) -> Answer:
        record = _allowed(call, _record(call))
        async with Rights(call, lambda again: _allowed(again, _record(again))).held():
            text = await _log(call, record)
        lines = call.number("tail_lines")
        return Answer(DataJobExecutionLogs("".join(text.splitlines(keepends=True)[-lines:]) if lines > 0 else text))


def _record(call: Call) -> JobRecord:
    """The execution of the path, if the caller sees its team."""
    key, id = key_of(call), call.path["id"]
    record = call.state.jobs.get(id)
    if record is None or not is_of(record, key) or not sees(call.caller, key.team):
        what = f'data job "{key.name[:80]}" of team "{key.team[:80]}" has no execution "{id[:80]}"'
        fix = "vdkcli execute --list shows those there are"
        raise RefusedError(ProblemReason.EXECUTION_UNKNOWN, what, fix=fix)
    return record


def _allowed(call: Call, record: JobRecord) -> JobRecord:
    permission = call.operation.permission
    assert permission is not None
    if not call.caller.may(permission, team=record.team, owner=record.user):
        raise not_allowed(f"your role in team {record.team} does not allow {permission} on execution {record.id}")
    return record


def _accepted(call: Call, id: str) -> Answer:
    path = "/data-jobs/for-team/{}/jobs/{}/executions/{}".format(*(quote(one, safe="") for one in (*_names(call), id)))
    record = call.state.jobs.get(id)
    shown = execution(record, Veil(call.state, call.caller)) if record is not None else None
    return Answer(shown, headers=(("Location", path),))


def _names(call: Call) -> tuple[str, str]:
    key = key_of(call)
    return key.team, key.name


def _started_by(body: DataJobExecutionRequest) -> str:
    """A person starts by hand, whatever the request says: what is scheduled is started by the manager."""
    said = (body.started_by or MANUAL)[:MAX_STARTED_BY]
    clean = "".join(character if character.isprintable() else "?" for character in said)
    return clean if clean.split("/")[0] == MANUAL else f"{MANUAL}/{clean}"


def _arguments(body: DataJobExecutionRequest) -> dict[str, object]:
    arguments = body.args or {}
    size = len(msgspec.json.encode(arguments))
    if size > MAX_ARGUMENTS_BYTES:
        what = f"the arguments have {size >> 10} KiB, and {MAX_ARGUMENTS_BYTES >> 10} is the most"
        raise RefusedError(ProblemReason.BAD_FIELD, what, fix="put them into a property or a file", field="args")
    return arguments


def _fingerprint(call: Call) -> str:
    path = "/".join(_names(call))
    return hashlib.sha256(f"start {path}\n".encode() + call.body).hexdigest()


def _statuses(text: str) -> frozenset[str]:
    words = frozenset(filter(None, (word.strip() for word in text.split(","))))
    unknown = sorted(words - set(STATUSES))
    if unknown:
        what = f'"{unknown[0][:40]}" is no status of an execution'
        fix = f"one of: {', '.join(STATUSES)}"
        raise RefusedError(ProblemReason.BAD_PARAMETER, what, fix=fix, field="execution_status")
    return words


async def _log(call: Call, record: JobRecord) -> str:
    """The end of what its newest attempt wrote; empty where it has not begun."""
    attempt = record.tasks[0].attempt
    if not attempt:
        return ""
    id = AttemptId(record.id, 0, attempt)
    pieces: list[bytes] = []
    offset = -MAX_LOG_BYTES
    while True:
        piece = await call.manager.read_log(id, offset, MAX_LOG_PIECE_BYTES, 0)
        if piece.problem:
            raise RefusedError(ProblemReason.LOG_MISSING, piece.problem, fix="its machine may have thrown it away")
        pieces.append(piece.data)
        offset = piece.offset + len(piece.data)
        if offset >= piece.size or not piece.data:
            return b"".join(pieces).decode("utf-8", "replace")
