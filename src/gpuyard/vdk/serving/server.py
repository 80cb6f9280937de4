"""The pool over gRPC: the service of proto/gpuyard/pool/v1, on an address of its own.

Place in the flow: a platform ─bytes, token─▶ **server** ─Caller, message─▶ calls ─▶ desk. It asks for a token of the
manager on every call, counts and bounds calls together with those over REST, and uses TLS wherever others can reach it.
Invariant: every refusal has a status, the stable word in `gpuyard-reason`, and the whole problem as a message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc

from gpuyard.errors import RefusedError, ServiceError
from gpuyard.platform.chance import token
from gpuyard.service.authorise import admit
from gpuyard.service.call import Service
from gpuyard.service.certificates import Authority, Pair
from gpuyard.service.problems import ProblemReason, problem, problem_of
from gpuyard.service.settings import Address
from gpuyard.vdk.serving.desk import Desk
from gpuyard.wire.access import Caller
from gpuyard.wire.operations import OPERATIONS
from gpuyard.wire.rest import Problem

if TYPE_CHECKING:
    from google.protobuf.message import Message

SERVICE: Final = "gpuyard.pool.v1.GpuResourceManager"
REASON: Final = "gpuyard-reason"
PROBLEM: Final = "gpuyard-problem-bin"
MAX_REQUEST_BYTES: Final = 1 << 20
MAX_ANSWER_BYTES: Final = 64 << 20
MAX_TEXT: Final = 1_500
"""Characters of a refusal: all of it travels in header fields, which are bounded."""
STOP_S: Final = 1.0
KEEPALIVE_MS: Final = 20_000
OK: Final = 200

OPERATION_OF: Final = {
    "TryProvisionResources": "provision_pool_job",
    "JobEnded": "end_pool_job",
    "MarkJobPriority": "mark_pool_job",
    "ConfirmStep": "confirm_pool_step",
    "FailStep": "fail_pool_step",
    "GetPlan": "get_pool_plan",
    "ListPlans": "list_pool_plans",
    "Quote": "quote_pool_job",
    "SetMachine": "set_pool_machine",
    "RemoveMachine": "remove_pool_machine",
    "ListMachines": "list_pool_machines",
    "SetBudget": "set_pool_budget",
    "RemoveTeam": "remove_pool_team",
    "ListBudgets": "list_pool_budgets",
    "ListJobs": "list_pool_jobs",
}
"""Every call, and the operation of the table that says who may: over REST it is the same question."""

_BY_NAME: Final = {operation.name: operation for operation in OPERATIONS}
CODES: Final[dict[int, grpc.StatusCode]] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.UNAVAILABLE,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
}
_CODE_OF_REASON: Final[dict[str, grpc.StatusCode]] = {
    ProblemReason.NO_AVAILABLE_BUDGET: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ProblemReason.JOB_KNOWN: grpc.StatusCode.ALREADY_EXISTS,
    ProblemReason.TOO_MANY_FAILURES: grpc.StatusCode.UNAUTHENTICATED,
}
"""Words that say more than their status."""

_log: Final = logging.getLogger("gpuyard.pool")


class PoolServer(grpc.GenericRpcHandler):
    """Serves the calls of one desk."""

    def __init__(self, desk: Callable[[], Awaitable[Desk]], service: Service) -> None:
        self._desk = desk
        self._service = service
        options = [
            ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
            ("grpc.max_send_message_length", MAX_ANSWER_BYTES),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
            ("grpc.so_reuseport", 0),
        ]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((self,))

    # ------------------------------------------------------------------------------------------------------- listening

    async def start(self, address: Address, credentials: grpc.ServerCredentials | None) -> Address:
        """Where it listens."""
        try:
            port = (
                self._server.add_insecure_port(str(address))
                if credentials is None
                else self._server.add_secure_port(str(address), credentials)
            )
        except RuntimeError:
            port = 0
        if not port:
            raise ServiceError(
                f"the pool cannot be listened for on {address}: the address is taken or not of this machine",
                fix="choose another with --pool-listen HOST:PORT",
            )
        await self._server.start()
        return Address(address.host, int(port))

    async def stop(self) -> None:
        await self._server.stop(STOP_S)

    # --------------------------------------------------------------------------------------------------------- serving

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        service, _, name = details.method.removeprefix("/").rpartition("/")
        operation = OPERATION_OF.get(name)
        if service != SERVICE or operation is None:
            return None

        async def serve(data: bytes, context: Any) -> bytes:  # noqa: ANN401 - grpc has no types here
            return await self._serve(name, operation, data, context)

        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(serve)
        return handler

    async def _serve(self, name: str, operation: str, data: bytes, context: Any) -> bytes:  # noqa: ANN401
        traffic, clock = self._service.traffic, asyncio.get_running_loop().time
        began, status = clock(), OK
        try:
            caller = self._caller(context)
            with traffic.request(caller.user):
                admit(caller, _BY_NAME[operation])
                answer = await self._answer(name, caller, data)
            return answer.SerializeToString()
        except Exception as error:
            found = problem_of(error) or _bug(error)
            status = found.status
            await _refuse(context, found)
        finally:
            traffic.done(operation, status, (clock() - began) * 1000)

    async def _answer(self, name: str, caller: Caller, data: bytes) -> Message:
        desk = await self._desk()
        from gpuyard.vdk.serving.calls import CALLS

        call = CALLS[name]
        return await call.handle(desk, caller, _decoded(call.request, data))

    def _caller(self, context: Any) -> Caller:  # noqa: ANN401
        headers = {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
        kind, _, rest = str(context.peer()).partition(":")
        return self._service.signin.caller(headers, rest.rpartition(":")[0] if kind.startswith("ipv") else "")


def credentials_of(pair: Pair, authority: Authority) -> grpc.ServerCredentials:
    """The manager's own certificate, with its authority behind it."""
    return grpc.ssl_server_credentials([(pair.key, pair.certificate + authority.pem)])


def _decoded(kind: type[Message], data: bytes) -> Message:
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(data)
    except DecodeError:
        what = f"the message is no {kind.__name__}"
        raise RefusedError(ProblemReason.MALFORMED, what, fix="use the .proto of this version") from None


async def _refuse(context: Any, found: Problem) -> NoReturn:  # noqa: ANN401
    from gpuyard.vdk.serving import gpu_resource_manager_pb2 as pb

    what, fix = found.detail[:MAX_TEXT], found.fix[:MAX_TEXT]
    whole = pb.Problem(reason=found.reason, what=what, fix=fix, field=found.field[:MAX_TEXT])
    trailing = ((REASON, found.reason), (PROBLEM, whole.SerializeToString()))
    code = _CODE_OF_REASON.get(found.reason) or CODES.get(found.status, grpc.StatusCode.UNKNOWN)
    await context.abort(code, what, trailing)
    raise AssertionError("abort always raises")


def _bug(error: Exception) -> Problem:
    id = token(6)
    _log.error("unexpected error %s", id, exc_info=error)
    return problem(ProblemReason.INTERNAL, f"an unexpected error: {id}", fix="report it with this id")
