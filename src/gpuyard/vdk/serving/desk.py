"""The pool's desk: who may ask what of it, one call at a time.

Place in the flow: REST, gRPC ─Caller, values─▶ **desk** ─▶ GpuResourceManager ─▶ values without what the caller may not
know. Calls of the pool are done in one thread of their own, since each waits for its database; the event loop never
does. What only the pool needs is loaded there, too. A pool team is matched to a team of the manager by its name.
Invariant: of a job of a team the caller does not see, no name goes out; a plan or job one may not see is answered as
one that is not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import msgspec

from gpuyard.errors import RefusedError
from gpuyard.service.authorise import not_allowed
from gpuyard.service.problems import ProblemReason
from gpuyard.vdk.errors import JobUnknownError, PlanUnknownError
from gpuyard.vdk.model import (
    Budget,
    DeviceRequirements,
    JobUniqueIdentifier,
    JobView,
    Machine,
    Plan,
    Quote,
    Request,
)
from gpuyard.vdk.port import Amount, GpuResourceManager
from gpuyard.vdk.serving.keys import Keys
from gpuyard.vdk.serving.veil import PoolVeil
from gpuyard.wire.access import Caller, Permission

MAX_WHY: Final = 1_000
"""Characters of why a step failed."""

Result = TypeVar("Result")


class Wish(msgspec.Struct, frozen=True):
    """One alternative of a request, its amount as it was written."""

    amount: Amount
    device_type: str = ""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a place, as it came in."""

    job: JobUniqueIdentifier
    wishes: tuple[Wish, ...]
    priority: bool = False
    checkpointable: bool = False
    key: str = ""
    """The Idempotency-Key; empty: none."""


class Desk:
    """One pool, open."""

    def __init__(self, pool: GpuResourceManager, thread: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._thread = thread
        self._keys = Keys(pool.plans(open_only=False))

    @classmethod
    async def open(cls, opened: Callable[[], GpuResourceManager]) -> Desk:
        """With a pool that is opened in the thread where it is used."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="pool")
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, lambda: cls(opened(), thread))
        except BaseException:
            thread.shutdown()
            raise

    async def do(self, work: Callable[[GpuResourceManager], Result]) -> Result:
        """In the pool's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._pool)

    async def close(self) -> None:
        """After the calls that are under way."""
        await self.do(lambda pool: pool.close())
        self._thread.shutdown()

    # ------------------------------------------------------------------------------------- the three calls, and quotes

    async def provision(self, caller: Caller, asked: Asked) -> Plan:
        team = asked.job.team
        _check(caller, Permission.USE_POOL, team)
        if asked.priority:
            _check(caller, Permission.RAISE_PRIORITY, team)

        def work(pool: GpuResourceManager) -> Plan:
            request = _request(asked, _owned(caller, asked.key))
            before = self._keys.plan_of(request) if request.key else None
            return pool.plan(before or self._provision(pool, request))

        veil = PoolVeil(caller)
        with veil.over_refusals():
            return veil.plan(await self.do(work))

    def _provision(self, pool: GpuResourceManager, request: Request) -> str:
        """The id of a new plan."""
        actions = pool.try_provision_resources(
            request.id,
            request.alternatives,
            priority=request.priority,
            checkpointable=request.checkpointable,
            key=request.key,
        )
        plan = pool.plan(actions[0].plan)
        self._keys.planned(plan)
        return plan.id

    async def quote(self, caller: Caller, asked: Asked) -> Quote:
        _check(caller, Permission.SEE_POOL, asked.job.team)

        def work(pool: GpuResourceManager) -> Quote:
            request = _request(asked, "")
            return pool.quote(
                request.id,
                request.alternatives,
                priority=request.priority,
                checkpointable=request.checkpointable,
            )

        return PoolVeil(caller).quote(await self.do(work))

    async def job_ended(self, caller: Caller, job: JobUniqueIdentifier, key: str = "") -> None:
        _check_job(caller, Permission.USE_POOL, job)
        key = _owned(caller, key)

        def work(pool: GpuResourceManager) -> None:
            if not self._keys.has_done(key, "ended", job):
                pool.job_ended(job)
                self._keys.done(key, "ended", job)

        await self.do(work)

    async def mark_job_priority(self, caller: Caller, job: JobUniqueIdentifier, priority: bool) -> JobView:
        _check_job(caller, Permission.RAISE_PRIORITY, job)

        def work(pool: GpuResourceManager) -> JobView:
            pool.mark_job_priority(job, priority)
            return next(view for view in pool.jobs(team=job.team) if view.id == job)

        return await self.do(work)

    # ----------------------------------------------------------------------------------------------- acknowledged work

    async def confirm(self, caller: Caller, plan: str, number: int, key: str = "") -> Plan:
        return await self._settle(caller, plan, key, ("confirm", number), lambda pool: pool.confirm(plan, number))

    async def fail(self, caller: Caller, plan: str, number: int, why: str, key: str = "") -> Plan:
        if len(why) > MAX_WHY:
            what = f"a reason has at most {MAX_WHY} characters, not {len(why)}"
            raise RefusedError(ProblemReason.BAD_FIELD, what, fix="shorten it", field="why")
        return await self._settle(caller, plan, key, ("fail", number), lambda pool: pool.fail(plan, number, why))

    async def _settle(
        self,
        caller: Caller,
        plan: str,
        key: str,
        what: tuple[str, int],
        settle: Callable[[GpuResourceManager], Plan],
    ) -> Plan:
        await self._may_settle(caller, plan)
        key = _owned(caller, key)

        def work(pool: GpuResourceManager) -> Plan:
            if self._keys.has_done(key, plan, *what):
                return pool.plan(plan)
            settled = settle(pool)
            self._keys.done(key, plan, *what)
            return settled

        veil = PoolVeil(caller)
        with veil.over_refusals():
            return veil.plan(await self.do(work))

    async def _may_settle(self, caller: Caller, id: str) -> None:
        plan = await self.plan(caller, id)
        _check(caller, Permission.USE_POOL, plan.request.id.team)

    async def plan(self, caller: Caller, id: str) -> Plan:
        """One that is hidden and one that never was are refused in the same words."""
        try:
            found = await self.do(lambda pool: pool.plan(id))
        except PlanUnknownError:
            found = None
        if found is None or not _sees(caller, found.request.id.team):
            raise PlanUnknownError(f'there is no plan "{id[:80]}"', fix="gpuyard pool plan ls --all")
        return PoolVeil(caller).plan(found)

    async def plans(self, caller: Caller, *, open_only: bool) -> list[Plan]:
        """Oldest first."""
        veil = PoolVeil(caller)
        found = await self.do(lambda pool: pool.plans(open_only=open_only))
        return [veil.plan(plan) for plan in found if _sees(caller, plan.request.id.team)]

    # ------------------------------------------------------------------------------------------ machines, budgets, jobs

    async def set_machine(self, caller: Caller, machine: Machine) -> None:
        _check(caller, Permission.SET_POOL)
        await self.do(lambda pool: pool.set_machine(machine))

    async def remove_machine(self, caller: Caller, name: str) -> None:
        _check(caller, Permission.SET_POOL)
        await self.do(lambda pool: pool.remove_machine(name))

    async def machines(self) -> list[Machine]:
        return await self.do(lambda pool: pool.machines())

    async def set_budget(self, caller: Caller, team: str, wish: Wish) -> Budget:
        _check(caller, Permission.SET_POOL)

        def work(pool: GpuResourceManager) -> Budget:
            from gpuyard.vdk.pool.amounts import MAX_BUDGET_DEVICES, read_amount

            amount_milli = read_amount(wish.amount, most=MAX_BUDGET_DEVICES)
            budget = Budget(team, amount_milli, wish.device_type)
            pool.set_budget(budget)
            return budget

        return await self.do(work)

    async def remove_team(self, caller: Caller, team: str) -> None:
        _check(caller, Permission.SET_POOL)
        await self.do(lambda pool: pool.remove_team(team))

    async def budgets(self, caller: Caller) -> list[Budget]:
        found = await self.do(lambda pool: pool.budgets())
        return [budget for budget in found if _sees(caller, budget.team)]

    async def jobs(self, caller: Caller, team: str) -> list[JobView]:
        found = await self.do(lambda pool: pool.jobs(team=team or None))
        return [view for view in found if _sees(caller, view.id.team)]


def _request(asked: Asked, key: str) -> Request:
    """Its amounts read exactly; refused where one makes no sense."""
    from gpuyard.vdk.pool.amounts import read_amount

    alternatives = tuple(DeviceRequirements(read_amount(wish.amount), wish.device_type) for wish in asked.wishes)
    return Request(asked.job, alternatives, asked.priority, asked.checkpointable, key)


def _owned(caller: Caller, key: str) -> str:
    """Keys of different people are different."""
    return f"{caller.user}/{key}" if key else ""


def check_wishes(wishes: tuple[Wish, ...]) -> tuple[Wish, ...]:
    from gpuyard.vdk.pool.amounts import MAX_ALTERNATIVES

    if not 1 <= len(wishes) <= MAX_ALTERNATIVES:
        what = f"a request has 1 to {MAX_ALTERNATIVES} alternatives, not {len(wishes)}"
        fix = 'send an amount ("0.5"), or alternatives in the order of preference'
        raise RefusedError(ProblemReason.BAD_FIELD, what, fix=fix, field="alternatives")
    return wishes


def _sees(caller: Caller, team: str) -> bool:
    return caller.may(Permission.SEE_POOL, team=team)


def _check(caller: Caller, permission: Permission, team: str | None = None) -> None:
    if not caller.may(permission, team=team):
        where = "" if team is None else f" for team {team[:80]}"
        raise not_allowed(f"your role or token does not allow {permission} in the pool{where}", "team" if team else "")


def _check_job(caller: Caller, permission: Permission, job: JobUniqueIdentifier) -> None:
    if not _sees(caller, job.team):
        what = f'team "{job.team[:80]}" has no job "{job.job[:80]}" in the pool'
        raise JobUnknownError(what, fix="gpuyard pool ls")
    _check(caller, permission, job.team)
