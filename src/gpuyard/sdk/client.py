"""The client: one method per operation, lists and streams as iterators.

Place in the flow: your program ─▶ **Client** ─Call─▶ httpx2 ─▶ the server; `async_client.py` is the same with `await`,
and a test keeps the two alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2

from gpuyard.errors import ClientError
from gpuyard.platform.clock import sleep_ms
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


class Client:
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
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self.server = Server(url, token, ca)
        self._retry = retry
        self._stream_retry = stream_retry
        self._http = httpx2.Client(**settings(self.server, timeout_ms), transport=transport)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------------- sending

    def send(self, call: Call[Answer]) -> Answer:
        """Send any call of `gpuyard.sdk.calls`, again where that is safe and needed."""
        return self._sent(call, self._retry)

    def _sent(self, call: Call[Answer], retry: Retry) -> Answer:
        response = self._exchange(call, retry)
        return decoded(call, response.status_code, response.content, response.headers.get("content-type", ""))

    def _exchange(self, call: Call[Any], retry: Retry) -> httpx2.Response:
        tries = Tries(self.server, call, retry)
        while True:
            try:
                response = self._http.send(self._http.build_request(**request_arguments(call)))
                wait_ms = tries.answered_wait_ms(response)
                if wait_ms is None:
                    return response
            except httpx2.TransportError as error:
                wait_ms = tries.broken_wait_ms(error)
            sleep_ms(wait_ms)

    def items(self, call: Call[rest.Page[Item]]) -> Iterator[Item]:
        """Everything a list holds, page by page."""
        while True:
            page = self.send(call)
            yield from page.items
            if page.next is None:
                return
            call = call.after(page.next)

    @contextmanager
    def _stream(self, call: Call[Any]) -> Iterator[httpx2.Response]:
        request = self._http.build_request(**request_arguments(call), timeout=STREAM_SILENCE_MS / 1000)
        response = self._http.send(request, stream=True)
        try:
            if not response.is_success:
                content, media = response.read(), response.headers.get("content-type", "")
                refused = refused_stream(response.status_code, content, media)
                raise refused or BusyError(f"it answered {response.status_code}")
            yield response
        finally:
            response.close()

    # ------------------------------------------------------------------------------------------------------- streams

    def watch(self, *, object: str = "", kind: str = "", after: int | None = None) -> Iterator[rest.EventObject]:
        """What happens from now on, or after a revision, without end; a broken stream goes on where it broke."""
        call = calls.watch_events(object=object, kind=kind)
        # Known before the stream is opened, so that nothing is missed if it breaks before its first word.
        seen = self._revision() if after is None else after
        tries = Tries(self.server, call, self._stream_retry)
        while True:
            try:
                with self._stream(call.with_header(LAST_EVENT, str(seen))) as response:
                    tries.succeeded()
                    for message in httpx2.EventSource(response):
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
            sleep_ms(wait_ms)

    def _revision(self) -> int:
        return self.send(calls.list_events(limit=1)).revision

    def logs(
        self,
        id: str,
        *,
        task: int = 0,
        attempt: int = 0,
        offset: int = 0,
        follow: bool = False,
        since: str = "",
        place: LogPlace | None = None,
    ) -> Iterator[bytes]:
        """What a task has written; with `follow` until its attempt ends, through breaks of the connection.

        `since` instead of `offset`: from what was written then on, RFC 3339 or a duration ago. A `place` that is given
        says afterwards how far the log was read.
        """
        if follow and not attempt:
            attempt = attempt_of(self.get_job(id), task)
        call = calls.read_logs(id, task=task, attempt=attempt, follow=follow, since=since)
        place = place or LogPlace()
        place.offset = offset
        tries = Tries(self.server, call, self._stream_retry)
        while True:
            try:
                with self._stream(call.with_query("offset", place.offset)) as response:
                    tries.succeeded()
                    place.opened(response.headers)
                    # The answer has said where in the log that is; from there on it is counted.
                    call = call.with_query("since", "")
                    for piece in response.iter_bytes():
                        place.passed(len(piece))
                        yield piece
                if not follow and not place.has_more:
                    return
                if follow and attempt_is_over(self._sent(calls.get_job(id), self._stream_retry), task, attempt):
                    # The server may have ended the stream before the last words were written.
                    follow = False
                    call = call.with_query("follow", False)
                wait_ms = tries.ended_wait_ms() if follow else 0
            except httpx2.TransportError as error:
                wait_ms = tries.broken_wait_ms(error)
            place.refuse_if_unknown()
            sleep_ms(wait_ms)

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
    ) -> Iterator[rest.JobObject]:
        """Jobs, newest first. `state`: words with commas; `active`: all that are not over."""
        call = calls.list_jobs(
            state=state, team=team, user=user, name=name, labels=labels, array=array, estimate=estimate
        )
        return self.items(call)

    def schedules(self, *, team: str = "", owner: str = "") -> Iterator[rest.ScheduleObject]:
        """Jobs that come again, by team and name."""
        return self.items(calls.list_schedules(team=team, owner=owner))

    def teams(self) -> Iterator[rest.TeamObject]:
        return self.items(calls.list_teams())

    def nodes(self) -> Iterator[rest.NodeObject]:
        return self.items(calls.list_nodes())

    def devices(self, *, node: str = "") -> Iterator[rest.DeviceObject]:
        return self.items(calls.list_devices(node=node))

    def events(self, *, since: str = "", object: str = "", kind: str = "") -> Iterator[rest.EventObject]:
        """What happened to jobs, newest first."""
        return self.items(calls.list_events(since=since, object=object, kind=kind))

    def audit(
        self, *, since: str = "", until: str = "", object: str = "", actor: str = ""
    ) -> Iterator[rest.EventObject]:
        """Every change and every decision, newest first."""
        return self.items(calls.list_audit(since=since, until=until, object=object, actor=actor))

    def usage_rows(self, *, by: str = "team", since: str = "", until: str = "") -> Iterator[rest.UsageRow]:
        return self.items(calls.usage(by=by, since=since, until=until))

    def users(self) -> Iterator[rest.UserObject]:
        return self.items(calls.list_users())

    def tokens(self) -> Iterator[rest.TokenObject]:
        return self.items(calls.list_tokens())

    def pool_machines(self) -> Iterator[pool.PoolMachine]:
        return self.items(calls.list_pool_machines())

    def pool_budgets(self) -> Iterator[pool.PoolBudget]:
        return self.items(calls.list_pool_budgets())

    def pool_jobs(self, *, team: str = "") -> Iterator[pool.PoolJob]:
        return self.items(calls.list_pool_jobs(team=team))

    def pool_plans(self, *, all: bool = False) -> Iterator[pool.PoolPlan]:
        """Open plans, oldest first; with `all` also those that are over."""
        return self.items(calls.list_pool_plans(all=all))

    # ---------------------------------------------------------------------------------------------------- operations

    def livez(self) -> None:
        self.send(calls.livez())

    def readyz(self) -> None:
        self.send(calls.readyz())

    def version(self) -> rest.Version:
        return self.send(calls.version())

    def metrics(self) -> str:
        return self.send(calls.metrics())

    def openapi(self) -> dict[str, Any]:
        return self.send(calls.openapi())

    def status(self) -> rest.Status:
        return self.send(calls.status())

    def whoami(self) -> rest.Whoami:
        return self.send(calls.whoami())

    def submit_job(
        self, job: JobRequest | YamlText, *, dry_run: bool = False, allow_never: bool = False
    ) -> rest.Submitted:
        """Submit a job, or an array of jobs. Done at most once, however often it is sent."""
        return self.send(calls.submit_job(job, dry_run=dry_run, allow_never=allow_never))

    def get_job(self, id: str) -> rest.JobDetail:
        return self.send(calls.get_job(id))

    def explain_job(self, id: str) -> rest.ExplanationObject:
        """Why it waits or runs, and what would let it start."""
        return self.send(calls.explain_job(id))

    def cancel_job(self, id: str, *, if_revision: int | None = None) -> rest.JobObject:
        """End it for good; politely if it runs."""
        return self.send(calls.steer_job("cancel", id, if_revision=if_revision))

    def hold_job(self, id: str, *, if_revision: int | None = None) -> rest.JobObject:
        """Keep it from starting."""
        return self.send(calls.steer_job("hold", id, if_revision=if_revision))

    def release_job(self, id: str, *, if_revision: int | None = None) -> rest.JobObject:
        """Take the hold off."""
        return self.send(calls.steer_job("release", id, if_revision=if_revision))

    def suspend_job(self, id: str, *, if_revision: int | None = None) -> rest.JobObject:
        """Stop it politely and keep it from starting."""
        return self.send(calls.steer_job("suspend", id, if_revision=if_revision))

    def resume_job(self, id: str, *, if_revision: int | None = None) -> rest.JobObject:
        """Let a suspended job wait for its turn again."""
        return self.send(calls.steer_job("resume", id, if_revision=if_revision))

    def requeue_job(self, id: str, *, if_revision: int | None = None) -> rest.JobObject:
        """Stop it politely and let it wait for its turn again."""
        return self.send(calls.steer_job("requeue", id, if_revision=if_revision))

    def scale_job(
        self, id: str, tasks: int, *, min_tasks: int | None = None, if_revision: int | None = None
    ) -> rest.JobObject:
        return self.send(calls.scale_job(id, rest.Scale(tasks, min_tasks), if_revision=if_revision))

    def plan_job(self, job: JobRequest | YamlText) -> rest.PlanObject:
        """What would happen to a job. Nothing is done."""
        return self.send(calls.plan_job(job))

    def what_if(self, change: YamlText) -> rest.DifferenceObject:
        """What a change would do. Nothing is done."""
        return self.send(calls.what_if(change))

    def get_schedule(self, team: str, name: str) -> rest.ScheduleDetail:
        """A job that comes again, with its last runs and next times."""
        return self.send(calls.get_schedule(team, name))

    def set_schedule(
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
        return self.send(call)

    def remove_schedule(self, team: str, name: str, *, if_revision: int | None = None) -> None:
        """Take it away; its runs go on."""
        self.send(calls.remove_schedule(team, name, if_revision=if_revision))

    def pause_schedule(self, team: str, name: str, *, if_revision: int | None = None) -> rest.ScheduleDetail:
        """Run nothing until it is resumed."""
        return self.send(calls.pause_schedule(team, name, if_revision=if_revision))

    def resume_schedule(self, team: str, name: str, *, if_revision: int | None = None) -> rest.ScheduleDetail:
        return self.send(calls.resume_schedule(team, name, if_revision=if_revision))

    def run_schedule(self, team: str, name: str, *, if_revision: int | None = None) -> rest.Submitted:
        """Run it now, beside what is planned. Done at most once, however often it is sent."""
        return self.send(calls.run_schedule(team, name, if_revision=if_revision))

    def get_team(self, name: str) -> rest.TeamObject:
        return self.send(calls.get_team(name))

    def set_teams(
        self, teams: TeamsChange | YamlText, *, dry_run: bool = False, if_revision: int | None = None
    ) -> rest.TeamsChanged:
        """Write the whole tree anew."""
        return self.send(calls.set_teams(teams, dry_run=dry_run, if_revision=if_revision))

    def change_teams(
        self, change: TeamsChange | YamlText, *, dry_run: bool = False, if_revision: int | None = None
    ) -> rest.TeamsChanged:
        """Change or add some teams; what is not named stays."""
        return self.send(calls.change_teams(change, dry_run=dry_run, if_revision=if_revision))

    def remove_team(self, name: str, *, dry_run: bool = False, if_revision: int | None = None) -> rest.TeamsChanged:
        return self.send(calls.remove_team(name, dry_run=dry_run, if_revision=if_revision))

    def set_member(self, team: str, user: str, role: str) -> rest.UserObject:
        return self.send(calls.set_member(team, user, role))

    def remove_member(self, team: str, user: str) -> rest.UserObject:
        return self.send(calls.remove_member(team, user))

    def get_node(self, name: str) -> rest.NodeObject:
        return self.send(calls.get_node(name))

    def drain_node(self, name: str, *, if_revision: int | None = None) -> rest.NodeObject:
        return self.send(calls.drain_node(name, if_revision=if_revision))

    def resume_node(self, name: str, *, if_revision: int | None = None) -> rest.NodeObject:
        return self.send(calls.resume_node(name, if_revision=if_revision))

    def declare_lost_node(self, name: str, *, if_revision: int | None = None) -> rest.NodeObject:
        return self.send(calls.declare_lost_node(name, if_revision=if_revision))

    def change_node(self, name: str, change: rest.NodeChange, *, if_revision: int | None = None) -> rest.NodeObject:
        return self.send(calls.change_node(name, change, if_revision=if_revision))

    def remove_node(self, name: str, *, if_revision: int | None = None) -> None:
        self.send(calls.remove_node(name, if_revision=if_revision))

    def join_node(self, request: rest.JoinRequest) -> rest.Joined:
        return self.send(calls.join_node(request))

    def set_user(self, name: str, change: rest.UserChange, *, if_revision: int | None = None) -> rest.UserObject:
        return self.send(calls.set_user(name, change, if_revision=if_revision))

    def remove_user(self, name: str, *, if_revision: int | None = None) -> None:
        self.send(calls.remove_user(name, if_revision=if_revision))

    def create_token(self, request: rest.TokenRequest) -> rest.CreatedToken:
        return self.send(calls.create_token(request))

    def revoke_token(self, id: str) -> None:
        self.send(calls.revoke_token(id))

    def set_pool_machine(self, name: str, devices: int, *, device_type: str = "") -> pool.PoolMachine:
        return self.send(calls.set_pool_machine(name, pool.PoolMachineChange(devices, device_type)))

    def remove_pool_machine(self, name: str) -> None:
        self.send(calls.remove_pool_machine(name))

    def set_pool_budget(self, team: str, amount: str | int | float, *, device_type: str = "") -> pool.PoolBudget:
        return self.send(calls.set_pool_budget(team, pool.PoolBudgetChange(amount, device_type)))

    def remove_pool_team(self, team: str) -> None:
        self.send(calls.remove_pool_team(team))

    def provision_pool_job(self, request: pool.PoolRequest) -> pool.PoolPlan:
        """Find a place in the pool. Done at most once, however often it is sent."""
        return self.send(calls.provision_pool_job(request))

    def quote_pool_job(self, request: pool.PoolRequest) -> pool.PoolQuote:
        """What would come of it, and what would make it run. Nothing is booked."""
        return self.send(calls.quote_pool_job(request))

    def end_pool_job(self, team: str, name: str) -> None:
        self.send(calls.end_pool_job(pool.PoolJobId(name, team)))

    def mark_pool_job(self, team: str, name: str, priority: bool) -> pool.PoolJob:
        return self.send(calls.mark_pool_job(pool.PoolPriority(name, team, priority)))

    def get_pool_plan(self, id: str) -> pool.PoolPlan:
        return self.send(calls.get_pool_plan(id))

    def confirm_pool_step(self, id: str, number: int) -> pool.PoolPlan:
        return self.send(calls.confirm_pool_step(id, number))

    def fail_pool_step(self, id: str, number: int, why: str = "") -> pool.PoolPlan:
        return self.send(calls.fail_pool_step(id, number, why))
