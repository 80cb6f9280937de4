"""The client for programs that `await`: the same as `client.py`, method by method; a test keeps the two alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2

from gpuyard.errors import ClientError
from gpuyard.sdk import calls
from gpuyard.sdk.answers import decoded, refused_stream, streamed_event
from gpuyard.sdk.bodies import JobRequest, ScheduleRequest, TeamsChange, YamlText
from gpuyard.sdk.calls import Call
from gpuyard.sdk.transport import (
    LAST_EVENT,
    STREAM_RETRY,
    STREAM_SILENCE_MS,
    TIMEOUT_MS,
    BusyError,
    LogPlace,
    Retry,
    Server,
    Tries,
    attempt_is_over,
    attempt_of,
    request_arguments,
    settings,
)
from gpuyard.wire import pool, rest

Answer = TypeVar("Answer")
Item = TypeVar("Item")


class AsyncClient:
    """A gpuyard server, as a Python object. Errors are `gpuyard.errors.ClientError` and its kinds."""

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        ca: str = "",
        timeout_ms: int = TIMEOUT_MS,
        retry: Retry = Retry(),  # noqa: B008 - a frozen value
        stream_retry: Retry = STREAM_RETRY,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.server = Server(url, token, ca)
        self._retry = retry
        self._stream_retry = stream_retry
        self._http = httpx2.AsyncClient(**settings(self.server, timeout_ms), transport=transport)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------------------------------------------- sending

    async def send(self, call: Call[Answer]) -> Answer:
        """Send any call of `gpuyard.sdk.calls`, again where that is safe and needed."""
        return await self._sent(call, self._retry)

    async def _sent(self, call: Call[Answer], retry: Retry) -> Answer:
        response = await self._exchange(call, retry)
        return decoded(call, response.status_code, response.content, response.headers.get("content-type", ""))

    async def _exchange(self, call: Call[Any], retry: Retry) -> httpx2.Response:
        tries = Tries(self.server, call, retry)
        while True:
            try:
                response = await self._http.send(self._http.build_request(**request_arguments(call)))
                wait_ms = tries.answered_wait_ms(response)
                if wait_ms is None:
                    return response
            except httpx2.TransportError as error:
                wait_ms = tries.broken_wait_ms(error)
            await asyncio.sleep(wait_ms / 1000)

    async def items(self, call: Call[rest.Page[Item]]) -> AsyncIterator[Item]:
        """Everything a list holds, page by page."""
        while True:
            page = await self.send(call)
            for item in page.items:
                yield item
            if page.next is None:
                return
            call = call.after(page.next)

    @asynccontextmanager
    async def _stream(self, call: Call[Any]) -> AsyncIterator[httpx2.Response]:
        request = self._http.build_request(**request_arguments(call), timeout=STREAM_SILENCE_MS / 1000)
        response = await self._http.send(request, stream=True)
        try:
            if not response.is_success:
                content, media = await response.aread(), response.headers.get("content-type", "")
                refused = refused_stream(response.status_code, content, media)
                raise refused or BusyError(f"it answered {response.status_code}")
            yield response
        finally:
            await response.aclose()

    # ------------------------------------------------------------------------------------------------------- streams

    async def watch(
        self, *, object: str = "", kind: str = "", after: int | None = None
    ) -> AsyncIterator[rest.EventObject]:
        """What happens from now on, or after a revision, without end; a broken stream goes on where it broke."""
        call = calls.watch_events(object=object, kind=kind)
        # Known before the stream is opened, so that nothing is missed if it breaks before its first word.
        seen = await self._revision() if after is None else after
        tries = Tries(self.server, call, self._stream_retry)
        while True:
            try:
                async with self._stream(call.with_header(LAST_EVENT, str(seen))) as response:
                    tries.succeeded()
                    async for message in httpx2.EventSource(response):
                        if not message.data:
                            continue  # Only how long to wait, or a sign of life.
                        event = streamed_event(message.event, message.data)
                        seen = event.revision
                        yield event
                wait_ms = tries.ended_wait_ms()
            except httpx2.SSEError as error:
                raise ClientError(f"the server does not stream events: {error}", fix="see: gpuyard doctor") from None
            except httpx2.TransportError as error:
                wait_ms = tries.broken_wait_ms(error)
            await asyncio.sleep(wait_ms / 1000)

    async def _revision(self) -> int:
        return (await self.send(calls.list_events(limit=1))).revision

    async def logs(
        self,
        id: str,
        *,
        task: int = 0,
        attempt: int = 0,
        offset: int = 0,
        follow: bool = False,
        since: str = "",
        place: LogPlace | None = None,
    ) -> AsyncIterator[bytes]:
        """What a task has written; with `follow` until its attempt ends, through breaks of the connection.

        `since` instead of `offset`: from what was written then on, RFC 3339 or a duration ago. A `place` that is given
        says afterwards how far the log was read.
        """
        if follow and not attempt:
            attempt = attempt_of(await self.get_job(id), task)
        call = calls.read_logs(id, task=task, attempt=attempt, follow=follow, since=since)
        place = place or LogPlace()
        place.offset = offset
        tries = Tries(self.server, call, self._stream_retry)
        while True:
            try:
                async with self._stream(call.with_query("offset", place.offset)) as response:
                    tries.succeeded()
                    place.opened(response.headers)
                    # The answer has said where in the log that is; from there on it is counted.
                    call = call.with_query("since", "")
                    async for piece in response.aiter_bytes():
                        place.passed(len(piece))
                        yield piece
                if not follow and not place.has_more:
                    return
                if follow and attempt_is_over(await self._sent(calls.get_job(id), self._stream_retry), task, attempt):
                    # The server may have ended the stream before the last words were written.
                    follow = False
                    call = call.with_query("follow", False)
                wait_ms = tries.ended_wait_ms() if follow else 0
            except httpx2.TransportError as error:
                wait_ms = tries.broken_wait_ms(error)
            place.refuse_if_unknown()
            await asyncio.sleep(wait_ms / 1000)

    # --------------------------------------------------------------------------------------------------------- lists

    def jobs(
        self,
        *,
        state: str = "",
        team: str = "",
        user: str = "",
        name: str = "",
        labels: Mapping[str, str] | None = None,
        array: str = "",
        estimate: bool = True,
    ) -> AsyncIterator[rest.JobObject]:
        """Jobs, newest first. `state`: words with commas; `active`: all that are not over."""
        call = calls.list_jobs(
            state=state, team=team, user=user, name=name, labels=labels, array=array, estimate=estimate
        )
        return self.items(call)

    def schedules(self, *, team: str = "", owner: str = "") -> AsyncIterator[rest.ScheduleObject]:
        """Jobs that come again, by team and name."""
        return self.items(calls.list_schedules(team=team, owner=owner))

    def teams(self) -> AsyncIterator[rest.TeamObject]:
        return self.items(calls.list_teams())

    def nodes(self) -> AsyncIterator[rest.NodeObject]:
        return self.items(calls.list_nodes())

    def devices(self, *, node: str = "") -> AsyncIterator[rest.DeviceObject]:
        return self.items(calls.list_devices(node=node))

    def events(self, *, since: str = "", object: str = "", kind: str = "") -> AsyncIterator[rest.EventObject]:
        """What happened to jobs, newest first."""
        return self.items(calls.list_events(since=since, object=object, kind=kind))

    def audit(
        self, *, since: str = "", until: str = "", object: str = "", actor: str = ""
    ) -> AsyncIterator[rest.EventObject]:
        """Every change and every decision, newest first."""
        return self.items(calls.list_audit(since=since, until=until, object=object, actor=actor))

    def usage_rows(self, *, by: str = "team", since: str = "", until: str = "") -> AsyncIterator[rest.UsageRow]:
        return self.items(calls.usage(by=by, since=since, until=until))

    def users(self) -> AsyncIterator[rest.UserObject]:
        return self.items(calls.list_users())

    def tokens(self) -> AsyncIterator[rest.TokenObject]:
        return self.items(calls.list_tokens())

    def pool_machines(self) -> AsyncIterator[pool.PoolMachine]:
        return self.items(calls.list_pool_machines())

    def pool_budgets(self) -> AsyncIterator[pool.PoolBudget]:
        return self.items(calls.list_pool_budgets())

    def pool_jobs(self, *, team: str = "") -> AsyncIterator[pool.PoolJob]:
        return self.items(calls.list_pool_jobs(team=team))

    def pool_plans(self, *, all: bool = False) -> AsyncIterator[pool.PoolPlan]:
        """Open plans, oldest first; with `all` also those that are over."""
        return self.items(calls.list_pool_plans(all=all))

    # ---------------------------------------------------------------------------------------------------- operations

    async def livez(self) -> None:
        await self.send(calls.livez())

    async def readyz(self) -> None:
        await self.send(calls.readyz())

    async def version(self) -> rest.Version:
        return await self.send(calls.version())

    async def metrics(self) -> str:
        return await self.send(calls.metrics())

    async def openapi(self) -> dict[str, Any]:
        return await self.send(calls.openapi())

    async def status(self) -> rest.Status:
        return await self.send(calls.status())

    async def whoami(self) -> rest.Whoami:
        return await self.send(calls.whoami())

    async def submit_job(
        self, job: JobRequest | YamlText, *, dry_run: bool = False, allow_never: bool = False
    ) -> rest.Submitted:
        """Submit a job, or an array of jobs. Done at most once, however often it is sent."""
        return await self.send(calls.submit_job(job, dry_run=dry_run, allow_never=allow_never))

    async def get_job(self, id: str) -> rest.JobDetail:
        return await self.send(calls.get_job(id))

    async def explain_job(self, id: str) -> rest.ExplanationObject:
        """Why it waits or runs, and what would let it start."""
        return await self.send(calls.explain_job(id))

    async def cancel_job(self, id: str, *, if_revision: int | None = None) -> rest.JobObject:
        """End it for good; politely if it runs."""
        return await self.send(calls.steer_job("cancel", id, if_revision=if_revision))

    async def hold_job(self, id: str, *, if_revision: int | None = None) -> rest.JobObject:
        """Keep it from starting."""
        return await self.send(calls.steer_job("hold", id, if_revision=if_revision))

    async def release_job(self, id: str, *, if_revision: int | None = None) -> rest.JobObject:
        """Take the hold off."""
        return await self.send(calls.steer_job("release", id, if_revision=if_revision))

    async def suspend_job(self, id: str, *, if_revision: int | None = None) -> rest.JobObject:
        """Stop it politely and keep it from starting."""
        return await self.send(calls.steer_job("suspend", id, if_revision=if_revision))

    async def resume_job(self, id: str, *, if_revision: int | None = None) -> rest.JobObject:
        """Let a suspended job wait for its turn again."""
        return await self.send(calls.steer_job("resume", id, if_revision=if_revision))

    async def requeue_job(self, id: str, *, if_revision: int | None = None) -> rest.JobObject:
        """Stop it politely and let it wait for its turn again."""
        return await self.send(calls.steer_job("requeue", id, if_revision=if_revision))

    async def scale_job(
        self, id: str, tasks: int, *, min_tasks: int | None = None, if_revision: int | None = None
    ) -> rest.JobObject:
        return await self.send(calls.scale_job(id, rest.Scale(tasks, min_tasks), if_revision=if_revision))

    async def plan_job(self, job: JobRequest | YamlText) -> rest.PlanObject:
        """What would happen to a job. Nothing is done."""
        return await self.send(calls.plan_job(job))

    async def what_if(self, change: YamlText) -> rest.DifferenceObject:
        """What a change would do. Nothing is done."""
        return await self.send(calls.what_if(change))

    async def get_schedule(self, team: str, name: str) -> rest.ScheduleDetail:
        """A job that comes again, with its last runs and next times."""
        return await self.send(calls.get_schedule(team, name))

    async def set_schedule(
        self,
        team: str,
        name: str,
        schedule: ScheduleRequest | YamlText,
        *,
        dry_run: bool = False,
        allow_never: bool = False,
        if_revision: int | None = None,
    ) -> rest.ScheduleDetail:
        """Make a schedule, or write it anew; it is yours then. `if_revision=0`: only if there is none."""
        call = calls.set_schedule(
            team, name, schedule, dry_run=dry_run, allow_never=allow_never, if_revision=if_revision
        )
        return await self.send(call)

    async def remove_schedule(self, team: str, name: str, *, if_revision: int | None = None) -> None:
        """Take it away; its runs go on."""
        await self.send(calls.remove_schedule(team, name, if_revision=if_revision))

    async def pause_schedule(self, team: str, name: str, *, if_revision: int | None = None) -> rest.ScheduleDetail:
        """Run nothing until it is resumed."""
        return await self.send(calls.pause_schedule(team, name, if_revision=if_revision))

    async def resume_schedule(self, team: str, name: str, *, if_revision: int | None = None) -> rest.ScheduleDetail:
        return await self.send(calls.resume_schedule(team, name, if_revision=if_revision))

    async def run_schedule(self, team: str, name: str, *, if_revision: int | None = None) -> rest.Submitted:
        """Run it now, beside what is planned. Done at most once, however often it is sent."""
        return await self.send(calls.run_schedule(team, name, if_revision=if_revision))

    async def get_team(self, name: str) -> rest.TeamObject:
        return await self.send(calls.get_team(name))

    async def set_teams(
        self, teams: TeamsChange | YamlText, *, dry_run: bool = False, if_revision: int | None = None
    ) -> rest.TeamsChanged:
        """Write the whole tree anew."""
        return await self.send(calls.set_teams(teams, dry_run=dry_run, if_revision=if_revision))

    async def change_teams(
        self, change: TeamsChange | YamlText, *, dry_run: bool = False, if_revision: int | None = None
    ) -> rest.TeamsChanged:
        """Change or add some teams; what is not named stays."""
        return await self.send(calls.change_teams(change, dry_run=dry_run, if_revision=if_revision))

    async def remove_team(
        self, name: str, *, dry_run: bool = False, if_revision: int | None = None
    ) -> rest.TeamsChanged:
        return await self.send(calls.remove_team(name, dry_run=dry_run, if_revision=if_revision))

    async def set_member(self, team: str, user: str, role: str) -> rest.UserObject:
        return await self.send(calls.set_member(team, user, role))

    async def remove_member(self, team: str, user: str) -> rest.UserObject:
        return await self.send(calls.remove_member(team, user))

    async def get_node(self, name: str) -> rest.NodeObject:
        return await self.send(calls.get_node(name))

    async def drain_node(self, name: str, *, if_revision: int | None = None) -> rest.NodeObject:
        return await self.send(calls.drain_node(name, if_revision=if_revision))

    async def resume_node(self, name: str, *, if_revision: int | None = None) -> rest.NodeObject:
        return await self.send(calls.resume_node(name, if_revision=if_revision))

    async def declare_lost_node(self, name: str, *, if_revision: int | None = None) -> rest.NodeObject:
        return await self.send(calls.declare_lost_node(name, if_revision=if_revision))

    async def change_node(
        self, name: str, change: rest.NodeChange, *, if_revision: int | None = None
    ) -> rest.NodeObject:
        return await self.send(calls.change_node(name, change, if_revision=if_revision))

    async def remove_node(self, name: str, *, if_revision: int | None = None) -> None:
        await self.send(calls.remove_node(name, if_revision=if_revision))

    async def join_node(self, request: rest.JoinRequest) -> rest.Joined:
        return await self.send(calls.join_node(request))

    async def set_user(self, name: str, change: rest.UserChange, *, if_revision: int | None = None) -> rest.UserObject:
        return await self.send(calls.set_user(name, change, if_revision=if_revision))

    async def remove_user(self, name: str, *, if_revision: int | None = None) -> None:
        await self.send(calls.remove_user(name, if_revision=if_revision))

    async def create_token(self, request: rest.TokenRequest) -> rest.CreatedToken:
        return await self.send(calls.create_token(request))

    async def revoke_token(self, id: str) -> None:
        await self.send(calls.revoke_token(id))

    async def set_pool_machine(self, name: str, devices: int, *, device_type: str = "") -> pool.PoolMachine:
        return await self.send(calls.set_pool_machine(name, pool.PoolMachineChange(devices, device_type)))

    async def remove_pool_machine(self, name: str) -> None:
        await self.send(calls.remove_pool_machine(name))

    async def set_pool_budget(self, team: str, amount: str | int | float, *, device_type: str = "") -> pool.PoolBudget:
        return await self.send(calls.set_pool_budget(team, pool.PoolBudgetChange(amount, device_type)))

    async def remove_pool_team(self, team: str) -> None:
        await self.send(calls.remove_pool_team(team))

    async def provision_pool_job(self, request: pool.PoolRequest) -> pool.PoolPlan:
        """Find a place in the pool. Done at most once, however often it is sent."""
        return await self.send(calls.provision_pool_job(request))

    async def quote_pool_job(self, request: pool.PoolRequest) -> pool.PoolQuote:
        """What would come of it, and what would make it run. Nothing is booked."""
        return await self.send(calls.quote_pool_job(request))

    async def end_pool_job(self, team: str, name: str) -> None:
        await self.send(calls.end_pool_job(pool.PoolJobId(name, team)))

    async def mark_pool_job(self, team: str, name: str, priority: bool) -> pool.PoolJob:
        return await self.send(calls.mark_pool_job(pool.PoolPriority(name, team, priority)))

    async def get_pool_plan(self, id: str) -> pool.PoolPlan:
        return await self.send(calls.get_pool_plan(id))

    async def confirm_pool_step(self, id: str, number: int) -> pool.PoolPlan:
        return await self.send(calls.confirm_pool_step(id, number))

    async def fail_pool_step(self, id: str, number: int, why: str = "") -> pool.PoolPlan:
        return await self.send(calls.fail_pool_step(id, number, why))
