"""/v1/pool: one handler per operation of the table. Place in the flow: routing ─Call─▶ **rest** ─▶ desk."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Final, TypeVar

from gpuyard.errors import RefusedError
from gpuyard.service.call import Answer, Call
from gpuyard.service.cursor import Key, after, next_cursor
from gpuyard.service.handlers import Handler
from gpuyard.service.problems import ProblemReason
from gpuyard.vdk.errors import StepUnknownError
from gpuyard.vdk.model import DEFAULT_DEVICE_TYPE, JobUniqueIdentifier, Machine
from gpuyard.vdk.serving.desk import Asked, Desk, Wish, check_wishes
from gpuyard.vdk.serving.objects import budget_object, job_object, machine_object, plan_object, quote_object
from gpuyard.wire.pool import (
    PoolBudgetChange,
    PoolFailure,
    PoolJobId,
    PoolMachineChange,
    PoolPriority,
    PoolRequest,
)
from gpuyard.wire.rest import Page

Item = TypeVar("Item")

_STEP: Final = re.compile(r"[0-9]{1,9}")


class RestDesk:
    """The handlers of one desk."""

    def __init__(self, desk: Callable[[], Awaitable[Desk]]) -> None:
        self._desk = desk
        self.handlers: Final[dict[str, Handler]] = {
            "list_pool_machines": self.list_machines,
            "set_pool_machine": self.set_machine,
            "remove_pool_machine": self.remove_machine,
            "list_pool_budgets": self.list_budgets,
            "set_pool_budget": self.set_budget,
            "remove_pool_team": self.remove_team,
            "list_pool_jobs": self.list_jobs,
            "provision_pool_job": self.provision,
            "quote_pool_job": self.quote,
            "end_pool_job": self.end_job,
            "mark_pool_job": self.mark_job,
            "list_pool_plans": self.list_plans,
            "get_pool_plan": self.get_plan,
            "confirm_pool_step": self.confirm_step,
            "fail_pool_step": self.fail_step,
        }

    # --------------------------------------------------------------------------------------------- machines and budgets

    async def list_machines(self, call: Call) -> Answer:
        machines = await (await self._desk()).machines()
        return _page(call, machines, lambda machine: (machine.name,), machine_object, (str,))

    async def set_machine(self, call: Call) -> Answer:
        assert isinstance(call.value, PoolMachineChange)
        machine = Machine(call.path["name"], call.value.devices, call.value.device_type or DEFAULT_DEVICE_TYPE)
        await (await self._desk()).set_machine(call.caller, machine)
        return Answer(machine_object(machine))

    async def remove_machine(self, call: Call) -> Answer:
        await (await self._desk()).remove_machine(call.caller, call.path["name"])
        return Answer()

    async def list_budgets(self, call: Call) -> Answer:
        budgets = await (await self._desk()).budgets(call.caller)
        return _page(call, budgets, lambda budget: (budget.team, budget.device_type), budget_object)

    async def set_budget(self, call: Call) -> Answer:
        assert isinstance(call.value, PoolBudgetChange)
        wish = Wish(call.value.amount, call.value.device_type or DEFAULT_DEVICE_TYPE)
        return Answer(budget_object(await (await self._desk()).set_budget(call.caller, call.path["team"], wish)))

    async def remove_team(self, call: Call) -> Answer:
        await (await self._desk()).remove_team(call.caller, call.path["team"])
        return Answer()

    # ------------------------------------------------------------------------------------------------------------ jobs

    async def list_jobs(self, call: Call) -> Answer:
        jobs = await (await self._desk()).jobs(call.caller, call.text("team"))
        return _page(call, jobs, lambda view: (view.id.team, view.id.job), job_object)

    async def provision(self, call: Call) -> Answer:
        return Answer(plan_object(await (await self._desk()).provision(call.caller, _asked(call))))

    async def quote(self, call: Call) -> Answer:
        return Answer(quote_object(await (await self._desk()).quote(call.caller, _asked(call))))

    async def end_job(self, call: Call) -> Answer:
        assert isinstance(call.value, PoolJobId)
        job = JobUniqueIdentifier(job=call.value.name, team=call.value.team)
        await (await self._desk()).job_ended(call.caller, job, call.key)
        return Answer()

    async def mark_job(self, call: Call) -> Answer:
        assert isinstance(call.value, PoolPriority)
        job = JobUniqueIdentifier(job=call.value.name, team=call.value.team)
        view = await (await self._desk()).mark_job_priority(call.caller, job, call.value.priority)
        return Answer(job_object(view))

    # ----------------------------------------------------------------------------------------------------------- plans

    async def list_plans(self, call: Call) -> Answer:
        plans = await (await self._desk()).plans(call.caller, open_only=not call.flag("all"))
        return _page(call, plans, lambda plan: (plan.made_at_ms, plan.id), plan_object, (int, str))

    async def get_plan(self, call: Call) -> Answer:
        return Answer(plan_object(await (await self._desk()).plan(call.caller, call.path["id"])))

    async def confirm_step(self, call: Call) -> Answer:
        plan, number = call.path["id"], _step(call)
        return Answer(plan_object(await (await self._desk()).confirm(call.caller, plan, number, call.key)))

    async def fail_step(self, call: Call) -> Answer:
        assert isinstance(call.value, PoolFailure)
        plan, number = call.path["id"], _step(call)
        return Answer(plan_object(await (await self._desk()).fail(call.caller, plan, number, call.value.why, call.key)))


def _asked(call: Call) -> Asked:
    body = call.value
    assert isinstance(body, PoolRequest)
    if (body.amount is None) == (not body.alternatives):
        what = "a request has either an amount or alternatives"
        raise RefusedError(ProblemReason.BAD_FIELD, what, fix='send "amount": "0.5", or alternatives', field="amount")
    wishes = tuple(Wish(one.amount, one.device_type) for one in body.alternatives)
    if body.amount is not None:
        wishes = (Wish(body.amount),)
    return Asked(
        job=JobUniqueIdentifier(job=body.name, team=body.team),
        wishes=check_wishes(wishes),
        priority=body.priority,
        checkpointable=body.checkpointable,
        key=call.key,
    )


def _step(call: Call) -> int:
    text = call.path["number"]
    if not _STEP.fullmatch(text):
        raise StepUnknownError(f'"{text[:40]}" is no number of a step', fix="steps count from 1")
    return int(text)


def _page(
    call: Call,
    items: Iterable[Item],
    key: Callable[[Item], Key],
    shown: Callable[[Item], object],
    shape: tuple[type, ...] = (str, str),
) -> Answer:
    """A part of a list, in the order of its keys, which are of this shape."""
    limit, begin = call.limit, after(call, shape)
    rest = (item for item in sorted(items, key=key) if begin is None or key(item) > begin)
    found = list(islice(rest, limit + 1))
    more = next_cursor(call, key(found[limit - 1])) if len(found) > limit else None
    return Answer(Page(tuple(map(shown, found[:limit])), more, call.state.seq))
