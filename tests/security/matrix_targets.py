"""What each operation is tried on: something fresh, of a certain owner and team, in the state the operation is for.

For every operation a request that succeeds if the role allows it, so that a refusal can have no other reason.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from enum import Enum
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from gpuyard.wire.operations import Operation
from gpuyard.worlds.standalone.events import ScheduleSet
from gpuyard.worlds.standalone.hub import Contact
from gpuyard.worlds.standalone.intents import AdmitNode, DrainNode, SetUser, Steer, Submission, Submit
from tests.service.yard import Yard
from tests.vdk.control.folders import STEP, config, packed
from tests.vdk.control.jobs import OCTETS, DataJobs

OWN, SAME_TEAM, OTHER_TEAM, NOBODY = "own", "same team", "other team", "nobody's"


class Shape(Enum):
    """How the rights to an operation are told apart."""

    CLUSTER = "cluster"
    """About no team: who has the permission anywhere may."""
    TEAM = "team"
    """Names a team, which everybody may know."""
    THING = "thing"
    """Names something that others do not see."""
    LIST = "list"
    """Shows what its caller may see."""
    TOKEN = "token"
    """One's own, or everybody's for who manages users."""


TARGETS: Final[dict[Shape, tuple[str, ...]]] = {
    Shape.CLUSTER: (OWN,),
    Shape.TEAM: (OWN, OTHER_TEAM),
    Shape.THING: (OWN, SAME_TEAM, OTHER_TEAM, NOBODY),
    Shape.LIST: (OWN, SAME_TEAM, OTHER_TEAM),
    Shape.TOKEN: (OWN, OTHER_TEAM, NOBODY),
}


class Try(NamedTuple):
    """One request."""

    path: str
    options: dict[str, Any]
    mark: str = ""
    """What a list shows if it shows the target."""


Make = Callable[["Stage", str, str], Try]
_numbers = count(1)


def fresh(word: str) -> str:
    return f"{word}-{next(_numbers):05}"


def team_of(target: str) -> str:
    return {OTHER_TEAM: "speech", NOBODY: "nowhere"}.get(target, "vision")


class Stage:
    """A manager with something of everything."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.used = False
        """Both teams have used something."""
        for path, body in (
            ("/v1/pool/machines/large", {"devices": 1000}),
            ("/v1/pool/budgets/vision", {"amount": 1000}),
            ("/v1/pool/budgets/speech", {"amount": 1000}),
        ):
            assert yard.ask("root", "PUT", path, json=body).status_code == 200
        for team in ("vision", "speech"):
            self.data_job(team, "shared-job")

    def clear(self) -> None:
        """End all jobs, so that the next find room; and see that the manager goes on."""
        for job in [job for job in self.yard.manager.state.jobs.values() if not job.over]:
            self.yard.do(Steer(job.id, "cancel"))
        failed = self.yard.manager.failed
        assert failed is not None
        assert not failed.done(), "".join(traceback.format_exception(failed.exception()))

    def data_job(self, team: str, name: str) -> None:
        jobs = DataJobs(self.yard, "root", team)
        jobs.create(name)
        jobs.deploy(name)

    def job(self, user: str, target: str, *states: str, **fields: Any) -> str:
        """A job of somebody, also of a person who may not submit: as if they had been able to before."""
        if target == NOBODY:
            return "999999"
        owner = {SAME_TEAM: "mia", OTHER_TEAM: "sam"}.get(target, user)
        body = {"command": ["x"], "team": team_of(target), "gpus": 0, **fields}
        made = self.yard.ask("root", "POST", "/v1/jobs?allow_never=1", json={**body, "hold": True})
        assert made.status_code == 201, made.text
        like = self.yard.manager.state.jobs[made.json()["jobs"][0]["id"]]
        self.yard.do(Steer(like.id, "cancel"))
        form = msgspec.structs.replace(like.form, id="")
        held = bool(fields.get("hold"))
        id = str(self.yard.do(Submit(Submission(fresh("job"), owner, form, like.work, held=held))).jobs[0])
        if states:
            self.yard.wait_for(id, *states)
        return id

    def schedule(self, user: str, target: str) -> str:
        if target == NOBODY:
            return "vision/none-of-this-name"
        owner = {SAME_TEAM: "mia", OTHER_TEAM: "sam"}.get(target, user)
        team, name = team_of(target), fresh("nightly")
        body = {"cron": "0 0 1 1 *", "job": {"command": ["x"], "gpus": 0, "hold": True}}
        assert self.yard.ask("root", "PUT", f"/v1/schedules/{team}/{name}", json=body).status_code == 200
        record = self.yard.manager.state.schedules[f"{team}/{name}"]
        handed = msgspec.structs.replace(record.submission, user=owner)
        self.yard.call(
            lambda: self.yard.manager.record([ScheduleSet(record.id, record.recurrence, handed, record.written)])
        )
        return f"{team}/{name}"

    def pool_job(self, target: str) -> tuple[str, str]:
        """Its name, and its open plan."""
        name = fresh("pool")
        if target == NOBODY:
            return name, "999999"
        body = {"name": name, "team": team_of(target), "amount": "0.1"}
        made = self.yard.ask("root", "POST", "/v1/pool/provision", json=body)
        assert made.status_code == 201, made.text
        return name, str(made.json()["plan"])

    def execution(self, user: str, target: str) -> tuple[str, str, str]:
        """Team, data job and id of one that runs."""
        if target == NOBODY:
            return "vision", "shared-job", "999999"
        team, name = team_of(target), fresh("data")
        self.data_job(team, name)
        started = self.yard.manager.state.jobs[DataJobs(self.yard, "root", team).start(name)]
        self.yard.do(Steer(started.id, "cancel"))
        owner = {SAME_TEAM: "mia", OTHER_TEAM: "sam"}.get(target, user)
        form = msgspec.structs.replace(started.form, id="")
        id = str(self.yard.do(Submit(Submission(name, owner, form, started.work))).jobs[0])
        self.yard.wait_for(id, "running")
        return team, name, id

    def token(self, user: str, target: str) -> str:
        if target == NOBODY:
            return "0" * 16
        return self.yard.token(user if target == OWN else "sam").split("_")[1]


# ------------------------------------------------------------------------------------------------------ requests


def plain(path: str, body: Any = None, **query: str) -> Make:
    """Always the same request."""
    options = {**({} if body is None else {"json": body}), **({"params": query} if query else {})}
    return lambda stage, user, target: Try(path, options)


def on_job(verb: str, *states: str, body: Any = None, before: str = "", **fields: Any) -> Make:
    def make(stage: Stage, user: str, target: str) -> Try:
        id = stage.job(user, target, *states, **fields)
        if before and target != NOBODY:
            stage.yard.do(Steer(id, before))
        return Try(f"/v1/jobs/{id}{verb}", {} if body is None else {"json": body}, f"job/{id}")

    return make


def on_schedule(verb: str) -> Make:
    return lambda stage, user, target: Try(f"/v1/schedules/{stage.schedule(user, target)}{verb}", {})


def new_schedule(stage: Stage, user: str, target: str) -> Try:
    body = {"cron": "@yearly", "job": {"command": ["x"], "gpus": 0}}
    return Try(f"/v1/schedules/{team_of(target)}/{fresh('fresh')}", {"json": body})


def submission(path: str) -> Make:
    return lambda stage, user, target: Try(
        path, {"json": {"command": ["x"], "team": team_of(target), "gpus": 0, "hold": True}}
    )


def listed(path: str, **query: str) -> Make:
    """A list that shows a job."""

    def make(stage: Stage, user: str, target: str) -> Try:
        id = stage.job(user, target, hold=True)
        return Try(path, {"params": {"limit": "1000", **query}}, f'"{id}"' if path == "/v1/jobs" else f'"job/{id}"')

    return make


def used(stage: Stage, user: str, target: str) -> Try:
    if not stage.used:
        for team in (OWN, OTHER_TEAM):
            stage.job("max", team, "running", gpus=1)
        stage.yard.clock.ahead_ms += 60_000
        stage.used = True
    return Try("/v1/usage", {"params": {"by": "team"}}, f'"team":"{team_of(target)}"')


def schedules(stage: Stage, user: str, target: str) -> Try:
    name = stage.schedule(user, target).split("/")[1]
    return Try("/v1/schedules", {"params": {"limit": "1000"}}, f'"{name}"')


def pool_list(path: str) -> Make:
    def make(stage: Stage, user: str, target: str) -> Try:
        name, _ = stage.pool_job(target)
        mark = f'"team":"{team_of(target)}"' if "budgets" in path else f'"{name}"'
        return Try(path, {"params": {"limit": "1000"}}, mark)

    return make


def pool_request(path: str) -> Make:
    return lambda stage, user, target: Try(
        path, {"json": {"name": fresh("asked"), "team": team_of(target), "amount": "0.1"}}
    )


def pool_step(verb: str, body: Any = None) -> Make:
    return lambda stage, user, target: Try(
        f"/v1/pool/plans/{stage.pool_job(target)[1]}{verb}", {} if body is None else {"json": body}
    )


def pool_job(path: str, **more: Any) -> Make:
    def make(stage: Stage, user: str, target: str) -> Try:
        name, _ = stage.pool_job(target)
        return Try(path, {"json": {"name": name, "team": "vision" if target == NOBODY else team_of(target), **more}})

    return make


def member(body: Any = None) -> Make:
    return lambda stage, user, target: Try(
        f"/v1/teams/{team_of(target)}/members/ida", {} if body is None else {"json": body}
    )


def fresh_of(path: str, make_it: str, body: Any, *, method: str = "PUT") -> Make:
    """Something that is made first, and is then there to be taken away."""

    def make(stage: Stage, user: str, target: str) -> Try:
        name = fresh("fresh")
        if make_it:
            made = stage.yard.ask("root", method, make_it.format(name=name), json=body(name))
            assert made.status_code < 300, made.text
        return Try(path.format(name=name), {})

    return make


def in_data_job(path: str, options: dict[str, Any] | None = None, *, new: bool = False) -> Make:
    def make(stage: Stage, user: str, target: str) -> Try:
        team, name = team_of(target), "shared-job"
        if new and target != NOBODY:
            name = fresh("data")
            stage.data_job(team, name)
        asked = options or {}
        if "json" in asked and "job_name" in asked["json"]:
            asked = {"json": {"job_name": name}}
        return Try(f"/data-jobs/for-team/{team}/jobs/{name}{path}", asked)

    return make


def new_data_job(stage: Stage, user: str, target: str) -> Try:
    return Try(f"/data-jobs/for-team/{team_of(target)}/jobs", {"json": {"job_name": fresh("data")}})


def data_jobs(stage: Stage, user: str, target: str) -> Try:
    query = "{ jobs(pageNumber: 1, pageSize: 1000) { content { jobName config { team } } } }"
    return Try("/data-jobs/for-team/vision/jobs", {"params": {"query": query}}, f'"team":"{team_of(target)}"')


def on_execution(verb: str) -> Make:
    def make(stage: Stage, user: str, target: str) -> Try:
        team, name, id = stage.execution(user, target)
        return Try(f"/data-jobs/for-team/{team}/jobs/{name}/executions/{id}{verb}", {})

    return make


def on_node(verb: str, body: Any = None) -> Make:
    """On a node of its own, from which nothing is heard any more."""

    def make(stage: Stage, user: str, target: str) -> Try:
        name = fresh("node")
        stage.yard.do(AdmitNode(name, ""))
        if verb == "/declare-lost":
            hub = stage.yard.manager.core.hub
            long_ago_ms = stage.yard.manager.clock.steady_ms() - 10 * hub.lease_ms
            hub.contacts[name] = Contact(long_ago_ms, long_ago_ms)
        if verb == "/resume":
            stage.yard.do(DrainNode(name))
        return Try(f"/v1/nodes/{name}{verb}", {} if body is None else {"json": body})

    return make


C, T, H, L = Shape.CLUSTER, Shape.TEAM, Shape.THING, Shape.LIST
SOURCES: Final = {"content": packed({"config.ini": config("x"), "10_a.py": STEP}), "headers": OCTETS}

ON: Final[dict[str, tuple[Shape, Make]]] = {
    "metrics": (C, plain("/metrics")),
    "openapi": (C, plain("/v1/openapi.json")),
    "status": (C, plain("/v1/status")),
    "whoami": (C, plain("/v1/whoami")),
    "list_jobs": (L, listed("/v1/jobs")),
    "submit_job": (T, submission("/v1/jobs")),
    "get_job": (H, on_job("", hold=True)),
    "explain_job": (H, on_job("/explanation", hold=True)),
    "read_logs": (H, on_job("/logs", "running")),
    "cancel_job": (H, on_job("/cancel", hold=True)),
    "hold_job": (H, on_job("/hold", gpus=9)),
    "release_job": (H, on_job("/release", hold=True)),
    "suspend_job": (H, on_job("/suspend", gpus=9)),
    "resume_job": (H, on_job("/resume", gpus=9, before="suspend")),
    "requeue_job": (H, on_job("/requeue", "running")),
    "scale_job": (H, on_job("/scale", body={"tasks": 2, "min_tasks": 1}, gpus=9, tasks=3, gang=1)),
    "plan_job": (T, submission("/v1/plan")),
    "what_if": (C, plain("/v1/what-if", {"queues": {"vision": {"quota": 3}}})),
    "list_schedules": (L, schedules),
    "get_schedule": (H, on_schedule("")),
    "set_schedule": (T, new_schedule),
    "remove_schedule": (H, on_schedule("")),
    "pause_schedule": (H, on_schedule("/pause")),
    "resume_schedule": (H, on_schedule("/resume")),
    "run_schedule": (H, on_schedule("/run")),
    "list_teams": (C, plain("/v1/teams")),
    "get_team": (C, plain("/v1/teams/vision")),
    "set_teams": (C, plain("/v1/teams", {"queues": {"vision": 4, "speech": 2}}, dry_run="1")),
    "change_teams": (C, plain("/v1/teams", {"queues": {"product": {"quota": 2}}}, dry_run="1")),
    "remove_team": (C, plain("/v1/teams/product", dry_run="1")),
    "set_member": (T, member({"role": "viewer"})),
    "remove_member": (T, member()),
    "list_nodes": (C, plain("/v1/nodes")),
    "get_node": (C, plain("/v1/nodes/m1")),
    "drain_node": (C, on_node("/drain")),
    "resume_node": (C, on_node("/resume")),
    "declare_lost_node": (C, on_node("/declare-lost")),
    "change_node": (C, on_node("", body={"labels": {"zone": "a"}})),
    "remove_node": (C, on_node("")),
    "list_devices": (C, plain("/v1/devices")),
    "list_events": (L, listed("/v1/events")),
    "list_audit": (L, listed("/v1/audit")),
    "usage": (L, used),
    "list_users": (C, plain("/v1/users")),
    "set_user": (C, plain("/v1/users/somebody", {"grants": []})),
    "remove_user": (C, fresh_of("/v1/users/{name}", "/v1/users/{name}", lambda name: {"grants": []})),
    "list_tokens": (C, plain("/v1/tokens")),
    "create_token": (C, plain("/v1/tokens", {"name": "t"})),
    "revoke_token": (Shape.TOKEN, lambda stage, user, target: Try(f"/v1/tokens/{stage.token(user, target)}", {})),
    "list_pool_machines": (C, plain("/v1/pool/machines")),
    "set_pool_machine": (C, plain("/v1/pool/machines/other", {"devices": 8})),
    "remove_pool_machine": (
        C,
        fresh_of("/v1/pool/machines/{name}", "/v1/pool/machines/{name}", lambda name: {"devices": 1}),
    ),
    "list_pool_budgets": (L, pool_list("/v1/pool/budgets")),
    "set_pool_budget": (C, plain("/v1/pool/budgets/vision", {"amount": "1000"})),
    "remove_pool_team": (
        C,
        fresh_of("/v1/pool/budgets/{name}", "/v1/pool/budgets/{name}", lambda name: {"amount": 1}),
    ),
    "list_pool_jobs": (L, pool_list("/v1/pool/jobs")),
    "provision_pool_job": (T, pool_request("/v1/pool/provision")),
    "quote_pool_job": (T, pool_request("/v1/pool/quote")),
    "end_pool_job": (H, pool_job("/v1/pool/ended")),
    "mark_pool_job": (H, pool_job("/v1/pool/priority", priority=True)),
    "list_pool_plans": (L, pool_list("/v1/pool/plans")),
    "get_pool_plan": (H, pool_step("")),
    "confirm_pool_step": (H, pool_step("/steps/1/confirm")),
    "fail_pool_step": (H, pool_step("/steps/1/fail", {})),
    "data_jobs_info": (T, lambda stage, user, target: Try(f"/data-jobs/for-team/{team_of(target)}/info", {})),
    "query_data_jobs": (L, data_jobs),
    "create_data_job": (T, new_data_job),
    "get_data_job": (H, in_data_job("")),
    "set_data_job": (H, in_data_job("", {"json": {"job_name": ""}})),
    "delete_data_job": (H, in_data_job("", new=True)),
    "upload_sources": (H, in_data_job("/sources", SOURCES)),
    "download_sources": (H, in_data_job("/sources")),
    "list_deployments": (H, in_data_job("/deployments")),
    "deploy_data_job": (H, in_data_job("/deployments", {"json": {}})),
    "get_deployment": (H, in_data_job("/deployments/production")),
    "patch_deployment": (H, in_data_job("/deployments/production", {"json": {}})),
    "remove_deployment": (H, in_data_job("/deployments/production", new=True)),
    "list_executions": (H, in_data_job("/executions")),
    "list_deployment_executions": (H, in_data_job("/deployments/production/executions")),
    "start_execution": (H, in_data_job("/deployments/production/executions", {"json": {}}, new=True)),
    "get_execution": (H, on_execution("")),
    "cancel_execution": (H, on_execution("")),
    "execution_logs": (H, on_execution("/logs")),
    "get_properties": (H, in_data_job("/deployments/production/properties")),
    "set_properties": (H, in_data_job("/deployments/production/properties", {"json": {"a": 1}})),
}
"""The shape of each operation's rights, and what it is tried on. `join_node` has tests of its own (test_signin)."""


def put_back(stage: Stage, operation: Operation) -> None:
    """Undo what would be in the way of the next who tries the same."""
    if operation.name in ("set_member", "remove_member"):
        from gpuyard.wire.access import Grant, Role

        stage.yard.do(SetUser("ida", (Grant(Role.VIEWER, "research"),)))
