"""Submitting jobs, and asking what would happen: plans and what-if."""

from __future__ import annotations

import hashlib
from typing import Final

from msgspec.structs import replace

from gpuyard.files.change import changes_in
from gpuyard.files.cluster import ClusterFile, surroundings
from gpuyard.files.place import Place
from gpuyard.files.work import WorkFile, read_work
from gpuyard.model.reasons import Reason
from gpuyard.model.snapshot import Snapshot
from gpuyard.model.text import reason_text
from gpuyard.scheduler.scopes import reach_others
from gpuyard.service.authorise import check_submission, own_teams
from gpuyard.service.bodies import read_apart
from gpuyard.service.call import Answer, Call
from gpuyard.service.handlers.jobs import job_objects
from gpuyard.service.lines import difference_lines, plan_lines, quota_lines
from gpuyard.service.problems import PROBLEM_MEDIA, ProblemReason, problem
from gpuyard.service.questions import CANDIDATE
from gpuyard.service.redact import Veil
from gpuyard.service.views import Outlook, job_object
from gpuyard.wire.access import Permission
from gpuyard.wire.rest import DifferenceObject, PlanObject, Submitted
from gpuyard.worlds.standalone.intents import Submission, Submit
from gpuyard.worlds.standalone.snapshot import MACHINES
from gpuyard.worlds.standalone.submitting import submitted_before

RULES_LEFT_OUT: Final = "rules between jobs of different teams are left out: you may not see the jobs of all teams"


async def submit_job(call: Call) -> Answer:
    submission = await read_submission(call)
    intent = Submit(submission, f"{call.caller.user}/{call.key}" if call.key else "", _fingerprint(call))
    known = submitted_before(call.state, intent.key, intent.fingerprint) is not None
    never = () if known or call.flag("allow_never") else await never_runs(call, submission)
    if never:
        return could_never_run(call, never)
    if call.flag("dry_run"):
        return await _dry_run(call, intent)
    done = await call.manager.do(intent, call.caller)
    return await submitted_jobs(call, done.jobs)


async def never_runs(call: Call, submission: Submission) -> tuple[Reason, ...]:
    """What keeps it from ever running on this cluster; empty where it can."""
    async with call.service.traffic.reading.turn(call.caller.user):
        return await call.manager.never(submission)


def could_never_run(call: Call, never: tuple[Reason, ...]) -> Answer:
    veil = Veil(call.state, call.caller)
    detail = "; ".join(reason_text(reason) for reason in veil.reasons(never))
    fix = "change what it asks for, or submit it all the same with allow_never"
    found = problem(ProblemReason.NEVER, detail, fix=fix, blockers=veil.reasons(never))
    return Answer(found, status=found.status, media=PROBLEM_MEDIA)


async def read_submission(call: Call) -> Submission:
    """The job of the body, if the caller may submit it."""
    queues, own = call.state.queues, own_teams(call.caller, call.state)

    def read(place: Place) -> WorkFile:
        around = surroundings(Snapshot(queues=queues, topologies=(MACHINES,)))
        return read_work(place, replace(around, own=own))

    file = await read_apart(call, read)
    check_submission(call, file.form, {"after": file.after, "afterok": file.afterok})
    return Submission(
        file.name, call.caller.user, file.form, file.work, file.array, file.after, file.afterok, file.held
    )


def _fingerprint(call: Call) -> str:
    """Of everything that says what is submitted."""
    options = f"{call.media}\n{call.flag('allow_never')}\n{call.flag('dry_run')}\n".encode()
    return hashlib.sha256(options + call.body).hexdigest()


async def _dry_run(call: Call, intent: Submit) -> Answer:
    """The jobs as they would be, by the ids they would get now, and whom they concern; refused as they would be."""
    async with call.service.traffic.thinking.turn(call.caller.user):
        tried = await call.manager.dry_run(intent, call.caller)
    would = {job.id: job for job in tried.jobs}
    veil = Veil(call.state, call.caller, would)
    answer = await call.service.traffic.apart(
        call.caller.user,
        lambda: Submitted(
            tuple(job_object(job, veil) for job in would.values()),
            text=tuple(difference_lines(veil.difference(tried.difference))),
        ),
    )
    return Answer(answer, status=200)


async def submitted_jobs(call: Call, ids: tuple[str, ...]) -> Answer:
    veil = Veil(call.state, call.caller)
    jobs = [call.state.jobs[id] for id in ids if id in call.state.jobs and veil.sees(id)]
    objects = await job_objects(call, [(job, Outlook(call.manager.waiting_reasons(job.id))) for job in jobs])
    return Answer(Submitted(objects), revision=jobs[0].revision if len(jobs) == 1 else None)


async def plan_job(call: Call) -> Answer:
    submission = await read_submission(call)
    async with call.service.traffic.thinking.turn(call.caller.user):
        plan, snapshot = await call.manager.plan_with(submission, call.caller)
    veil, standing, revision = Veil(call.state, call.caller), call.manager.standing(), call.state.seq
    left_out = (RULES_LEFT_OUT,) if not call.caller.may(Permission.SEE_JOBS) and reach_others(call.state.queues) else ()

    def told() -> PlanObject:
        seen = veil.plan(plan)
        teams = quota_lines(plan, snapshot, standing, CANDIDATE)
        return PlanObject(seen, (*plan_lines(seen, CANDIDATE, submission.name), *teams, *left_out), revision)

    return Answer(await call.service.traffic.apart(call.caller.user, told))


async def what_if(call: Call) -> Answer:
    user, summed = call.caller.user, frozenset(call.state.summed)
    async with call.service.traffic.thinking.turn(user):
        cluster = ClusterFile(await call.manager.snapshot(), summed=summed)
    changes = await read_apart(call, lambda place: changes_in(place, cluster))
    async with call.service.traffic.thinking.turn(user):
        difference = await call.manager.what_if(changes)
    veil, revision = Veil(call.state, call.caller), call.state.seq

    def told() -> DifferenceObject:
        seen = veil.difference(difference)
        return DifferenceObject(seen, tuple(difference_lines(seen)), revision)

    return Answer(await call.service.traffic.apart(user, told))


HANDLERS: Final = {"submit_job": submit_job, "plan_job": plan_job, "what_if": what_if}
