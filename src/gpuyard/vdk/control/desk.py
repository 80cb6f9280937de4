"""The register behind its one thread, with who may do what: what all handlers of data jobs share.

Place in the flow: REST ─Call─▶ **desk** ─▶ register. What one may not see is answered as if it were not there.
Invariant: nothing of a team's data jobs is told to or changed by a caller whose role there does not allow it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gpuyard.service.authorise import not_allowed
from gpuyard.service.call import Call
from gpuyard.vdk.control.register import Register, unknown
from gpuyard.vdk.control.state import JobDefinition, JobKey
from gpuyard.wire.access import Caller, Permission

Result = TypeVar("Result")


class Desk:
    """One register, used in one thread."""

    def __init__(self, register: Register, thread: ThreadPoolExecutor) -> None:
        self._register = register
        self._thread = thread
        self._newest: tuple[str, bytes] | None = None
        """The archive that was read last: a machine asks for it piece by piece."""

    @classmethod
    async def open(cls, address: str, markers: Path) -> Desk:
        thread = ThreadPoolExecutor(1, thread_name_prefix="data-jobs")
        try:
            opened = await asyncio.get_running_loop().run_in_executor(thread, Register.open, address, markers)
        except BaseException:
            thread.shutdown()
            raise
        return cls(opened, thread)

    async def do(self, work: Callable[[Register], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._register)

    async def close(self) -> None:
        await self.do(lambda register: register.close())
        self._thread.shutdown()

    async def archive(self, digest: str) -> bytes | None:
        if self._newest is not None and self._newest[0] == digest:
            return self._newest[1]
        found = await self.do(lambda register: register.archive(digest))
        if found is not None:
            self._newest = (digest, found)
        return found

    async def job(self, call: Call) -> JobDefinition:
        """The data job of the path, if the operation is allowed on it."""
        key = key_of(call)
        found = await self.do(lambda register: register.find(key)) if sees(call.caller, key.team) else None
        if found is None:
            raise unknown(key)
        check(call, key.team)
        return found


def key_of(call: Call) -> JobKey:
    return JobKey(call.path["team"], call.path["name"])


def sees(caller: Caller, team: str) -> bool:
    """Whether that team's data jobs are there for this caller."""
    return caller.may(Permission.SEE_JOBS, team=team) or caller.may(Permission.SUBMIT, team=team)


def check(call: Call, team: str) -> None:
    """Whether the caller may do this for that team. What is one's own there is looked at job by job."""
    permission = call.operation.permission
    assert permission is not None
    if not call.caller.may(permission, team=team, owner=call.caller.user):
        raise not_allowed(f"your role does not allow {permission} for data jobs of team {team[:80]}", "team")
