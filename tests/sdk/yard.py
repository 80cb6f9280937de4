"""A server for tests of its clients, made of the same table of operations: small, in memory, and breakable on purpose.

It runs as a real HTTP server in a thread. What a real server decides is told to it by the test.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gpuyard.model.difference import Difference
from gpuyard.model.explanation import Explanation, Standing
from gpuyard.model.plan import Plan
from gpuyard.model.reasons import Reason, Token
from gpuyard.wire import rest
from gpuyard.wire.access import Grant, Role, Scope
from gpuyard.wire.operations import OPERATIONS, Operation

TOKEN = "gy_admin_secret"
NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
OPEN = ("livez", "readyz", "version")


class Asked(msgspec.Struct):
    """A request that arrived."""

    name: str
    path: dict[str, str]
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class ProblemError(Exception):
    def __init__(self, status: int, reason: str, detail: str, fix: str = "", field: str = "") -> None:
        self.problem = rest.Problem(reason, status, reason, detail, fix, field)


def a_job(id: str = "17", name: str = "train", state: str = "running", **more: Any) -> rest.JobDetail:
    running = state in ("running", "stopping")
    over = state in ("succeeded", "failed", "cancelled")
    task = rest.TaskObject(
        0,
        "running" if running else "ended" if over else "waiting",
        attempt=1 if running or over else 0,
        node="node-1" if running else "",
        devices=(0, 1) if running else (),
        started_at=NOW if running or over else None,
        ended_at=NOW if over else None,
    )
    fields: dict[str, Any] = {
        "id": id,
        "name": name,
        "team": "vision",
        "user": "ann",
        "state": state,
        "gpus": "2",
        "tasks": 1,
        "min_tasks": 1,
        "running_tasks": int(running),
        "nodes": ("node-1",) if running else (),
        "priority": 50,
        "preemptible": True,
        "submitted_at": NOW - timedelta(hours=2, minutes=5),
        "revision": 5,
        "started_at": NOW if running or over else None,
        "run_started_at": NOW if running or over else None,
        "ended_at": NOW if over else None,
        "task_list": (task,),
        "command": ("python", "train.py"),
    }
    return rest.JobDetail(**{**fields, **more})


def an_event(revision: int, job: str = "17", text: str = "started on node-1") -> rest.EventObject:
    raw = msgspec.Raw(b"{}")
    return rest.EventObject(revision, NOW, "attempt-began", "manager", "vision", (f"job/{job}",), text, raw)


class Yard:
    """What the server holds, and what it is to do wrong."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.jobs: dict[str, rest.JobDetail] = {}
        self.teams = [a_team("research", None), a_team("vision", "research"), a_team("speech", "research")]
        self.nodes = [a_node("node-1"), a_node("node-2", state="draining")]
        self.devices = [a_device(0), a_device(1, held=1000), a_device(2, held=500), a_device(3, healthy=False)]
        self.users = [rest.UserObject("ann", (Grant(Role.LEAD, "vision"),))]
        self.tokens: list[rest.TokenObject] = []
        self.events: list[rest.EventObject] = []
        self.logs: dict[tuple[str, int, int], list[bytes]] = {}
        self.after_log: Callable[[str], None] = lambda id: None
        self.notes: tuple[str, ...] = ()
        self.submitted_state = "waiting"
        self.problems: list[Response | ProblemError] = []
        """Answers that are given instead, one request each."""
        self.explained: dict[str, rest.ExplanationObject] = {}
        self.plan = rest.PlanObject(Plan(), ("it would start on node-1 GPU 0-1",))
        self.difference = Difference(unaffected_running=1)
        self.break_log_after: int | None = None
        """Break the next log stream after so many pieces."""
        self.break_events_after: int | None = None
        self.page_size = 1000
        self.status = a_status()
        self.version = "0.1.0"

    def add(self, job: rest.JobDetail) -> rest.JobDetail:
        self.jobs[job.id] = job
        return job

    # ------------------------------------------------------------------------------------------------------ handlers

    async def answer(self, operation: Operation, request: Request) -> Response:
        asked = Asked(
            operation.name,
            dict(request.path_params),
            dict(request.query_params),
            dict(request.headers),
            await request.body(),
        )
        self.asked.append(asked)
        try:
            if self.problems:
                wrong = self.problems.pop(0)
                if isinstance(wrong, Response):
                    return wrong
                raise wrong
            if operation.name not in OPEN and asked.headers.get("authorization") != f"Bearer {TOKEN}":
                raise ProblemError(401, "NotSignedIn", "the token is not valid")
            unknown = set(asked.query) - {parameter.name for parameter in operation.query}
            if unknown:
                raise ProblemError(400, "UnknownParameter", f"there is no parameter {unknown}")
            return self._handled(operation, asked)
        except ProblemError as error:
            content = msgspec.json.encode(error.problem)
            return Response(content, error.problem.status, media_type="application/problem+json")

    def _handled(self, operation: Operation, asked: Asked) -> Response:
        if operation.name == "read_logs":
            return self._log(asked)
        if operation.name == "list_events" and asked.query.get("watch"):
            return self._watch(asked)
        verb, _, noun = operation.name.partition("_")
        if noun == "job" and operation.path.endswith(f"}}/{verb}") and verb != "scale":
            value: Any = self._steer(verb, asked)
        elif operation.name in ("drain_node", "resume_node", "declare_lost_node"):
            value = self._node(asked)
        else:
            value = getattr(self, f"_{operation.name}")(asked)
        if operation.answer is None:
            return Response(status_code=operation.status)
        if operation.answer is str:
            return Response(value, media_type="text/plain")
        return Response(msgspec.json.encode(value), operation.status, media_type="application/json")

    def _livez(self, asked: Asked) -> None: ...

    def _readyz(self, asked: Asked) -> None: ...

    def _version(self, asked: Asked) -> rest.Version:
        return rest.Version(self.version)

    def _metrics(self, asked: Asked) -> str:
        return "gpuyard_up 1\n"

    def _openapi(self, asked: Asked) -> dict[str, str]:
        return {"openapi": "3.1.0"}

    def _status(self, asked: Asked) -> rest.Status:
        return self.status

    def _whoami(self, asked: Asked) -> rest.Whoami:
        return rest.Whoami("ann", (Grant(Role.LEAD, "vision"),), Scope.FULL, ("vision",), "lab", "none")

    def _page(self, items: list[Any], asked: Asked) -> rest.Page[Any]:
        first = int(asked.query.get("cursor", "0"))
        last = first + min(int(asked.query.get("limit", "100")), self.page_size)
        return rest.Page(tuple(items[first:last]), str(last) if last < len(items) else None, self._revision())

    def _revision(self) -> int:
        return max([0, *(event.revision for event in self.events)])

    def _list_jobs(self, asked: Asked) -> rest.Page[Any]:
        query = asked.query
        labels = dict(pair.split("=") for pair in query.get("label", "").split(",") if pair)
        found = [
            rest.JobObject(**{name: getattr(job, name) for name in rest.JobObject.__struct_fields__})
            for job in reversed(self.jobs.values())
            if query.get("name") in (None, job.name)
            and query.get("team") in (None, job.team)
            and query.get("user") in (None, job.user)
            and query.get("array") in (None, job.array)
            and labels.items() <= job.labels.items()
            and _in_state(job, query.get("state", ""))
        ]
        return self._page(found, asked)

    def _submit_job(self, asked: Asked) -> rest.Submitted:
        if asked.headers["content-type"] == "application/yaml":
            return rest.Submitted((self.add(a_job(str(len(self.jobs) + 1), state=self.submitted_state)),))
        body = asked.json
        if body.get("gpus") == "99" and not asked.query.get("allow_never"):
            raise ProblemError(422, "Never", "it asks for 99 GPUs, the largest node has 8", "try --gpus 8", "gpus")
        number = str(len(self.jobs) + 1)
        ids = [f"{number}_{index}" for index in range(3)] if "array" in body else [number]
        jobs = [
            a_job(id, body.get("name", "job"), self.submitted_state, array=number if "array" in body else "")
            for id in ids
        ]
        if not asked.query.get("dry_run"):
            for job in jobs:
                self.add(job)
        told = (f"job {jobs[0].id} of vision starts on node-1",) if asked.query.get("dry_run") else ()
        return rest.Submitted(tuple(jobs), text=told)

    def _job(self, asked: Asked) -> rest.JobDetail:
        job = self.jobs.get(asked.path["id"])
        if job is None:
            raise ProblemError(404, "NotFound", f"there is no job {asked.path['id']}", "see: gpuyard ls")
        wanted = asked.headers.get("if-match")
        if wanted and wanted.strip('"') != str(job.revision):
            raise ProblemError(412, "Changed", f"job {job.id} has changed: it is at revision {job.revision}")
        return job

    def _get_job(self, asked: Asked) -> rest.JobDetail:
        return self._job(asked)

    def _steer(self, verb: str, asked: Asked) -> rest.JobDetail:
        job = self._job(asked)
        states = {"cancel": "cancelled", "hold": "held", "suspend": "suspended"}
        if verb == "release" and job.state != "held":
            raise ProblemError(409, "WrongState", f"job {job.id} is not held")
        return self.add(replace(job, state=states.get(verb, "waiting")))

    def _scale_job(self, asked: Asked) -> rest.JobDetail:
        scale = msgspec.json.decode(asked.body, type=rest.Scale)
        return self.add(replace(self._job(asked), tasks=scale.tasks, min_tasks=scale.min_tasks or 1))

    def _explain_job(self, asked: Asked) -> rest.ExplanationObject:
        job = self._job(asked)
        reason = Reason(Token.NOT_ENOUGH, "gpu", 0, 2000, "cluster")
        explanation = Explanation(job.id, job.team, Standing.WAITING, blockers=(reason,))
        told = rest.ExplanationObject(explanation, ("needs 2 GPUs",), 10, NOW)
        return self.explained.get(job.id, told)

    def _plan_job(self, asked: Asked) -> rest.PlanObject:
        return self.plan

    def _what_if(self, asked: Asked) -> rest.DifferenceObject:
        if b"vison" in asked.body:
            raise ProblemError(400, "Malformed", 'change:1:10: there is no queue "vison"', field="queues.vison")
        return rest.DifferenceObject(self.difference, ())

    def _list_teams(self, asked: Asked) -> rest.Page[Any]:
        return self._page(self.teams, asked)

    def _get_team(self, asked: Asked) -> rest.TeamObject:
        return next(team for team in self.teams if team.name == asked.path["name"])

    def _teams_changed(self, asked: Asked) -> rest.TeamsChanged:
        return rest.TeamsChanged(asked.query.get("dry_run") == "true", self.difference, (), 9, self.notes)

    _set_teams = _change_teams = _remove_team = _teams_changed

    def _set_member(self, asked: Asked) -> rest.UserObject:
        role = Role(asked.json["role"])
        return rest.UserObject(asked.path["user"], (Grant(role, asked.path["name"]),))

    def _remove_member(self, asked: Asked) -> rest.UserObject:
        return rest.UserObject(asked.path["user"], ())

    def _list_nodes(self, asked: Asked) -> rest.Page[Any]:
        return self._page(self.nodes, asked)

    def _node(self, asked: Asked) -> rest.NodeObject:
        for node in self.nodes:
            if node.name == asked.path["name"]:
                return node
        raise ProblemError(404, "NotFound", f"there is no node {asked.path['name']}")

    _get_node = _change_node = _remove_node = _node

    def _join_node(self, asked: Asked) -> rest.Joined:
        return rest.Joined(asked.json["node"], "certificate", "ca", "127.0.0.1:1")

    def _list_devices(self, asked: Asked) -> rest.Page[Any]:
        node = asked.query.get("node")
        return self._page([device for device in self.devices if node in (None, device.node)], asked)

    def _list_events(self, asked: Asked) -> rest.Page[Any]:
        wanted = asked.query.get("object")
        found = [event for event in reversed(self.events) if wanted is None or wanted in event.objects]
        return self._page(found, asked)

    _list_audit = _list_events

    def _usage(self, asked: Asked) -> rest.Page[Any]:
        cause = rest.WasteCause(7, "Reclaimed", "1.5", "gave way to job 18")
        row = rest.UsageRow("vision", held="12", owed="8", borrowed="4", wasted="1.5", causes=(cause,))
        return self._page([row, rest.UsageRow("speech", held="3", owed="3")], asked)

    def _list_users(self, asked: Asked) -> rest.Page[Any]:
        return self._page(self.users, asked)

    def _set_user(self, asked: Asked) -> rest.UserObject:
        change = msgspec.json.decode(asked.body, type=rest.UserChange)
        return rest.UserObject(asked.path["name"], change.grants, change.unix_user)

    def _remove_user(self, asked: Asked) -> None: ...

    def _list_tokens(self, asked: Asked) -> rest.Page[Any]:
        return self._page(self.tokens, asked)

    def _create_token(self, asked: Asked) -> rest.CreatedToken:
        request = msgspec.json.decode(asked.body, type=rest.TokenRequest)
        expires = NOW + timedelta(milliseconds=request.expires_in_ms)
        token = rest.TokenObject(
            f"t{len(self.tokens)}", request.name, request.user or "ann", request.scope, NOW, expires
        )
        self.tokens.append(token)
        return rest.CreatedToken(token, "gyj_secret.cafe" if request.scope is Scope.JOIN else "gy_t0_secret")

    def _revoke_token(self, asked: Asked) -> None:
        if asked.path["id"] not in {token.id for token in self.tokens}:
            raise ProblemError(404, "NotFound", f"there is no token {asked.path['id']}")

    # ------------------------------------------------------------------------------------------------------- streams

    def _log(self, asked: Asked) -> Response:
        job = self._job(asked)
        task = int(asked.query.get("task", "0"))
        attempt = int(asked.query.get("attempt", "0")) or job.task_list[0].attempt
        pieces = self.logs.get((job.id, task, attempt), [])
        whole = b"".join(pieces)
        offset = int(asked.query.get("offset", "0"))
        start = offset if offset >= 0 else max(len(whole) + offset, 0)
        breaks, self.break_log_after = self.break_log_after, None
        follow = asked.query.get("follow") == "true"

        async def stream() -> AsyncIterator[bytes]:
            rest_of = _from(pieces, start)
            for number, piece in enumerate(rest_of):
                if breaks is not None and number >= breaks:
                    raise ConnectionResetError
                yield piece
                await asyncio.sleep(0.01)
            if follow:
                self.after_log(job.id)

        return StreamingResponse(stream(), media_type="text/plain", headers={"Gpuyard-Log-Offset": str(start)})

    def _watch(self, asked: Asked) -> Response:
        after = int(asked.headers.get("last-event-id", str(self._revision())))
        breaks, self.break_events_after = self.break_events_after, None

        async def stream() -> AsyncIterator[bytes]:
            sent = 0
            seen = after
            yield b"retry: 1000\n\n: alive\n\n"
            while True:
                for event in [event for event in self.events if event.revision > seen]:
                    if breaks is not None and sent >= breaks:
                        raise ConnectionResetError
                    seen, sent = event.revision, sent + 1
                    yield b"id: %d\nevent: %s\ndata: %s\n\n" % (
                        event.revision,
                        event.kind.encode(),
                        msgspec.json.encode(event),
                    )
                await asyncio.sleep(0.01)

        return StreamingResponse(stream(), media_type="text/event-stream")


def _from(pieces: list[bytes], start: int) -> Iterator[bytes]:
    for piece in pieces:
        if start < len(piece):
            yield piece[start:]
        start = max(start - len(piece), 0)


def _in_state(job: rest.JobObject, states: str) -> bool:
    if states == "active":
        return job.ended_at is None
    return not states or job.state in states.split(",")


def a_team(name: str, parent: str | None, **more: Any) -> rest.TeamObject:
    fields: dict[str, Any] = {
        "leaf": parent is not None,
        "quota": "8",
        "limit": None,
        "weight": "1",
        "priority": 100,
        "held": "12",
        "borrowed": "4",
        "lent": "0",
        "waiting": "2",
        "fair_share": "8",
        "running_jobs": 1,
        "waiting_jobs": 1,
        "members": (rest.MemberObject("ann", "lead"),) if parent else None,
    }
    return rest.TeamObject(name, parent, **{**fields, **more})


def a_node(name: str, **more: Any) -> rest.NodeObject:
    fields: dict[str, Any] = {
        "state": "ready",
        "gpus": 8,
        "free_gpus": "5.5",
        "models": ("A100",),
        "cpu_milli": 64_000,
        "memory_bytes": 256 << 30,
        "tasks": 2,
        "fake": True,
        "isolation": "none",
        "labels": {"rack": "r1"},
        "version": "0.1.0",
        "last_seen_at": NOW,
    }
    return rest.NodeObject(name, **{**fields, **more})


def a_device(index: int, *, held: int = 0, healthy: bool = True) -> rest.DeviceObject:
    holders = (rest.HolderObject("vision", held, held * 40, "17"),) if held else ()
    return rest.DeviceObject(
        "node-1", index, f"GPU-{index}", "A100", 40_960, healthy, 1000 - held, 40_960 - held * 40, holders, fake=True
    )


def a_status(**more: Any) -> rest.Status:
    fields: dict[str, Any] = {
        "cluster": "lab",
        "version": "0.1.0",
        "database": "SQLite 3.54.1, write-ahead log",
        "revision": 7,
        "nodes": 2,
        "ready_nodes": 1,
        "gpus": 16,
        "free_gpus": "11",
        "fake": True,
        "isolation": "none",
        "jobs": {"running": 1, "waiting": 2},
        "last_cycle_ms": 3,
        "cycles": 12,
        "started_at": NOW,
    }
    return rest.Status(**{**fields, **more})


def busy(retry_after: str = "0") -> Response:
    return JSONResponse({}, 503, headers={"Retry-After": retry_after})


@contextmanager
def served(yard: Yard, certificate: Path | None = None) -> Iterator[str]:
    """Serve it on a free port until the end; with TLS where there is a certificate, its key in the same file."""
    app = Starlette(routes=[_route(yard, operation) for operation in OPERATIONS])
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        log_level="critical",
        lifespan="off",
        timeout_graceful_shutdown=0,
        ws="none",
        ssl_certfile=certificate,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            threading.Event().wait(0.005)
        yield f"http{'s' if certificate else ''}://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def _route(yard: Yard, operation: Operation) -> Route:
    async def endpoint(request: Request) -> Response:
        return await yard.answer(operation, request)

    return Route(operation.path, endpoint, methods=[operation.method])
