"""VDK's control service as a face of the manager: what `vdkcli` and `vdk` speak to.

Place in the flow: cli ─▶ **face** ─▶ desk (register of data jobs), handlers. Its state is in a database of its own
beside the manager's, opened while the manager goes on starting; machines fetch the sources of jobs from it. Invariant:
whatever is refused under its paths is told in the words VDK's command line reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute

from gpuyard.errors import StoreError
from gpuyard.platform.home import markers_of
from gpuyard.service.faces import Ground
from gpuyard.service.handlers import Handler
from gpuyard.service.problems import PROBLEM_MEDIA, ProblemReason
from gpuyard.service.routing import table_routes
from gpuyard.vdk.control.desk import Desk
from gpuyard.vdk.control.exchange import exchange_token
from gpuyard.vdk.control.execution_rest import ExecutionsDesk
from gpuyard.vdk.control.launch import Vdk
from gpuyard.vdk.control.rest import JobsDesk
from gpuyard.wire.data_job_operations import DATA_JOB_OPERATIONS, TOKEN_PATH
from gpuyard.wire.rest import Problem
from gpuyard.worlds.standalone.store.address import beside

PART: Final = "data-jobs"
"""What its database is called beside the manager's."""
NOTHING_CHANGED: Final = "Nothing was changed or started."
_WAYS_OUT: Final[dict[str, str]] = {
    ProblemReason.SIGN_IN_NEEDED: f"vdkcli login -t api-token -u URL{TOKEN_PATH} -a TOKEN (gpuyard token create)",
    ProblemReason.NO_SUCH_PATH: "gpuyard serves a part of VDK's control service, without keytabs and secrets",
}
"""Where whoever uses VDK's command line must be told something else."""


class VdkProblem(Problem, frozen=True):
    """A problem with the four words of VDK's errors besides."""

    what: str = ""
    why: str = ""
    consequences: str = ""
    countermeasures: str = ""


class ControlFace:
    """Serves data jobs."""

    prefixes = ("/data-jobs/", "/oauth2/")
    open_paths: frozenset[str] = frozenset({TOKEN_PATH})

    def __init__(self, vdk: Vdk | None = None) -> None:
        self._jobs = JobsDesk(self.desk, vdk or Vdk())
        self._executions = ExecutionsDesk(self.desk, vdk or Vdk())
        self._ground: Ground | None = None
        self._opening: asyncio.Task[Desk] | None = None

    async def desk(self) -> Desk:
        assert self._opening is not None, "begun before anybody can connect"
        return await asyncio.shield(self._opening)

    def routes(self) -> Sequence[BaseRoute]:
        return table_routes(self.handlers, lambda: self._under.service, DATA_JOB_OPERATIONS)

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By the name of their operation."""
        return {"exchange_token": exchange_token, **self._jobs.handlers, **self._executions.handlers}

    def refusal(self, found: Problem) -> Response | None:
        told = VdkProblem(
            **{name: getattr(found, name) for name in Problem.__struct_fields__},
            what=found.title,
            why=found.detail or found.title,
            consequences=NOTHING_CHANGED,
            countermeasures=_WAYS_OUT.get(found.reason, found.fix),
        )
        return Response(msgspec.json.encode(told), found.status, None, PROBLEM_MEDIA)

    @property
    def _under(self) -> Ground:
        assert self._ground is not None, "opened before anybody can connect"
        return self._ground

    async def open(self, ground: Ground) -> None:
        self._ground = ground
        address = beside(ground.settings.store_address, PART)
        self._opening = asyncio.create_task(Desk.open(address, markers_of(ground.settings.home)))
        ground.service.manager.parcels = self._parcel

    async def _parcel(self, digest: str) -> bytes | None:
        return await (await self.desk()).archive(digest)

    async def work(self) -> None:
        """Nothing but to say so where the register cannot be opened."""
        await self.desk()

    async def close(self) -> None:
        if self._opening is not None:
            with suppress(StoreError):
                await (await self._opening).close()
