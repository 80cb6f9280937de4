"""Jobs: listing, looking, steering, explaining."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, TypeVar

from msgspec.structs import replace

from gpuyard.errors import RefusedError
from gpuyard.model.explanation import Explanation, Forecast, Standing, exit_code
from gpuyard.service.authorise import Sight, job_for, sees_secrets
from gpuyard.service.call import Answer, Call
from gpuyard.service.cursor import after, next_cursor
from gpuyard.service.lines import explanation_lines
from gpuyard.service.moments import moment
from gpuyard.service.problems import ProblemReason
from gpuyard.service.redact import Veil
from gpuyard.service.unhealthy import unhealthy_nodes
from gpuyard.service.views import Outlook, job_detail, job_object
from gpuyard.wire.rest import ExplanationObject, JobObject, Page, Scale
from gpuyard.worlds.standalone.intents import VERBS, ScaleJob, Steer
from gpuyard.worlds.standalone.lifecycle import OVER, JobState
from gpuyard.worlds.standalone.records import JobRecord, Then

Result = TypeVar("Result")

ACTIVE: Final = "active"
MAX_AT_ONCE: Final = 100
"""Jobs, and tasks of jobs, that the event loop looks through by itself."""
_MAY_WAIT: Final = frozenset({JobState.WAITING, JobState.STARTING, JobState.RUNNING})

_ALREADY: Final[dict[str, Callable[[JobRecord], bool]]] = {
    "cancel": lambda job: job.state is JobState.CANCELLED or job.then is Then.CANCEL,
    "hold": lambda job: job.state is JobState.HELD or job.then is Then.HOLD,
    "release": lambda job: job.state in (JobState.WAITING, JobState.BLOCKED, JobState.STARTING, JobState.RUNNING),
    "suspend": lambda job: job.state is JobState.SUSPENDED or job.then is Then.SUSPEND,
    "resume": lambda job: job.state in (JobState.WAITING, JobState.STARTING, JobState.RUNNING),
    "requeue": lambda job: job.state is JobState.WAITING or job.then is Then.REQUEUE,
}
"""Where a verb has had its effect: asked again with an Idempotency-Key, it is answered as if it had it just now."""


# ------------------------------------------------------------------------------------------------------------- listing


async def list_jobs(call: Call) -> Answer:
    limit, matching = call.limit, _matching(call)
    # Few jobs are looked through at once; many off the event loop, when it is the caller's turn.
    found = await _of_many(call, len(call.state.jobs), lambda: list(islice(matching, limit + 1)))
    page = found[:limit]
    outlooks = await outlooks_of(call, page, estimate=call.flag("estimate"))
    more = next_cursor(call, position(page[-1].id)) if len(found) > limit else None
    items = await job_objects(call, [(job, outlooks[job.id]) for job in page])
    return Answer(Page(items, more, call.state.seq))


async def job_objects(call: Call, jobs: list[tuple[JobRecord, Outlook]]) -> tuple[JobObject, ...]:
    veil = Veil(call.state, call.caller)
    size = sum(len(job.tasks) for job, _ in jobs)
    return await _of_many(call, size, lambda: tuple(job_object(job, veil, outlook) for job, outlook in jobs))


async def _of_many(call: Call, count: int, make: Callable[[], Result]) -> Result:
    """Make an answer of so many things: of few at once, of many in another thread, so of values alone."""
    return make() if count <= MAX_AT_ONCE else await call.service.traffic.apart(call.caller.user, make)


def position(id: str) -> tuple[int, int]:
    """Where a job stands in the order of submission: its number, and its index in its array."""
    number, _, index = id.partition("_")
    return int(number), int(index) if index else -1


def _matching(call: Call) -> Iterator[JobRecord]:
    """Newest first. Jobs are kept in the order they were submitted, so nothing is sorted."""
    before = after(call, (int, int))
    wanted, sight, jobs = _filter(call), Sight(call.caller), list(call.state.jobs.values())
    return (
        job
        for job in reversed(jobs)
        if wanted(job) and sight.sees(job) and (before is None or position(job.id) < before)
    )


def _filter(call: Call) -> Callable[[JobRecord], bool]:
    states, labels = _states(call.text("state")), _labels(call.text("label"))
    team, user, name, array = (call.text(field) for field in ("team", "user", "name", "array"))

    def wanted(job: JobRecord) -> bool:
        return (
            (not states or job.state in states)
            and (not team or job.team == team)
            and (not user or job.user == user)
            and (not name or job.name == name)
            and (not array or job.array == array)
            and (not labels or labels <= set(job.form.labels))
        )

    return wanted


def _states(text: str) -> frozenset[JobState]:
    states: set[JobState] = set()
    for word in filter(None, (part.strip() for part in text.split(","))):
        if word == ACTIVE:
            states |= frozenset(JobState) - OVER
        elif word in JobState.__members__.values():
            states.add(JobState(word))
        else:
            fix = f"one of: {ACTIVE}, {', '.join(JobState)}"
            raise RefusedError(ProblemReason.BAD_PARAMETER, f'"{word[:40]}" is no state', fix=fix, field="state")
    return frozenset(states)


def _labels(text: str) -> frozenset[tuple[str, str]]:
    pairs = [part.partition("=") for part in text.split(",") if part]
    for key, equals, _ in pairs:
        if not key or not equals:
            what = f'"{key[:40]}" is no label'
            raise RefusedError(ProblemReason.BAD_PARAMETER, what, fix="write key=value", field="label")
    return frozenset((key, value) for key, _, value in pairs)


async def outlooks_of(call: Call, jobs: list[JobRecord], *, estimate: bool) -> dict[str, Outlook]:
    """What the scheduler last said about these jobs, and if asked when they are thought to start."""
    waiting = [job.id for job in jobs if job.state is JobState.WAITING]
    forecasts: dict[str, Forecast] = {}
    if waiting and estimate:
        async with call.service.traffic.thinking.turn(call.caller.user):
            forecasts = await call.manager.forecasts(waiting)
    return {
        job.id: Outlook(call.manager.waiting_reasons(job.id) if job.state in _MAY_WAIT else (), forecasts.get(job.id))
        for job in jobs
    }


# ------------------------------------------------------------------------------------------------------------- looking


async def get_job(call: Call) -> Answer:
    job = job_for(call)
    outlooks = await outlooks_of(call, [job], estimate=True)
    use = {task: percent for (id, task), percent in call.manager.gpu_use().items() if id == job.id}
    outlook = replace(outlooks[job.id], gpu_use=use)
    veil, secrets = Veil(call.state, call.caller), sees_secrets(call.caller, job)
    detail = await _of_many(call, len(job.tasks), lambda: job_detail(job, veil, outlook, secrets=secrets))
    return Answer(detail, revision=job.revision)


async def explain_job(call: Call) -> Answer:
    job = job_for(call)
    explanation = Explanation(job.id, job.team, Standing.FINISHED)
    if not job.over:
        async with call.service.traffic.thinking.turn(call.caller.user):
            explanation = await call.manager.explain(job.id)
    now_ms = call.manager.now_ms()
    veil = Veil(call.state, call.caller)
    seen = veil.explanation(explanation)
    said = job_object(call.state.jobs.get(job.id, job), veil)
    unhealthy = unhealthy_nodes(call.state, job)
    text = (*explanation_lines(seen, now_ms), *dict.fromkeys(why.text for why in said.why), *unhealthy)
    answer = ExplanationObject(seen, text, exit_code(seen), moment(now_ms), unhealthy, call.state.seq)
    return Answer(answer, revision=job.revision)


# ------------------------------------------------------------------------------------------------------------ steering


async def steer(call: Call) -> Answer:
    """cancel, hold, release, suspend, resume, requeue: the word is in the operation's name."""
    job = job_for(call)
    verb = call.operation.name.removesuffix("_job")
    if call.key and _ALREADY[verb](job):
        return _answer(call, job.id)
    await call.manager.do(Steer(job.id, verb, call.if_match), call.caller)
    return _answer(call, job.id)


async def scale_job(call: Call) -> Answer:
    job = job_for(call)
    assert isinstance(call.value, Scale)
    await call.manager.do(ScaleJob(job.id, call.value.tasks, call.value.min_tasks, call.if_match), call.caller)
    return _answer(call, job.id)


def _answer(call: Call, id: str) -> Answer:
    job = call.state.jobs[id]
    outlook = Outlook(call.manager.waiting_reasons(id) if job.state in _MAY_WAIT else ())
    return Answer(job_object(job, Veil(call.state, call.caller), outlook), revision=job.revision)


HANDLERS: Final = {
    "list_jobs": list_jobs,
    "get_job": get_job,
    "explain_job": explain_job,
    **{f"{verb}_job": steer for verb in VERBS},
    "scale_job": scale_job,
}
