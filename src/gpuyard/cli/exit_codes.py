"""Every number the program ends with. docs/cli.md lists them; scripts rely on them.

Invariant: what a code means never changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpuyard.errors import GpuyardError

FAILURE: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
NOT_ALLOWED: Final = 4
CONFLICT: Final = 5
UNREACHABLE: Final = 6
REJECTED: Final = 7

WAITS: Final = 10
"""`explain`: the job waits."""
NEVER: Final = 11
"""`explain`: waiting alone cannot help."""

JOB_FAILED: Final = 100
JOB_NOT_FINISHED: Final = 101
JOB_NOT_FOUND: Final = 102
JOB_CANCELLED: Final = 103
TIMED_OUT: Final = 124

BUG: Final = 70
NOT_WRITTEN: Final = 74
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141


def code_of(error: GpuyardError) -> int:
    """The code for an error: who or what stands in the way."""
    from gpuyard import errors

    by_kind: tuple[tuple[type[GpuyardError], int], ...] = (
        (errors.NotFoundError, NOT_FOUND),
        (errors.NotSignedInError, NOT_ALLOWED),
        (errors.NotAllowedError, NOT_ALLOWED),
        (errors.ConflictError, CONFLICT),
        (errors.UnreachableError, UNREACHABLE),
        (errors.RejectedError, REJECTED),
        (errors.MalformedError, USAGE),
        (errors.ClientError, FAILURE),
        (errors.ServiceError, FAILURE),
        (errors.AgentError, FAILURE),
        (errors.NvmlError, FAILURE),
        (errors.KubeletError, UNREACHABLE),
        (errors.KubeUnreachableError, UNREACHABLE),
        (errors.KubeTestbedError, FAILURE),
        (errors.KubeError, FAILURE),
        (errors.RefusedError, REJECTED),
    )
    if isinstance(error, errors.KubeRefusedError):
        return _BY_STATUS.get(error.status, FAILURE)
    return next((code for kind, code in by_kind if isinstance(error, kind)), USAGE)


_BY_STATUS: Final = {401: NOT_ALLOWED, 403: NOT_ALLOWED, 404: NOT_FOUND, 409: CONFLICT}
"""What an API server of Kubernetes answers where it answers no."""
