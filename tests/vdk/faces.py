"""The pool over both of its faces, as one kind of client: what holds over REST must hold over gRPC."""

from __future__ import annotations

from typing import Any

import grpc
import httpx2
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass

from gpuyard.vdk.serving import gpu_resource_manager_pb2 as pb
from gpuyard.vdk.serving.server import PROBLEM, REASON, SERVICE

METHODS = pb.DESCRIPTOR.services_by_name["GpuResourceManager"].methods_by_name
TIMEOUT_S = 30


class RefusedError(Exception):
    """What either face refuses."""

    def __init__(self, reason: str, what: str, code: object) -> None:
        super().__init__(f"{reason}: {what}")
        self.reason = reason
        self.what = what
        self.code = code


class RestPool:
    """Over REST."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx2.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=TIMEOUT_S, trust_env=False
        )

    def close(self) -> None:
        self._http.close()

    def ask(self, method: str, path: str, body: object = None, **options: Any) -> Any:
        sent: dict[str, Any] = {} if body is None else {"json": body}
        response = self._http.request(method, f"/v1/pool/{path}", **sent, **options)
        if response.is_success:
            return response.json() if response.content else None
        problem = response.json()
        raise RefusedError(problem["reason"], problem["detail"], response.status_code)

    def set_machine(self, name: str, devices: int, device_type: str = "") -> None:
        self.ask("PUT", f"machines/{name}", {"devices": devices, "device_type": device_type})

    def remove_machine(self, name: str) -> None:
        self.ask("DELETE", f"machines/{name}")

    def set_budget(self, team: str, amount: str, device_type: str = "") -> None:
        self.ask("PUT", f"budgets/{team}", {"amount": amount, "device_type": device_type})

    def remove_team(self, team: str) -> None:
        self.ask("DELETE", f"budgets/{team}")

    def provision(self, team: str, name: str, amount: object, device_type: str = "", **more: Any) -> Any:
        key = more.pop("key", None)
        wish = {"amount": amount, "device_type": device_type}
        headers = {"Idempotency-Key": key} if key else {}
        body = {"name": name, "team": team, "alternatives": [wish], **more}
        return self.ask("POST", "provision", body, headers=headers)

    def quote(self, team: str, name: str, amount: object, device_type: str = "") -> Any:
        wish = {"amount": amount, "device_type": device_type}
        return self.ask("POST", "quote", {"name": name, "team": team, "alternatives": [wish]})

    def ended(self, team: str, name: str) -> None:
        self.ask("POST", "ended", {"name": name, "team": team})

    def priority(self, team: str, name: str, priority: bool) -> None:
        self.ask("POST", "priority", {"name": name, "team": team, "priority": priority})

    def confirm(self, plan: str, number: int) -> Any:
        return self.ask("POST", f"plans/{plan}/steps/{number}/confirm")

    def fail(self, plan: str, number: int, why: str = "") -> Any:
        return self.ask("POST", f"plans/{plan}/steps/{number}/fail", {"why": why})

    def plan(self, plan: str) -> Any:
        return self.ask("GET", f"plans/{plan}")

    def everything(self) -> Any:
        """All that can be seen, to tell whether anything has changed."""
        return [self.ask("GET", f"{what}?limit=1000")["items"] for what in ("machines", "budgets", "jobs", "plans")]

    # The words both faces share

    @staticmethod
    def id_of(plan: Any) -> str:
        return str(plan["plan"])

    @staticmethod
    def actions_of(plan: Any) -> list[tuple[str, str, str]]:
        return [(one["action"], one["name"], one["machine"]) for one in plan["actions"]]

    @staticmethod
    def state_of(plan: Any) -> str:
        return str(plan["state"])


class GrpcPool:
    """Over gRPC, by the published .proto alone."""

    def __init__(self, address: str, token: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._channel = grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()

    def close(self) -> None:
        self._channel.close()

    def ask(self, name: str, message: dict[str, Any] | bytes) -> Any:
        method = METHODS[name]
        empty = GetMessageClass(method.input_type)()
        request = message if isinstance(message, bytes) else ParseDict(message, empty).SerializeToString()
        call: Any = self._channel.unary_unary(
            f"/{SERVICE}/{name}", response_deserializer=GetMessageClass(method.output_type).FromString
        )
        try:
            answer = call(request, metadata=self._metadata, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise _refused(error) from None
        return MessageToDict(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)

    def set_machine(self, name: str, devices: int, device_type: str = "") -> None:
        self.ask("SetMachine", {"machine": {"name": name, "devices": devices, "device_type": device_type}})

    def remove_machine(self, name: str) -> None:
        self.ask("RemoveMachine", {"name": name})

    def set_budget(self, team: str, amount: str, device_type: str = "") -> None:
        self.ask("SetBudget", {"budget": {"team": team, "amount": amount, "device_type": device_type}})

    def remove_team(self, team: str) -> None:
        self.ask("RemoveTeam", {"team": team})

    def provision(self, team: str, name: str, amount: object, device_type: str = "", **more: Any) -> Any:
        key = more.pop("key", "")
        return self.ask(
            "TryProvisionResources", {**_wanted(team, name, amount, device_type, more), "idempotency_key": key}
        )

    def quote(self, team: str, name: str, amount: object, device_type: str = "") -> Any:
        return self.ask("Quote", _wanted(team, name, amount, device_type, {}))

    def ended(self, team: str, name: str) -> None:
        self.ask("JobEnded", {"job": {"job": name, "team": team}})

    def priority(self, team: str, name: str, priority: bool) -> None:
        self.ask("MarkJobPriority", {"job": {"job": name, "team": team}, "priority": priority})

    def confirm(self, plan: str, number: int) -> Any:
        return self.ask("ConfirmStep", {"plan": plan, "number": number})

    def fail(self, plan: str, number: int, why: str = "") -> Any:
        return self.ask("FailStep", {"plan": plan, "number": number, "why": why})

    def plan(self, plan: str) -> Any:
        return self.ask("GetPlan", {"plan": plan})

    def everything(self) -> Any:
        return [self.ask(what, {}) for what in ("ListMachines", "ListBudgets", "ListJobs", "ListPlans")]

    @staticmethod
    def id_of(plan: Any) -> str:
        return str(plan["id"])

    @staticmethod
    def actions_of(plan: Any) -> list[tuple[str, str, str]]:
        return [_action(step["action"]) for step in plan["steps"]]

    @staticmethod
    def state_of(plan: Any) -> str:
        return str(plan["state"]).removeprefix("PLAN_STATE_").lower().replace("_", "-")


def _wanted(team: str, name: str, amount: object, device_type: str, more: dict[str, Any]) -> dict[str, Any]:
    wish = {"amount": str(amount), "device_type": device_type}
    return {"job": {"job": name, "team": team}, "alternatives": [wish], **more}


def _action(action: dict[str, Any]) -> tuple[str, str, str]:
    kind = next(kind for kind in ("create", "move", "delete") if kind in action)
    return f"{kind.capitalize()}Job", action["job"]["job"], action[kind]["place"]["machine"]


def _refused(error: Any) -> RefusedError:
    trailing = {item.key: item.value for item in error.trailing_metadata() or ()}
    whole = pb.Problem.FromString(trailing[PROBLEM]) if PROBLEM in trailing else pb.Problem()
    assert trailing.get(REASON, "") == whole.reason
    return RefusedError(whole.reason, error.details(), error.code())


Pool = RestPool | GrpcPool
