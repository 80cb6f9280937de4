"""Who may do what, over real HTTP: every role x operation x (own, same team, other team), from the one table.

What a cell expects is read off the table here a second time, in the plainest words: how far a permission reaches, and
whether that covers what is asked about. What one may not see is not there (404); what one sees but may not do is
refused (403).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest

from gpuyard.service.handlers import HANDLERS
from gpuyard.service.openapi import openapi
from gpuyard.vdk.serving.face import PoolFace
from gpuyard.wire.access import TABLE, Permission, Reach, Role, Scope
from gpuyard.wire.operations import OPERATIONS, Operation
from gpuyard.worlds.standalone.events import ScheduleSet
from tests.service.yard import Yard

pytestmark = pytest.mark.slow

ROLES: dict[str, Role | None] = {
    "root": Role.ADMIN,
    "olga": Role.OPERATOR,
    "lea": Role.LEAD,
    "max": Role.MEMBER,
    "vic": Role.VIEWER,
    "new": None,
}
"""Each is of team vision, where the role is one of a team."""

TARGETS = ("own", "same team", "other team")
BY_NAME = {operation.name: operation for operation in OPERATIONS}
OF_JOBS = [operation for operation in OPERATIONS if operation.path.startswith("/v1/jobs/{id}")]
OF_MEMBERS = [operation for operation in OPERATIONS if "/members/" in operation.path]
OF_SUBMISSION = [BY_NAME["submit_job"], BY_NAME["plan_job"]]
OF_LISTS = [BY_NAME[name] for name in ("list_jobs", "list_events", "list_audit", "usage")]
OF_SCHEDULES = [
    operation
    for operation in OPERATIONS
    if operation.path.startswith("/v1/schedules/{team}/{name}") and operation.name != "set_schedule"
]
OF_SETTING = [BY_NAME["set_schedule"]]
OF_SCHEDULE_LISTS = [BY_NAME["list_schedules"]]
OF_TOKENS = [BY_NAME["revoke_token"]]
OF_POOL_LISTS = [BY_NAME[name] for name in ("list_pool_budgets", "list_pool_jobs", "list_pool_plans")]
OF_POOL_REQUESTS = [BY_NAME[name] for name in ("provision_pool_job", "quote_pool_job")]
OF_POOL_JOBS = [
    BY_NAME[name] for name in ("end_pool_job", "mark_pool_job", "get_pool_plan", "confirm_pool_step", "fail_pool_step")
]
OF_POOL = [*OF_POOL_LISTS, *OF_POOL_REQUESTS, *OF_POOL_JOBS]
OF_CLUSTER = [
    operation
    for operation in OPERATIONS
    if operation.permission is not None
    and operation not in (*OF_JOBS, *OF_MEMBERS, *OF_SUBMISSION, *OF_LISTS, *OF_TOKENS, *OF_POOL)
    and operation not in (*OF_SCHEDULES, *OF_SETTING, *OF_SCHEDULE_LISTS)
]

BODIES: dict[str, Any] = {
    "scale_job": {"tasks": 2, "min_tasks": 1},
    "what_if": {"queues": {"vision": {"quota": 3}}},
    "set_teams": {"queues": {"vision": 4, "speech": 2}},
    "change_teams": {"queues": {"product": {"quota": 3}}},
    "change_node": {"labels": {}},
    "join_node": {"node": "m9", "csr": "x"},
    "set_user": {"grants": []},
    "create_token": {"name": "t"},
    "set_member": {"role": "viewer"},
    "set_pool_machine": {"devices": 8},
    "set_pool_budget": {"amount": "1"},
}


def reach(role: Role | None, permission: Permission) -> Reach:
    return Reach.NONE if role is None else TABLE[permission][role]


def covers(role: Role | None, permission: Permission, target: str) -> bool:
    match reach(role, permission):
        case Reach.ALL:
            return True
        case Reach.TEAM:
            return target in ("own", "same team")
        case Reach.OWN:
            return target == "own"
        case _:
            return False


def test_the_cells_cover_the_whole_table() -> None:
    of_schedules = (OF_SCHEDULES, OF_SETTING, OF_SCHEDULE_LISTS)
    groups = (OF_JOBS, OF_MEMBERS, OF_SUBMISSION, OF_LISTS, OF_TOKENS, OF_POOL, OF_CLUSTER, *of_schedules)
    covered = {one.name for group in groups for one in group}
    unasked = {operation.name for operation in OPERATIONS if operation.permission is None}
    assert covered | unasked == BY_NAME.keys()
    assert unasked == {"livez", "readyz", "version"}


def test_handlers_operations_and_description_are_the_same_set() -> None:
    described = openapi("x")["paths"]
    named = {one["operationId"] for methods in described.values() for one in methods.values()}
    beside = PoolFace().handlers
    assert not HANDLERS.keys() & beside.keys()
    assert HANDLERS.keys() | beside.keys() == BY_NAME.keys() == named
    routes = {(path, method.upper()) for path, methods in described.items() for method in methods}
    assert routes == {(operation.path, operation.method) for operation in OPERATIONS}


def asked(yard: Yard, user: str, operation: Operation, path: str, **query: str) -> int:
    body = BODIES.get(operation.name)
    response = yard.ask(user, operation.method, path, params=query, **({} if body is None else {"json": body}))
    return int(response.status_code)


# ---------------------------------------------------------------------------------------------------------------- jobs


@pytest.fixture(scope="module")
def job_of(yard: Yard) -> Callable[[str, str], str]:
    """A new job as seen by somebody: their own, of their team, of another team."""

    def make(user: str, target: str) -> str:
        owner = {"same team": "mia", "other team": "sam"}.get(target, user)
        # Who may not submit has no job of their own, but could have had one before: an admin moves it to them.
        from gpuyard.worlds.standalone.intents import Submission, Submit

        record = yard.manager.state.jobs[yard.submit("sam" if owner == "sam" else "mia", gpus=0, hold=True)]
        if owner in ("sam", "mia"):
            return record.id
        submission = Submission("own", owner, msgspec.structs.replace(record.form, id=""), record.work, held=True)
        return str(yard.do(Submit(submission)).jobs[0])

    return make


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operation", OF_JOBS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("user", ROLES, ids=lambda user: str(ROLES[user]))
def test_jobs(yard: Yard, job_of: Callable[[str, str], str], user: str, operation: Operation, target: str) -> None:
    role, permission = ROLES[user], operation.permission
    assert permission is not None
    status = asked(yard, user, operation, operation.path.replace("{id}", job_of(user, target)))
    if reach(role, permission) is Reach.NONE:
        assert status == 403
    elif not covers(role, Permission.SEE_JOBS, target):
        assert status == 404
    elif not covers(role, permission, target):
        assert status == 403
    else:
        # The job is held: some verbs are out of turn, and there is no log.
        assert status in ({404} if operation.name == "read_logs" else {200, 409})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operation", OF_LISTS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("user", ROLES, ids=lambda user: str(ROLES[user]))
def test_lists(yard: Yard, job_of: Callable[[str, str], str], user: str, operation: Operation, target: str) -> None:
    role, permission = ROLES[user], operation.permission
    assert permission is not None
    job = job_of(user, target)
    query = {"limit": "1000"} if operation.name != "usage" else {"by": "job"}
    response = yard.ask(user, "GET", operation.path, params=query)
    if reach(role, permission) is Reach.NONE:
        assert response.status_code == 403
        return
    assert response.status_code == 200
    found = {
        name
        for item in response.json()["items"]
        for name in (item.get("id", ""), item.get("job", ""), *item.get("objects", ()))
    }
    seen = job in found or f"job/{job}" in found
    if operation.name == "usage":
        assert not seen
    else:
        assert seen == covers(role, permission, target)


# ---------------------------------------------------------------------------------------------------------- submitting


@pytest.mark.parametrize("team", ["vision", "speech"])
@pytest.mark.parametrize("operation", OF_SUBMISSION, ids=lambda operation: operation.name)
@pytest.mark.parametrize("user", ROLES, ids=lambda user: str(ROLES[user]))
def test_submitting(yard: Yard, user: str, operation: Operation, team: str) -> None:
    body = {"command": ["x"], "team": team, "gpus": 0}
    status = yard.ask(user, "POST", operation.path, json=body).status_code
    allowed = covers(ROLES[user], Permission.SUBMIT, "own" if team == "vision" else "other team")
    assert status == (operation.status if allowed else 403)


@pytest.mark.parametrize("extra", [{"priority": "high"}, {"priority": 51}, {"preemptible": False}])
@pytest.mark.parametrize("user", ["root", "lea", "max"])
def test_priority_and_immunity_are_for_those_who_may(yard: Yard, user: str, extra: dict[str, Any]) -> None:
    body = {"command": ["x"], "team": "vision", "gpus": 0, **extra}
    response = yard.ask(user, "POST", "/v1/jobs", json=body)
    allowed = covers(ROLES[user], Permission.RAISE_PRIORITY, "own")
    assert response.status_code == (201 if allowed else 403)
    if not allowed:
        assert response.json()["field"] == next(iter(extra))


@pytest.mark.parametrize("field", ["after", "afterok"])
def test_a_job_of_another_team_cannot_be_referred_to(yard: Yard, field: str) -> None:
    theirs = yard.submit("sam", gpus=0, hold=True)
    array = yard.ask("sam", "POST", "/v1/jobs", json={"command": ["x"], "array": "0-1", "gpus": 0}).json()["jobs"][0]
    messages = []
    for id in (theirs, array["array"], array["id"], "999999"):
        refused = yard.ask("max", "POST", "/v1/jobs", json={"command": ["x"], "gpus": 0, field: [id]})
        assert (refused.status_code, refused.json()["reason"]) == (422, "DependencyUnknown")
        messages.append(refused.json()["detail"].replace(id, "ID"))
    assert len(set(messages)) == 1


# ----------------------------------------------------------------------------------------------------------- schedules


ScheduleOf = Callable[[str, str], str]


@pytest.fixture(scope="module")
def schedule_of(yard: Yard) -> ScheduleOf:
    """A new schedule as seen by somebody, as a path; for those who may not submit one that was theirs before."""
    numbers = count()

    def make(user: str, target: str) -> str:
        owner = {"same team": "mia", "other team": "sam"}.get(target, user)
        team, name = "speech" if target == "other team" else "vision", f"access-{next(numbers)}"
        path = f"/v1/schedules/{team}/{name}"
        writer = owner if owner in ("mia", "sam") else "root"
        body = {"cron": "0 0 1 1 *", "job": {"command": ["x"], "gpus": 0, "hold": True}}
        made = yard.ask(writer, "PUT", path, json=body)
        assert made.status_code == 200, made.text
        if writer != owner:
            record = yard.manager.state.schedules[f"{team}/{name}"]
            handed = msgspec.structs.replace(record.submission, user=owner)
            event = ScheduleSet(record.id, record.recurrence, handed, record.written)
            yard.call(lambda: yard.manager.record([event]))
        return path

    return make


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operation", OF_SCHEDULES, ids=lambda operation: operation.name)
@pytest.mark.parametrize("user", ROLES, ids=lambda user: str(ROLES[user]))
def test_schedules(yard: Yard, schedule_of: ScheduleOf, user: str, operation: Operation, target: str) -> None:
    role, permission = ROLES[user], operation.permission
    assert permission is not None
    path = schedule_of(user, target) + operation.path.removeprefix("/v1/schedules/{team}/{name}")
    response = yard.ask(user, operation.method, path)
    if reach(role, permission) is Reach.NONE:
        assert response.status_code == 403
    elif not covers(role, Permission.SEE_JOBS, target):
        assert response.status_code == 404
    elif not covers(role, permission, target):
        assert response.status_code == 403
    elif operation.name == "run_schedule" and not covers(role, Permission.SUBMIT, "own") and target == "own":
        # It would be theirs, and they may not submit any more.
        assert response.status_code == 403
    else:
        assert response.status_code == operation.status
    if operation.name == "get_schedule" and response.status_code == 200:
        assert (response.json()["job"] is not None) == covers(role, Permission.SEE_SECRETS, target)


@pytest.mark.parametrize("target", ["new", *TARGETS])
@pytest.mark.parametrize("user", ROLES, ids=lambda user: str(ROLES[user]))
def test_setting_schedules(yard: Yard, schedule_of: ScheduleOf, user: str, target: str) -> None:
    """A new one needs the right to submit; to write somebody's anew also that to end what is theirs."""
    role = ROLES[user]
    path = f"/v1/schedules/vision/fresh-{user}" if target == "new" else schedule_of(user, target)
    whose = "own" if target == "new" else target
    body = {"cron": "@yearly", "job": {"command": ["x"], "gpus": 0}}
    status = yard.ask(user, "PUT", path, json=body).status_code
    allowed = covers(role, Permission.SUBMIT, whose) and covers(role, Permission.STEER_JOBS, whose)
    assert status == (200 if allowed else 403)
    if allowed:
        assert yard.ask(user, "GET", path).json()["owner"] == user


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("user", ROLES, ids=lambda user: str(ROLES[user]))
def test_lists_of_schedules(yard: Yard, schedule_of: ScheduleOf, user: str, target: str) -> None:
    path = schedule_of(user, target)
    response = yard.ask(user, "GET", "/v1/schedules", params={"limit": "1000"})
    if reach(ROLES[user], Permission.SEE_JOBS) is Reach.NONE:
        assert response.status_code == 403
        return
    found = {f"/v1/schedules/{item['team']}/{item['name']}" for item in response.json()["items"]}
    assert (path in found) == covers(ROLES[user], Permission.SEE_JOBS, target)


# -------------------------------------------------------------------------------------------------------------- people


@pytest.mark.parametrize("team", ["vision", "speech"])
@pytest.mark.parametrize("operation", OF_MEMBERS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("user", ROLES, ids=lambda user: str(ROLES[user]))
def test_members(yard: Yard, user: str, operation: Operation, team: str) -> None:
    status = asked(yard, user, operation, f"/v1/teams/{team}/members/ida")
    allowed = covers(ROLES[user], Permission.SET_MEMBERS, "own" if team == "vision" else "other team")
    assert status == (200 if allowed else 403)


@pytest.mark.parametrize("role", ["admin", "operator", "king", ""])
@pytest.mark.parametrize("user", ["root", "lea"])
def test_nobody_is_given_a_role_of_the_cluster_by_way_of_a_team(yard: Yard, user: str, role: str) -> None:
    refused = yard.ask(user, "PUT", "/v1/teams/vision/members/vic", json={"role": role})
    assert (refused.status_code, refused.json()["reason"]) == (400, "BadValue")


def test_a_lead_sees_of_other_people_only_their_roles_in_the_own_team(yard: Yard) -> None:
    yard.ask("root", "PUT", "/v1/users/both", json={"grants": [{"role": "lead", "team": "speech"}]})
    seen = yard.ask("lea", "PUT", "/v1/teams/vision/members/both", json={"role": "member"}).json()
    assert seen["grants"] == [{"role": "member", "team": "vision"}]
    assert len(yard.manager.state.users["both"].grants) == 2


@pytest.mark.parametrize("target", ["own", "other team"])
@pytest.mark.parametrize("user", ROLES, ids=lambda user: str(ROLES[user]))
def test_tokens(yard: Yard, user: str, target: str) -> None:
    yard.token(user if target == "own" else "sam")
    id = list(yard.manager.state.tokens)[-1]
    status = yard.ask(user, "DELETE", f"/v1/tokens/{id}").status_code
    role = ROLES[user]
    if role is None:
        assert status == 403
    else:
        assert status == (204 if target == "own" or role is Role.ADMIN else 404)


def test_a_token_reaches_no_further_than_its_owner(yard: Yard) -> None:
    for scope in ("scrape", "join"):
        refused = yard.ask("max", "POST", "/v1/tokens", json={"scope": scope})
        assert (refused.status_code, refused.json()["reason"]) == (403, "NotAllowed")
    refused = yard.ask("lea", "POST", "/v1/tokens", json={"user": "root"})
    assert (refused.status_code, refused.json()["field"]) == (403, "user")


@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize("operation", [one for one in OPERATIONS if one.permission], ids=lambda one: one.name)
def test_a_scope_narrows_what_a_token_is_good_for(yard: Yard, operation: Operation, scope: Scope) -> None:
    """An admin's token of each scope: what the scope does not hold is refused before anything is looked at."""
    held = {
        Scope.FULL: set(Permission) - {Permission.JOIN},
        Scope.READ: {
            Permission.SEE_CLUSTER,
            Permission.SEE_JOBS,
            Permission.SEE_SECRETS,
            Permission.READ_AUDIT,
            Permission.SEE_POOL,
        },
        Scope.SCRAPE: {Permission.SCRAPE},
        Scope.JOIN: {Permission.JOIN},
        Scope.POOL: {Permission.SEE_POOL, Permission.USE_POOL, Permission.SET_POOL, Permission.RAISE_PRIORITY},
    }[scope]
    name = f"root:{scope}"
    if name not in yard.tokens:
        yard.tokens[name] = yard.token("root", scope)
    path = operation.path.replace("{", "").replace("}", "")
    # A body of the wrong kind, so that nothing is changed where it is allowed.
    status = yard.ask(name, operation.method, path, params={"nonsense": "1"}, content=b"x").status_code
    assert (status == 403) == (operation.permission not in held)


# ---------------------------------------------------------------------------------------------------------------- pool


@pytest.fixture(scope="module")
def pool_job_of(yard: Yard) -> Callable[[str], tuple[str, str, str]]:
    """A new job of the pool, of one's own team or of another: its team, its name and its open plan."""
    yard.ask("root", "PUT", "/v1/pool/machines/large", json={"devices": 1000})
    for team in ("vision", "speech"):
        yard.ask("root", "PUT", f"/v1/pool/budgets/{team}", json={"amount": 1000})
    numbers = count()

    def make(target: str) -> tuple[str, str, str]:
        team, name = "speech" if target == "other team" else "vision", f"access-{next(numbers)}"
        made = yard.ask("root", "POST", "/v1/pool/provision", json={"name": name, "team": team, "amount": "0.1"})
        assert made.status_code == 201, made.text
        return team, name, str(made.json()["plan"])

    return make


PoolJobOf = Callable[[str], tuple[str, str, str]]


@pytest.mark.parametrize("target", ["same team", "other team"])
@pytest.mark.parametrize("operation", OF_POOL_JOBS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("user", ROLES, ids=lambda user: str(ROLES[user]))
def test_jobs_of_the_pool(yard: Yard, pool_job_of: PoolJobOf, user: str, operation: Operation, target: str) -> None:
    role, permission = ROLES[user], operation.permission
    assert permission is not None
    team, name, plan = pool_job_of(target)
    id = {"name": name, "team": team}
    body = {"end_pool_job": id, "mark_pool_job": {**id, "priority": True}, "fail_pool_step": {}}.get(operation.name)
    path = operation.path.format(id=plan, number=1)
    status = yard.ask(user, operation.method, path, **({} if body is None else {"json": body})).status_code
    if reach(role, permission) is Reach.NONE:
        assert status == 403
    elif not covers(role, Permission.SEE_POOL, target):
        assert status == 404
    elif not covers(role, permission, target):
        assert status == 403
    else:
        assert status == operation.status


@pytest.mark.parametrize("target", ["same team", "other team"])
@pytest.mark.parametrize("operation", OF_POOL_REQUESTS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("user", ROLES, ids=lambda user: str(ROLES[user]))
def test_asking_the_pool(yard: Yard, pool_job_of: PoolJobOf, user: str, operation: Operation, target: str) -> None:
    permission = operation.permission
    assert permission is not None
    team, name, _ = pool_job_of(target)
    body = {"name": f"{name}-{user}-{operation.name}", "team": team, "amount": "0.1"}
    status = yard.ask(user, "POST", operation.path, json=body).status_code
    assert status == (operation.status if covers(ROLES[user], permission, target) else 403)


@pytest.mark.parametrize("target", ["same team", "other team"])
@pytest.mark.parametrize("operation", OF_POOL_LISTS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("user", ROLES, ids=lambda user: str(ROLES[user]))
def test_lists_of_the_pool(yard: Yard, pool_job_of: PoolJobOf, user: str, operation: Operation, target: str) -> None:
    role, permission = ROLES[user], operation.permission
    assert permission is not None
    team, _, _ = pool_job_of(target)
    response = yard.ask(user, "GET", operation.path, params={"limit": "1000"})
    if reach(role, permission) is Reach.NONE:
        assert response.status_code == 403
        return
    assert (team in {item["team"] for item in response.json()["items"]}) == covers(role, permission, target)


@pytest.mark.parametrize("user", ["root", "olga", "lea", "max"])
def test_priority_in_the_pool_is_for_those_who_may(yard: Yard, pool_job_of: PoolJobOf, user: str) -> None:
    _, name, _ = pool_job_of("same team")
    body = {"name": f"{name}-{user}", "team": "vision", "amount": "0.1", "priority": True}
    status = yard.ask(user, "POST", "/v1/pool/provision", json=body).status_code
    assert status == (201 if covers(ROLES[user], Permission.RAISE_PRIORITY, "same team") else 403)


# ------------------------------------------------------------------------------------------------------- whole cluster


@pytest.mark.parametrize("operation", OF_CLUSTER, ids=lambda operation: operation.name)
@pytest.mark.parametrize("user", ROLES, ids=lambda user: str(ROLES[user]))
def test_the_cluster(yard: Yard, user: str, operation: Operation) -> None:
    path = operation.path.format(name="nobody" if "user" in operation.path else "m1", user="ida", id="x", team="nobody")
    dry = {"dry_run": "true"} if any(one.name == "dry_run" for one in operation.query) else {}
    status = asked(yard, user, operation, path, **dry)
    permission = operation.permission
    assert permission is not None
    if reach(ROLES[user], permission) is Reach.NONE:
        assert status == 403
    else:
        # Some are out of turn (409), or about something that is not there (404); none is refused for the role.
        assert status in {200, 201, 204, 404, 409}
    yard.ask("root", "POST", "/v1/nodes/m1/resume")


@pytest.mark.parametrize("operation", [one for one in OPERATIONS if one.permission], ids=lambda one: one.name)
def test_without_a_credential_nobody_learns_anything(yard: Yard, operation: Operation) -> None:
    path = operation.path.format(name="vision", user="max", id="1", team="vision", number="1")
    answers = [yard.ask("", operation.method, path), yard.ask("", operation.method, "/v1/nothing/here")]
    for answer in answers:
        assert (answer.status_code, answer.json()["reason"]) == (401, "SignInNeeded")
    assert answers[0].content == answers[1].content


def test_a_viewer_of_a_queue_sees_the_teams_below_it(yard: Yard) -> None:
    theirs, others = yard.submit("sam", gpus=0, hold=True), yard.submit("root", team="product", gpus=0, hold=True)
    with yard.client(token=yard.tokens["ida"]) as client:
        # The tests above took the role in vision from her; the one in research is another grant.
        assert client.get(f"/v1/jobs/{theirs}").status_code == 200
        assert client.get(f"/v1/jobs/{others}").status_code == 404
