"""What every call of the gRPC service takes and does.

Place in the flow: server ─Caller, message─▶ **calls** ─▶ desk. Whether the caller may is settled before. A test
compares these with the .proto, and with the operations over REST.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from gpuyard.vdk.serving import gpu_resource_manager_pb2 as pb
from gpuyard.vdk.serving.desk import Desk
from gpuyard.vdk.serving.messages import (
    asked_of,
    budget_message,
    id_of,
    job_message,
    machine_message,
    machine_of,
    plan_message,
    quote_message,
    wish_of,
)
from gpuyard.wire.access import Caller

Handle = Callable[[Desk, Caller, Any], Awaitable[Message]]


class PoolCall(NamedTuple):
    """One call."""

    request: type[Message]
    handle: Handle


async def _provision(desk: Desk, caller: Caller, message: pb.ProvisionRequest) -> pb.Plan:
    return plan_message(await desk.provision(caller, asked_of(message)))


async def _job_ended(desk: Desk, caller: Caller, message: pb.JobEndedRequest) -> pb.JobEndedResponse:
    await desk.job_ended(caller, id_of(message.job))
    return pb.JobEndedResponse()


async def _mark(desk: Desk, caller: Caller, message: pb.MarkJobPriorityRequest) -> pb.MarkJobPriorityResponse:
    await desk.mark_job_priority(caller, id_of(message.job), message.priority)
    return pb.MarkJobPriorityResponse()


async def _confirm(desk: Desk, caller: Caller, message: pb.ConfirmStepRequest) -> pb.Plan:
    return plan_message(await desk.confirm(caller, message.plan, message.number))


async def _fail(desk: Desk, caller: Caller, message: pb.FailStepRequest) -> pb.Plan:
    return plan_message(await desk.fail(caller, message.plan, message.number, message.why))


async def _get_plan(desk: Desk, caller: Caller, message: pb.GetPlanRequest) -> pb.Plan:
    return plan_message(await desk.plan(caller, message.plan))


async def _list_plans(desk: Desk, caller: Caller, message: pb.ListPlansRequest) -> pb.ListPlansResponse:
    plans = await desk.plans(caller, open_only=not message.all)
    return pb.ListPlansResponse(plans=list(map(plan_message, plans)))


async def _quote(desk: Desk, caller: Caller, message: pb.ProvisionRequest) -> pb.QuoteResponse:
    return quote_message(await desk.quote(caller, asked_of(message)))


async def _set_machine(desk: Desk, caller: Caller, message: pb.SetMachineRequest) -> pb.SetMachineResponse:
    await desk.set_machine(caller, machine_of(message.machine))
    return pb.SetMachineResponse()


async def _remove_machine(desk: Desk, caller: Caller, message: pb.RemoveMachineRequest) -> pb.RemoveMachineResponse:
    await desk.remove_machine(caller, message.name)
    return pb.RemoveMachineResponse()


async def _list_machines(desk: Desk, _: Caller, __: pb.ListMachinesRequest) -> pb.ListMachinesResponse:
    return pb.ListMachinesResponse(machines=list(map(machine_message, await desk.machines())))


async def _set_budget(desk: Desk, caller: Caller, message: pb.SetBudgetRequest) -> pb.SetBudgetResponse:
    await desk.set_budget(caller, message.budget.team, wish_of(message.budget))
    return pb.SetBudgetResponse()


async def _remove_team(desk: Desk, caller: Caller, message: pb.RemoveTeamRequest) -> pb.RemoveTeamResponse:
    await desk.remove_team(caller, message.team)
    return pb.RemoveTeamResponse()


async def _list_budgets(desk: Desk, caller: Caller, _: pb.ListBudgetsRequest) -> pb.ListBudgetsResponse:
    return pb.ListBudgetsResponse(budgets=list(map(budget_message, await desk.budgets(caller))))


async def _list_jobs(desk: Desk, caller: Caller, message: pb.ListJobsRequest) -> pb.ListJobsResponse:
    return pb.ListJobsResponse(jobs=list(map(job_message, await desk.jobs(caller, message.team))))


CALLS: Final[dict[str, PoolCall]] = {
    "TryProvisionResources": PoolCall(pb.ProvisionRequest, _provision),
    "JobEnded": PoolCall(pb.JobEndedRequest, _job_ended),
    "MarkJobPriority": PoolCall(pb.MarkJobPriorityRequest, _mark),
    "ConfirmStep": PoolCall(pb.ConfirmStepRequest, _confirm),
    "FailStep": PoolCall(pb.FailStepRequest, _fail),
    "GetPlan": PoolCall(pb.GetPlanRequest, _get_plan),
    "ListPlans": PoolCall(pb.ListPlansRequest, _list_plans),
    "Quote": PoolCall(pb.ProvisionRequest, _quote),
    "SetMachine": PoolCall(pb.SetMachineRequest, _set_machine),
    "RemoveMachine": PoolCall(pb.RemoveMachineRequest, _remove_machine),
    "ListMachines": PoolCall(pb.ListMachinesRequest, _list_machines),
    "SetBudget": PoolCall(pb.SetBudgetRequest, _set_budget),
    "RemoveTeam": PoolCall(pb.RemoveTeamRequest, _remove_team),
    "ListBudgets": PoolCall(pb.ListBudgetsRequest, _list_budgets),
    "ListJobs": PoolCall(pb.ListJobsRequest, _list_jobs),
}
