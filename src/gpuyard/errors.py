"""Every error gpuyard raises on purpose, as one tree.

    GpuyardError
    ├── InputError          a file or a value a person wrote cannot be used (what, where, what to do)
    │   ├── QuantityError   a number is not one gpuyard can hold exactly
    │   └── QueueTreeError  the queues contradict each other; lists every problem at once
    ├── FakeGpuError        the fake GPUs cannot be shown: no compiler, a second writer, another version
    ├── KubeTestbedError    the Kubernetes testbed cannot be built, brought up or asked (what, what to do)
    │   └── KubeSilentError     its API server gives no answer, or cannot answer, at the moment
    ├── StoreError          the database cannot be used (what, what to do)
    │   ├── StoreBusyError      another manager writes to it
    │   ├── StoreDamagedError   what it holds is not what was written, or is gone: restore a backup
    │   ├── StoreConflictError  somebody else has written since: this writer is no longer the one
    │   ├── StoreGoneError      the connection or the lock was lost on the way
    │   │   └── StoreReadOnlyError  it may only be read: this server is not the one to write to, or not now
    │   └── StoreWaitError      it takes nothing at the moment: a lock; nothing was written
    │       └── StoreFullError      its disk is full
    ├── AgentError          this machine's agent cannot do its work: joining, GPUs, its home
    ├── RefusedError        an intent is refused by the state of the cluster (a stable reason, what, what to do)
    ├── ServiceError        the manager cannot start or go on: address taken, no TLS, a second manager
    ├── ClientError         a server did not answer, or answered no (what it said, field by field)
    │   ├── MalformedError      the request cannot be understood: a field of it is wrong
    │   ├── NotSignedInError    no valid credential came with it
    │   ├── NotAllowedError     whoever asks may not do that
    │   ├── NotFoundError       there is no such thing, or none the caller may see
    │   ├── ConflictError       it has changed since, or cannot be done in its state
    │   ├── RejectedError       a rule of the cluster forbids it: a quota, a policy, a job that can never run
    │   └── UnreachableError    no answer at all
    ├── KubeError           a Kubernetes API server did not answer, or answered no
    │   ├── KubeUnreachableError  no answer, or none in time
    │   └── KubeRefusedError      it answered no (status, its word for the reason)
    ├── KubeletError        the kubelet of this node does not answer, or its record cannot be read
    ├── NvmlError           the driver's library cannot be used
    ├── NotRecordedError    an event contradicts the state or a limit: a bug or a world that lies; nothing was recorded
    └── LedgerError         a change contradicts the books: a bug or a world that lies; nothing was changed

The text a person reads is rendered from the fields, once, here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gpuyard.model.reasons import Reason


class Where(msgspec.Struct, frozen=True):
    """A place in a file a person wrote. Lines and columns count from one; zero means the whole file."""

    file: str
    line: int = 0
    column: int = 0
    field: str = ""
    """The value that stands there, as a path from the top: queues.vision.quota. For programs; people see the place."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class GpuyardError(Exception):
    """Base of all errors raised on purpose; anything else that escapes is a bug."""


class InputError(GpuyardError):
    """Something a person wrote cannot be used: what is wrong, where, and what to do about it."""

    def __init__(self, what: str, *, where: Where | None = None, fix: str = "") -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(what)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        fix = f"\n  {self.fix}" if self.fix else ""
        return f"{place}{self.what}{fix}"


class QuantityError(InputError):
    """A number that gpuyard cannot hold exactly, or that makes no sense."""


class QueueTreeError(InputError):
    """A tree of queues that contradicts itself; `problems` holds every contradiction found."""

    def __init__(self, problems: tuple[InputError, ...]) -> None:
        self.problems = problems
        count = len(problems)
        super().__init__(f"{count} problem{'s' if count != 1 else ''} in the tree of queues")

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class LedgerError(GpuyardError):
    """A change that contradicts the books. The ledger is left as it was."""


class NotRecordedError(GpuyardError):
    """An event that cannot be folded or planned on. The state and the log are left as they were."""

    def __init__(self, kind: str, why: str, job: str = "") -> None:
        self.kind = kind
        self.why = why
        self.job = job
        """The job it is about; empty: about none."""
        super().__init__(f"a {kind} event cannot be recorded: {why}; nothing has changed")


class ExplainedError(GpuyardError):
    """What is wrong, and what to do about it."""

    def __init__(self, what: str, *, fix: str = "") -> None:
        self.what = what
        self.fix = fix
        super().__init__(what)

    def __str__(self) -> str:
        return f"{self.what}\n  {self.fix}" if self.fix else self.what


class StoreError(ExplainedError):
    """The database cannot be used."""


class StoreBusyError(StoreError):
    """Another manager writes to it."""


class StoreDamagedError(StoreError):
    """What the database holds is not what was written to it. `seq`: the first bad entry, where it is one."""

    def __init__(self, what: str, *, fix: str = "", seq: int = 0) -> None:
        self.seq = seq
        super().__init__(what, fix=fix)


class StoreConflictError(StoreError):
    """Somebody else has written since."""


class StoreGoneError(StoreError):
    """The connection or the writer's lock was lost; whether the last append was kept is not known."""


class StoreReadOnlyError(StoreGoneError):
    """It may only be read. The lock is let go of: another server may be the one to write to by now."""


class StoreWaitError(StoreError):
    """It takes nothing at the moment and may later; nothing was written, and the writer's lock is still held."""


class StoreFullError(StoreWaitError):
    """Its disk is full."""


class KubeTestbedError(ExplainedError):
    """The Kubernetes testbed cannot be built, brought up or asked."""


class KubeSilentError(KubeTestbedError):
    """The API server of a testbed gives no answer, or says that it cannot at the moment."""


class AgentError(ExplainedError):
    """The agent of this machine cannot do its work."""


class ServiceError(ExplainedError):
    """The manager cannot start, or cannot go on."""


class RefusedError(ExplainedError):
    """An intent that the state of the cluster refuses. `reason` is a stable word for programs."""

    def __init__(self, reason: str, what: str, *, fix: str = "", field: str = "") -> None:
        self.reason = reason
        self.field = field
        super().__init__(what, fix=fix)


class ClientError(ExplainedError):
    """A server did not answer, or answered no. `reason` is its stable word, `field` what of the request it is about."""

    def __init__(
        self,
        what: str,
        *,
        fix: str = "",
        status: int = 0,
        reason: str = "",
        field: str = "",
        blockers: tuple[Reason, ...] = (),
    ) -> None:
        self.status = status
        self.reason = reason
        self.field = field
        self.blockers = blockers
        super().__init__(what, fix=fix)


class MalformedError(ClientError):
    """The request cannot be understood."""


class NotSignedInError(ClientError):
    """No credential, or one that is not valid any more."""


class NotAllowedError(ClientError):
    """Whoever asks may not do that."""


class NotFoundError(ClientError):
    """No such thing, or none the caller may see."""


class ConflictError(ClientError):
    """It has changed since it was read, or cannot be done in the state it is in."""


class RejectedError(ClientError):
    """A rule of the cluster forbids it: a quota, a policy, a job that can never run."""


class UnreachableError(ClientError):
    """No answer. Whether the request arrived is not known, unless the text says so."""


class FakeGpuError(ExplainedError):
    """The fake GPUs cannot be built, published or read: what is wrong, and what to do about it."""


class KubeError(ExplainedError):
    """A Kubernetes API server cannot be used."""


class KubeUnreachableError(KubeError):
    """No answer, or none in time. Whether the request arrived is not known."""


class KubeRefusedError(KubeError):
    """The API server answered no. `reason` is its stable word, as NotFound or Conflict."""

    def __init__(self, what: str, *, status: int, reason: str = "", fix: str = "") -> None:
        self.status = status
        self.reason = reason
        super().__init__(what, fix=fix)


class KubeletError(ExplainedError):
    """The kubelet of this node does not answer, or its record cannot be read."""


class NvmlError(ExplainedError):
    """The driver's library is not there, or cannot be used."""
