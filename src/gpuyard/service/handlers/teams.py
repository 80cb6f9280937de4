"""Teams: the tree, its edits with a dry run, and who is what in a team."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from gpuyard.errors import RefusedError
from gpuyard.files.queues import QueueTree, with_sums
from gpuyard.files.teams import TeamsFile, read_team_changes, read_teams
from gpuyard.model.quantities import GPU, MILLI
from gpuyard.model.queue_notes import Owed, queue_notes
from gpuyard.model.queues import Queue
from gpuyard.service.authorise import check_member_change, no_such, sees_members, shown_grants
from gpuyard.service.bodies import read_apart
from gpuyard.service.call import Answer, Call
from gpuyard.service.limits import MAX_NAME_LENGTH
from gpuyard.service.lines import difference_lines
from gpuyard.service.problems import ProblemReason
from gpuyard.service.redact import Veil
from gpuyard.service.views import members_of, team_objects
from gpuyard.wire.access import Grant, Role
from gpuyard.wire.rest import MemberChange, Page, TeamObject, TeamsChanged, UserObject
from gpuyard.worlds.standalone.intents import SetTeams, SetUser, TeamSettings
from gpuyard.worlds.standalone.lifecycle import OVER
from gpuyard.worlds.standalone.records import State


async def list_teams(call: Call) -> Answer:
    return Answer(Page(tuple(_seen(call)), None, call.state.seq), revision=call.state.teams_revision)


async def get_team(call: Call) -> Answer:
    name = call.path["name"]
    for team in _seen(call):
        if team.name == name:
            return Answer(team, revision=team.revision)
    raise unknown_team(name)


def _seen(call: Call) -> Iterable[TeamObject]:
    for team in team_objects(call.state, call.manager.standing()):
        seen = sees_members(call.caller, team.name)
        yield replace(team, members=members_of(call.state, team.name)) if seen else team


def unknown_team(name: str) -> RefusedError:
    return no_such(ProblemReason.TEAM_UNKNOWN, f'there is no team "{name[:80]}"', "gpuyard team ls")


# ------------------------------------------------------------------------------------------------------------- editing


async def set_teams(call: Call) -> Answer:
    return await _write(call, await read_apart(call, read_teams))


async def change_teams(call: Call) -> Answer:
    state = call.state
    busy = frozenset(job.team for job in state.jobs.values() if job.state not in OVER)
    tree = _tree(state)
    return await _write(call, await read_apart(call, lambda place: read_team_changes(place, tree, busy)))


async def remove_team(call: Call) -> Answer:
    name = call.path["name"]
    tree = _tree(call.state)
    if all(queue.name != name for queue in tree.queues):
        raise unknown_team(name)
    if any(queue.parent == name for queue in tree.queues):
        what = f'"{name}" has teams below it'
        raise RefusedError(ProblemReason.TEAM_HAS_TEAMS, what, fix="take those away first")
    rest = [queue for queue in tree.queues if queue.name != name]
    if not rest:
        raise RefusedError(ProblemReason.LAST_TEAM, f'"{name}" is the last team', fix="add another first")
    summed = tree.summed - {name}
    return await _write(call, TeamsFile(QueueTree(with_sums(rest, summed), (), summed), {}))


def _tree(state: State) -> QueueTree:
    return QueueTree(state.queues, (), frozenset(state.summed))


def _check_names(file: TeamsFile) -> None:
    users = [user for settings in file.settings.values() for user, _ in settings.members or ()]
    for name in (*(queue.name for queue in file.tree.queues), *users):
        if len(name) > MAX_NAME_LENGTH:
            what, fix = f'the name "{name[:40]}…" is too long', f"at most {MAX_NAME_LENGTH} characters"
            raise RefusedError(ProblemReason.BAD_VALUE, what, fix=fix, field="queues")


async def _write(call: Call, file: TeamsFile) -> Answer:
    _check_names(file)
    settings = {
        name: TeamSettings(one.idle_limit_ms, one.idle_percent, one.unix_user) for name, one in file.settings.items()
    }
    summed = tuple(sorted(file.tree.summed))
    intent = SetTeams(file.tree.queues, settings, summed, call.if_match, _members(file))
    dry = call.flag("dry_run")
    async with call.service.traffic.thinking.turn(call.caller.user):
        difference = (await call.manager.dry_run(intent, call.caller)).difference
    if not dry:
        await call.manager.do(intent, call.caller)
    seen = Veil(call.state, call.caller).difference(difference)
    revision = call.state.teams_revision
    notes = (*_notes(call.state, file.tree.queues), *_shared_accounts(settings))
    return Answer(TeamsChanged(dry, seen, tuple(difference_lines(seen)), revision, notes), revision=revision)


def _notes(state: State, queues: Sequence[Queue]) -> tuple[str, ...]:
    devices = sum(len(node.facts.devices) for node in state.nodes.values())
    return queue_notes([Owed(one.name, one.parent, one.share(GPU).quota) for one in queues], devices * MILLI)


def _shared_accounts(settings: dict[str, TeamSettings]) -> Iterator[str]:
    """An operator who gives a whole team one account is told what that takes away."""
    for team, one in settings.items():
        if one.unix_user:
            shares = f'all jobs of team "{team}" run as the account "{one.unix_user}"'
            yield f"{shares}: its members can read each other's files, command lines and variables there"


def _members(file: TeamsFile) -> dict[str, tuple[Grant, ...]]:
    """Who gets which roles."""
    wanted: dict[str, tuple[Grant, ...]] = {}
    for team, settings in file.settings.items():
        for user, role in settings.members or ():
            wanted[user] = (*wanted.get(user, ()), Grant(Role(role), team))
    return wanted


# ------------------------------------------------------------------------------------------------------------- members


async def set_member(call: Call) -> Answer:
    assert isinstance(call.value, MemberChange)
    team, name, role = call.path["name"], call.path["user"], call.value.role
    check_member_change(call, team, role)
    return await _set_grants(call, name, team, (Grant(Role(role), team),))


async def remove_member(call: Call) -> Answer:
    check_member_change(call, call.path["name"], None)
    return await _set_grants(call, call.path["user"], call.path["name"], ())


async def _set_grants(call: Call, name: str, team: str, grants: tuple[Grant, ...]) -> Answer:
    known = call.state.users.get(name)
    if known is None:
        fix = "an admin makes one: gpuyard user set"
        raise no_such(ProblemReason.USER_UNKNOWN, f'there is no user "{name[:80]}"', fix)
    kept = tuple(grant for grant in known.grants if grant.team != team)
    await call.manager.do(SetUser(name, (*kept, *grants), known.unix_user, call.if_match), call.caller)
    user = call.state.users[name]
    uid = call.state.uids.get(name, 0)
    shown = UserObject(user.name, shown_grants(call, user.grants), user.unix_user, user.revision, uid)
    return Answer(shown, revision=user.revision)


HANDLERS: Final = {
    "list_teams": list_teams,
    "get_team": get_team,
    "set_teams": set_teams,
    "change_teams": change_teams,
    "remove_team": remove_team,
    "set_member": set_member,
    "remove_member": remove_member,
}
