"""What a caller may see and do, for every operation: the one place that asks the access table.

Place in the flow: Call ─▶ **authorise** ─record, or refused─▶ handler. What one may not see is answered as if it were
not there; what one sees but may not do is answered NotAllowed. Invariant: handlers get jobs from here and from nowhere
else.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuyard.errors import RefusedError
from gpuyard.model.jobs import Job
from gpuyard.service.call import Call
from gpuyard.service.problems import ProblemReason
from gpuyard.wire.access import Caller, Grant, Permission, Role
from gpuyard.wire.operations import Operation
from gpuyard.worlds.standalone.permits import objection_to
from gpuyard.worlds.standalone.records import JobRecord, ScheduleRecord, State, schedule_id

TEAM_ROLES = (Role.LEAD, Role.MEMBER, Role.VIEWER)


def admit(caller: Caller, operation: Operation) -> None:
    """Whether the caller may ask for this at all, about anything."""
    if operation.permission is not None and not caller.anywhere(operation.permission):
        raise not_allowed(f"{operation.name} needs a role or token that allows {operation.permission}")


def not_allowed(what: str, field: str = "") -> RefusedError:
    fix = "gpuyard whoami shows what you may do; ask a lead of the team or an admin"
    return RefusedError(ProblemReason.NOT_ALLOWED, what, fix=fix, field=field)


def no_such(reason: ProblemReason, what: str, fix: str = "") -> RefusedError:
    return RefusedError(reason, what, fix=fix)


# ---------------------------------------------------------------------------------------------------------------- jobs


def sees_job(caller: Caller, job: JobRecord) -> bool:
    return caller.may(Permission.SEE_JOBS, team=job.team, owner=job.user)


class Sight:
    """Which jobs a caller sees, for long lists: what the table says of a team is asked once."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._known: dict[tuple[str, bool], bool] = {}

    def sees(self, job: JobRecord) -> bool:
        key = (job.form.queue, job.user == self._caller.user)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = sees_job(self._caller, job)
        return found


def sees_secrets(caller: Caller, job: JobRecord) -> bool:
    return caller.may(Permission.SEE_SECRETS, team=job.team, owner=job.user)


def visible_job(call: Call, id: str) -> JobRecord:
    job = call.state.jobs.get(id)
    if job is None or not sees_job(call.caller, job):
        raise no_such(ProblemReason.JOB_UNKNOWN, f"there is no job {id[:80]}", _where_to_look(call, id))
    return job


def _where_to_look(call: Call, id: str) -> str:
    """Who names an array where a job is wanted is told so, if its jobs are theirs to see."""
    array = call.state.arrays.get(id)
    seen = (
        [one for one in array.elements if (job := call.state.jobs.get(one)) and sees_job(call.caller, job)]
        if array
        else []
    )
    if not seen:
        return "gpuyard ls -a"
    return f"{id} is an array of {len(seen)} jobs, {seen[0]} to {seen[-1]}: gpuyard ls -a --array {id}"


def job_for(call: Call) -> JobRecord:
    """The job of the path, if the operation is allowed on it."""
    job = visible_job(call, call.path["id"])
    permission = call.operation.permission
    assert permission is not None
    if not call.caller.may(permission, team=job.team, owner=job.user):
        raise not_allowed(f"your role in team {job.team} does not allow {permission} on job {job.id}")
    return job


def schedule_for(call: Call) -> ScheduleRecord:
    """The schedule of the path, if the operation is allowed on it."""
    schedule = seen_schedule(call)
    permission = call.operation.permission
    if schedule is None:
        what = f'team "{call.path["team"][:80]}" has no schedule "{call.path["name"][:80]}"'
        raise no_such(ProblemReason.SCHEDULE_UNKNOWN, what, "gpuyard schedule ls")
    assert permission is not None
    if not call.caller.may(permission, team=schedule.team, owner=schedule.owner):
        raise not_allowed(f"your role in team {schedule.team} does not allow {permission} on schedule {schedule.id}")
    return schedule


def seen_schedule(call: Call) -> ScheduleRecord | None:
    """The schedule of the path, if there is one that the caller sees."""
    found = call.state.schedules.get(schedule_id(call.path["team"], call.path["name"]))
    return found if found is not None and sees_schedule(call.caller, found) else None


def sees_schedule(caller: Caller, schedule: ScheduleRecord) -> bool:
    return caller.may(Permission.SEE_JOBS, team=schedule.team, owner=schedule.owner)


def check_replacing(call: Call, known: ScheduleRecord) -> None:
    """To write somebody's schedule anew is to end theirs."""
    if not call.caller.may(Permission.STEER_JOBS, team=known.team, owner=known.owner):
        what = f"schedule {known.id} belongs to {known.owner}, and your role does not allow to take it over"
        raise not_allowed(what, "name")


def seen_teams(call: Call, permission: Permission = Permission.SEE_JOBS) -> frozenset[str] | None:
    """Teams whose jobs, events and use are shown; None: all, and what belongs to no team."""
    return call.caller.teams(permission, {*call.state.teams, *(queue.name for queue in call.state.queues)})


# ---------------------------------------------------------------------------------------------------------- submitting


def own_teams(caller: Caller, state: State) -> tuple[str, ...]:
    """Teams the caller may submit to."""
    return tuple(sorted(team for team in state.teams if caller.may(Permission.SUBMIT, team=team, owner=caller.user)))


def check_submission(call: Call, form: Job, references: Mapping[str, tuple[str, ...]]) -> None:
    """Whether the caller may submit this, there, and depending on these: per field, the jobs it names."""
    objection = objection_to(call.caller, form)
    if objection is not None:
        raise not_allowed(objection.what, objection.field)
    for field, ids in references.items():
        for id in ids:
            if not _sees_reference(call, id):
                what = f"there is no job {id[:80]}"
                raise RefusedError(ProblemReason.DEPENDENCY_UNKNOWN, what, fix="gpuyard ls -a", field=field)


def _sees_reference(call: Call, id: str) -> bool:
    """A job, or an array by the first of its elements that is still known."""
    array = call.state.arrays.get(id)
    ids = array.elements if array is not None else (id,)
    job = next((call.state.jobs[one] for one in ids if one in call.state.jobs), None)
    return job is not None and sees_job(call.caller, job)


# -------------------------------------------------------------------------------------------------------------- people


def check_member_change(call: Call, team: str, role: str | None) -> None:
    """Roles are given within one's own reach: a lead in the own team, and never a role of the cluster."""
    if not any(queue.name == team for queue in call.state.queues):
        raise no_such(ProblemReason.TEAM_UNKNOWN, f'there is no team "{team[:80]}"', "gpuyard team ls")
    if not call.caller.may(Permission.SET_MEMBERS, team=team, owner=call.caller.user):
        raise not_allowed(f"your role does not allow to say who is in team {team}")
    if role is not None and role not in TEAM_ROLES:
        what = f'"{role[:40]}" is no role in a team'
        fix = f"one of: {', '.join(TEAM_ROLES)}; an admin gives roles of the cluster: gpuyard user set"
        raise RefusedError(ProblemReason.BAD_VALUE, what, fix=fix, field="role")


def shown_grants(call: Call, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
    """Of somebody's roles those in the caller's reach."""
    if call.caller.may(Permission.SET_USERS):
        return grants
    return tuple(grant for grant in grants if call.caller.may(Permission.SET_MEMBERS, team=grant.team))


def sees_members(caller: Caller, team: str) -> bool:
    return caller.may(Permission.SET_USERS) or caller.may(Permission.SEE_JOBS, team=team)
