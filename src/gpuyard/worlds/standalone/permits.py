"""How far a user's roles reach, and whether they may submit a job: one answer for requests, and for planned times long
after the request.

Place in the flow: sign-in, REST and schedules ─▶ **permits** ─table of access─▶ nothing, or why not. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gpuyard.model.jobs import DEFAULT_PRIORITY, Job
from gpuyard.model.queues import Queue
from gpuyard.wire.access import EVERYWHERE, Caller, Grant, Permission


class Objection(msgspec.Struct, frozen=True):
    """What stands against it, and the field of the job it is about."""

    what: str
    field: str


def objection_to(caller: Caller, form: Job) -> Objection | None:
    """Why the caller may not submit this to its team; None where they may."""
    team = form.queue
    if not caller.may(Permission.SUBMIT, team=team, owner=caller.user):
        return Objection(f"the role of {caller.user} does not allow to submit to team {team}", "team")
    if caller.may(Permission.RAISE_PRIORITY, team=team, owner=caller.user):
        return None
    if form.priority > DEFAULT_PRIORITY:
        return Objection(f"a priority above {DEFAULT_PRIORITY} in team {team} needs a lead", "priority")
    if not form.preemptible:
        return Objection(f"a job of team {team} that may not be preempted needs a lead", "preemptible")
    return None


def reaching(grants: tuple[Grant, ...], queues: Iterable[Queue]) -> tuple[Grant, ...]:
    """The grants with those they imply: who has a role in a queue has it in all below it."""
    if all(grant.team == EVERYWHERE for grant in grants):
        return grants
    children: dict[str | None, list[str]] = {}
    for queue in queues:
        children.setdefault(queue.parent, []).append(queue.name)
    found = dict.fromkeys(grants)
    for grant in grants:
        below = list(children.get(grant.team, ()))
        while below:
            name = below.pop()
            found[Grant(grant.role, name)] = None
            below += children.get(name, ())
    return tuple(found)
