"""Submitting jobs, and asking what would happen: plans and what-if."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from gpuyard.files.change import changes_in
from gpuyard.files.cluster import ClusterFile, surroundings
from gpuyard.files.work import read_work
from gpuyard.model.reasons import Reason
from gpuyard.model.snapshot import Snapshot
from gpuyard.model.text import reason_text
from gpuyard.scheduler.scopes import reach_others
from gpuyard.service.authorise import check_submission, own_teams
from gpuyard.service.bodies import file_of
from gpuyard.service.call import Answer, Call
from gpuyard.service.lines import difference_lines, plan_lines, quota_lines
from gpuyard.service.problems import PROBLEM_MEDIA, ProblemReason, problem
from gpuyard.service.questions import CANDIDATE
from gpuyard.service.redact import Veil
from gpuyard.service.views import Outlook, job_object
from gpuyard.wire.access import Permission
from gpuyard.wire.rest import DifferenceObject, PlanObject, Submitted
from gpuyard.worlds.standalone.decide import decide
from gpuyard.worlds.standalone.events import JobSubmitted
from gpuyard.worlds.standalone.intents import Submission, Submit
from gpuyard.worlds.standalone.snapshot import MACHINES
from gpuyard.worlds.standalone.submitting import submitted_before

RULES_LEFT_OUT: Final = "rules between jobs of different teams are left out: you may not see the jobs of all teams"


async def submit_job(call: Call) -> Answer:
    submission = read_submission(call)
    intent = Submit(submission, f"{call.caller.user}/{call.key}" if call.key else "", _fingerprint(call))
    known = submitted_before(call.state, intent.key, intent.fingerprint) is not None
    never = () if known or call.flag("allow_never") else await call.manager.never(submission)
    if never:
        return could_never_run(call, never)
    if call.flag("dry_run"):
        return await _dry_run(call, intent)
    done = await call.manager.do(intent, call.caller)
    return submitted_jobs(call, done.jobs)


def could_never_run(call: Call, never: tuple[Reason, ...]) -> Answer:
    veil = Veil(call.state, call.caller)
    detail = "; ".join(reason_text(reason) for reason in veil.reasons(never))
    fix = "change what it asks for, or submit it all the same with allow_never"
    found = problem(ProblemReason.NEVER, detail, fix=fix, blockers=veil.reasons(never))
    return Answer(found, status=found.status, media=PROBLEM_MEDIA)


def read_submission(call: Call) -> Submission:
    """The job of the body, if the caller may submit it."""
    state = call.state
    around = surroundings(Snapshot(queues=state.queues, topologies=(MACHINES,)))
    file = read_work(file_of(call), msgspec.structs.replace(around, own=own_teams(call.caller, state)))
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
    events = decide(call.state, intent, call.manager.now_ms())
    would = {event.job.id: event.job for event in events if isinstance(event, JobSubmitted)}
    async with call.service.traffic.thinking():
        difference = await call.manager.dry_run(intent, call.caller)
    veil = Veil(call.state, call.caller, would)
    jobs = tuple(job_object(job, veil) for job in would.values())
    return Answer(Submitted(jobs, text=tuple(difference_lines(veil.difference(difference)))), status=200)


def submitted_jobs(call: Call, ids: tuple[str, ...]) -> Answer:
    veil = Veil(call.state, call.caller)
    jobs = [call.state.jobs[id] for id in ids if id in call.state.jobs and veil.sees(id)]
    objects = tuple(job_object(job, veil, Outlook(call.manager.waiting_reasons(job.id))) for job in jobs)
    return Answer(Submitted(objects), revision=jobs[0].revision if len(jobs) == 1 else None)


async def plan_job(call: Call) -> Answer:
    submission = read_submission(call)
    async with call.service.traffic.thinking():
        plan, snapshot = await call.manager.plan_with(submission, call.caller)
    seen = Veil(call.state, call.caller).plan(plan)
    teams = quota_lines(plan, snapshot, call.manager.standing(), CANDIDATE)
    left_out = (RULES_LEFT_OUT,) if not call.caller.may(Permission.SEE_JOBS) and reach_others(call.state.queues) else ()
    text = (*plan_lines(seen, CANDIDATE, submission.name), *teams, *left_out)
    return Answer(PlanObject(seen, text, call.state.seq))


async def what_if(call: Call) -> Answer:
    cluster = ClusterFile(call.manager.snapshot(), summed=frozenset(call.state.summed))
    changes = changes_in(file_of(call), cluster)
    async with call.service.traffic.thinking():
        difference = await call.manager.what_if(changes)
    seen = Veil(call.state, call.caller).difference(difference)
    return Answer(DifferenceObject(seen, tuple(difference_lines(seen)), call.state.seq))


HANDLERS: Final = {"submit_job": submit_job, "plan_job": plan_job, "what_if": what_if}
