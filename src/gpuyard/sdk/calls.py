"""Requests as values, built from the table of operations: everything both clients have in common before sending.

Place in the flow: a method of a client ─arguments─▶ **Call** ─▶ its transport. Invariant: a call that changes something
carries an Idempotency-Key from the moment it is made, so sending it twice does it once; no secret is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from gpuyard.errors import MalformedError
from gpuyard.platform.chance import new_key
from gpuyard.sdk.bodies import Body, JobRequest, ScheduleRequest, TeamsChange, YamlText, encoded
from gpuyard.wire import pool, rest
from gpuyard.wire.data_job_operations import DATA_JOB_OPERATIONS
from gpuyard.wire.operations import OPERATIONS, Operation

Answer = TypeVar("Answer")

PAGE: Final = 500
"""Items of a list that are fetched at a time."""
IDEMPOTENCY_KEY: Final = "Idempotency-Key"

BY_NAME: Final[dict[str, Operation]] = {operation.name: operation for operation in (*OPERATIONS, *DATA_JOB_OPERATIONS)}


class Call(msgspec.Struct, Generic[Answer], frozen=True):
    """One request, ready to be sent as often as it takes."""

    operation: Operation
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes = b""

    @property
    def safe(self) -> bool:
        """Whether it may be sent again when nobody knows if it arrived."""
        return self.operation.method in ("GET", "POST")

    def after(self, cursor: str) -> Call[Answer]:
        """The same for the rest of a list."""
        kept = tuple((name, value) for name, value in self.query if name != "cursor")
        return replace(self, query=(*kept, ("cursor", cursor)))

    def with_header(self, name: str, value: str) -> Call[Answer]:
        return replace(self, headers=(*self.headers, (name, value)))

    def with_query(self, name: str, value: object) -> Call[Answer]:
        kept = tuple((known, text) for known, text in self.query if known != name)
        return replace(self, query=(*kept, (name, _text(value))))

    def verbatim(self) -> Call[Any]:
        """The same; the answer, or each item of a page, is left as the server wrote it, unknown fields included."""
        answer = rest.Page[msgspec.Raw] if _is_page(self.operation.answer) else msgspec.Raw
        return Call(replace(self.operation, answer=answer), self.path, self.query, self.headers, self.content)


def call(
    name: str,
    *,
    path: Mapping[str, str] | None = None,
    query: Mapping[str, object] | None = None,
    body: Body | None = None,
    if_revision: int | None = None,
) -> Call[Any]:
    """A request for the operation of that name. Values of the query that are the default are left out."""
    operation = BY_NAME[name]
    headers = []
    content = b""
    if body is not None:
        content, media = encoded(body)
        headers.append(("Content-Type", media))
    if operation.changes:
        headers.append((IDEMPOTENCY_KEY, new_key()))
    if if_revision is not None:
        headers.append(("If-Match", f'"{if_revision}"'))
    return Call(operation, _path(operation, path or {}), _query(operation, query or {}), tuple(headers), content)


def _path(operation: Operation, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        # Servers fold dots away, so these would be another path.
        if value in ("", ".", ".."):
            raise MalformedError(f'"{value}" is no {name}', fix="name it as the lists show it", field=name)
    return operation.path.format(**{name: quote(value, safe="") for name, value in values.items()})


def _query(operation: Operation, values: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    defaults = {parameter.name: parameter.default for parameter in operation.query}
    return tuple((name, _text(value)) for name, value in values.items() if value != defaults[name])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_page(answer: object) -> bool:
    return getattr(answer, "__origin__", None) is rest.Page


def labels_text(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


# --------------------------------------------------------------------------------------------------------- the server


def livez() -> Call[None]:
    return call("livez")


def readyz() -> Call[None]:
    return call("readyz")


def version() -> Call[rest.Version]:
    return call("version")


def metrics() -> Call[str]:
    return call("metrics")


def openapi() -> Call[dict[str, Any]]:
    return call("openapi")


def status() -> Call[rest.Status]:
    return call("status")


def whoami() -> Call[rest.Whoami]:
    return call("whoami")


# --------------------------------------------------------------------------------------------------------------- jobs


def list_jobs(
    *,
    state: str = "",
    team: str = "",
    user: str = "",
    name: str = "",
    labels: Mapping[str, str] | None = None,
    array: str = "",
    estimate: bool = True,
    limit: int = PAGE,
) -> Call[rest.Page[rest.JobObject]]:
    query = {"state": state, "team": team, "user": user, "name": name, "array": array, "estimate": estimate}
    return call("list_jobs", query={**query, "label": labels_text(labels or {}), "limit": limit})


def submit_job(job: JobRequest | YamlText, *, dry_run: bool = False, allow_never: bool = False) -> Call[rest.Submitted]:
    return call("submit_job", body=job, query={"dry_run": dry_run, "allow_never": allow_never})


def get_job(id: str) -> Call[rest.JobDetail]:
    return call("get_job", path={"id": id})


def explain_job(id: str) -> Call[rest.ExplanationObject]:
    return call("explain_job", path={"id": id})


def read_logs(
    id: str,
    *,
    task: int = 0,
    attempt: int = 0,
    offset: int = 0,
    limit: int = 0,
    follow: bool = False,
    since: str = "",
) -> Call[str]:
    query = {"task": task, "attempt": attempt, "offset": offset, "limit": limit, "follow": follow, "since": since}
    return call("read_logs", path={"id": id}, query=query)


def steer_job(verb: str, id: str, *, if_revision: int | None = None) -> Call[rest.JobObject]:
    """`verb`: cancel, hold, release, suspend, resume or requeue."""
    return call(f"{verb}_job", path={"id": id}, if_revision=if_revision)


def scale_job(id: str, scale: rest.Scale, *, if_revision: int | None = None) -> Call[rest.JobObject]:
    return call("scale_job", path={"id": id}, body=scale, if_revision=if_revision)


def plan_job(job: JobRequest | YamlText) -> Call[rest.PlanObject]:
    return call("plan_job", body=job)


def what_if(change: YamlText) -> Call[rest.DifferenceObject]:
    return call("what_if", body=change)


# ----------------------------------------------------------------------------------------------------- recurring jobs


def list_schedules(*, team: str = "", owner: str = "", limit: int = PAGE) -> Call[rest.Page[rest.ScheduleObject]]:
    return call("list_schedules", query={"team": team, "owner": owner, "limit": limit})


def get_schedule(team: str, name: str) -> Call[rest.ScheduleDetail]:
    return call("get_schedule", path={"team": team, "name": name})


def set_schedule(
    team: str,
    name: str,
    schedule: ScheduleRequest | YamlText,
    *,
    dry_run: bool = False,
    allow_never: bool = False,
    if_revision: int | None = None,
) -> Call[rest.ScheduleDetail]:
    query = {"dry_run": dry_run, "allow_never": allow_never}
    path = {"team": team, "name": name}
    return call("set_schedule", path=path, body=schedule, query=query, if_revision=if_revision)


def remove_schedule(team: str, name: str, *, if_revision: int | None = None) -> Call[None]:
    return call("remove_schedule", path={"team": team, "name": name}, if_revision=if_revision)


def pause_schedule(team: str, name: str, *, if_revision: int | None = None) -> Call[rest.ScheduleDetail]:
    return call("pause_schedule", path={"team": team, "name": name}, if_revision=if_revision)


def resume_schedule(team: str, name: str, *, if_revision: int | None = None) -> Call[rest.ScheduleDetail]:
    return call("resume_schedule", path={"team": team, "name": name}, if_revision=if_revision)


def run_schedule(team: str, name: str, *, if_revision: int | None = None) -> Call[rest.Submitted]:
    return call("run_schedule", path={"team": team, "name": name}, if_revision=if_revision)


# -------------------------------------------------------------------------------------------------------------- teams


def list_teams() -> Call[rest.Page[rest.TeamObject]]:
    return call("list_teams")


def get_team(name: str) -> Call[rest.TeamObject]:
    return call("get_team", path={"name": name})


def set_teams(
    teams: TeamsChange | YamlText, *, dry_run: bool = False, if_revision: int | None = None
) -> Call[rest.TeamsChanged]:
    return call("set_teams", body=teams, query={"dry_run": dry_run}, if_revision=if_revision)


def change_teams(
    change: TeamsChange | YamlText, *, dry_run: bool = False, if_revision: int | None = None
) -> Call[rest.TeamsChanged]:
    return call("change_teams", body=change, query={"dry_run": dry_run}, if_revision=if_revision)


def remove_team(name: str, *, dry_run: bool = False, if_revision: int | None = None) -> Call[rest.TeamsChanged]:
    return call("remove_team", path={"name": name}, query={"dry_run": dry_run}, if_revision=if_revision)


def set_member(team: str, user: str, role: str) -> Call[rest.UserObject]:
    return call("set_member", path={"name": team, "user": user}, body=rest.MemberChange(role))


def remove_member(team: str, user: str) -> Call[rest.UserObject]:
    return call("remove_member", path={"name": team, "user": user})


# -------------------------------------------------------------------------------------------------------------- nodes


def list_nodes(*, limit: int = PAGE) -> Call[rest.Page[rest.NodeObject]]:
    return call("list_nodes", query={"limit": limit})


def get_node(name: str) -> Call[rest.NodeObject]:
    return call("get_node", path={"name": name})


def drain_node(name: str, *, if_revision: int | None = None) -> Call[rest.NodeObject]:
    return call("drain_node", path={"name": name}, if_revision=if_revision)


def resume_node(name: str, *, if_revision: int | None = None) -> Call[rest.NodeObject]:
    return call("resume_node", path={"name": name}, if_revision=if_revision)


def declare_lost_node(name: str, *, if_revision: int | None = None) -> Call[rest.NodeObject]:
    return call("declare_lost_node", path={"name": name}, if_revision=if_revision)


def change_node(name: str, change: rest.NodeChange, *, if_revision: int | None = None) -> Call[rest.NodeObject]:
    return call("change_node", path={"name": name}, body=change, if_revision=if_revision)


def remove_node(name: str, *, if_revision: int | None = None) -> Call[None]:
    return call("remove_node", path={"name": name}, if_revision=if_revision)


def join_node(request: rest.JoinRequest) -> Call[rest.Joined]:
    return call("join_node", body=request)


def list_devices(*, node: str = "", limit: int = PAGE) -> Call[rest.Page[rest.DeviceObject]]:
    return call("list_devices", query={"node": node, "limit": limit})


# ------------------------------------------------------------------------------------------------------ what happened


def list_events(
    *, since: str = "", object: str = "", kind: str = "", limit: int = PAGE
) -> Call[rest.Page[rest.EventObject]]:
    return call("list_events", query={"since": since, "object": object, "kind": kind, "limit": limit})


def watch_events(*, object: str = "", kind: str = "") -> Call[rest.EventObject]:
    return call("list_events", query={"object": object, "kind": kind, "watch": True})


def list_audit(
    *, since: str = "", until: str = "", object: str = "", actor: str = "", limit: int = PAGE
) -> Call[rest.Page[rest.EventObject]]:
    query = {"since": since, "until": until, "object": object, "actor": actor, "limit": limit}
    return call("list_audit", query=query)


def usage(*, by: str = "team", since: str = "", until: str = "") -> Call[rest.Page[rest.UsageRow]]:
    return call("usage", query={"by": by, "since": since, "until": until})


# ------------------------------------------------------------------------------------------------------------- people


def list_users() -> Call[rest.Page[rest.UserObject]]:
    return call("list_users")


def set_user(name: str, change: rest.UserChange, *, if_revision: int | None = None) -> Call[rest.UserObject]:
    return call("set_user", path={"name": name}, body=change, if_revision=if_revision)


def remove_user(name: str, *, if_revision: int | None = None) -> Call[None]:
    return call("remove_user", path={"name": name}, if_revision=if_revision)


def list_tokens() -> Call[rest.Page[rest.TokenObject]]:
    return call("list_tokens")


def create_token(request: rest.TokenRequest) -> Call[rest.CreatedToken]:
    return call("create_token", body=request)


def revoke_token(id: str) -> Call[None]:
    return call("revoke_token", path={"id": id})


# --------------------------------------------------------------------------------------------------------------- pool


def list_pool_machines(*, limit: int = PAGE) -> Call[rest.Page[pool.PoolMachine]]:
    return call("list_pool_machines", query={"limit": limit})


def set_pool_machine(name: str, change: pool.PoolMachineChange) -> Call[pool.PoolMachine]:
    return call("set_pool_machine", path={"name": name}, body=change)


def remove_pool_machine(name: str) -> Call[None]:
    return call("remove_pool_machine", path={"name": name})


def list_pool_budgets(*, limit: int = PAGE) -> Call[rest.Page[pool.PoolBudget]]:
    return call("list_pool_budgets", query={"limit": limit})


def set_pool_budget(team: str, change: pool.PoolBudgetChange) -> Call[pool.PoolBudget]:
    return call("set_pool_budget", path={"team": team}, body=change)


def remove_pool_team(team: str) -> Call[None]:
    return call("remove_pool_team", path={"team": team})


def list_pool_jobs(*, team: str = "", limit: int = PAGE) -> Call[rest.Page[pool.PoolJob]]:
    return call("list_pool_jobs", query={"team": team, "limit": limit})


def provision_pool_job(request: pool.PoolRequest) -> Call[pool.PoolPlan]:
    return call("provision_pool_job", body=request)


def quote_pool_job(request: pool.PoolRequest) -> Call[pool.PoolQuote]:
    return call("quote_pool_job", body=request)


def end_pool_job(job: pool.PoolJobId) -> Call[None]:
    return call("end_pool_job", body=job)


def mark_pool_job(job: pool.PoolPriority) -> Call[pool.PoolJob]:
    return call("mark_pool_job", body=job)


def list_pool_plans(*, all: bool = False, limit: int = PAGE) -> Call[rest.Page[pool.PoolPlan]]:
    return call("list_pool_plans", query={"all": all, "limit": limit})


def get_pool_plan(id: str) -> Call[pool.PoolPlan]:
    return call("get_pool_plan", path={"id": id})


def confirm_pool_step(id: str, number: int) -> Call[pool.PoolPlan]:
    return call("confirm_pool_step", path={"id": id, "number": str(number)})


def fail_pool_step(id: str, number: int, why: str = "") -> Call[pool.PoolPlan]:
    return call("fail_pool_step", path={"id": id, "number": str(number)}, body=pool.PoolFailure(why))
