"""What the access to an operation depends on besides the role: references, priorities, whose a schedule becomes.

Every operation x role x target is in tests/security/test_role_matrix.py; here are the rules inside them. What one may
not see is not there (404); what one sees but may not do is refused (403).
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
from gpuyard.wire.access import TABLE, Permission, Reach, Role
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
OF_SCHEDULES = [
    operation
    for operation in OPERATIONS
    if operation.path.startswith("/v1/schedules/{team}/{name}") and operation.name != "set_schedule"
]


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


def test_handlers_operations_and_description_are_the_same_set() -> None:
    described = openapi("x")["paths"]
    named = {one["operationId"] for methods in described.values() for one in methods.values()}
    beside = PoolFace().handlers
    assert not HANDLERS.keys() & beside.keys()
    assert HANDLERS.keys() | beside.keys() == BY_NAME.keys() == named
    routes = {(path, method.upper()) for path, methods in described.items() for method in methods}
    assert routes == {(operation.path, operation.method) for operation in OPERATIONS}


# ---------------------------------------------------------------------------------------------------------- submitting


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


# -------------------------------------------------------------------------------------------------------------- people


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


def test_a_token_reaches_no_further_than_its_owner(yard: Yard) -> None:
    for scope in ("scrape", "join"):
        refused = yard.ask("max", "POST", "/v1/tokens", json={"scope": scope})
        assert (refused.status_code, refused.json()["reason"]) == (403, "NotAllowed")
    refused = yard.ask("lea", "POST", "/v1/tokens", json={"user": "root"})
    assert (refused.status_code, refused.json()["field"]) == (403, "user")


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


@pytest.mark.parametrize("user", ["root", "olga", "lea", "max"])
def test_priority_in_the_pool_is_for_those_who_may(yard: Yard, pool_job_of: PoolJobOf, user: str) -> None:
    _, name, _ = pool_job_of("same team")
    body = {"name": f"{name}-{user}", "team": "vision", "amount": "0.1", "priority": True}
    status = yard.ask(user, "POST", "/v1/pool/provision", json=body).status_code
    assert status == (201 if covers(ROLES[user], Permission.RAISE_PRIORITY, "same team") else 403)


# ------------------------------------------------------------------------------------------------------- whole cluster


def test_a_viewer_of_a_queue_sees_the_teams_below_it(yard: Yard) -> None:
    theirs, others = yard.submit("sam", gpus=0, hold=True), yard.submit("root", team="product", gpus=0, hold=True)
    with yard.client(token=yard.tokens["ida"]) as client:
        # The tests above took the role in vision from her; the one in research is another grant.
        assert client.get(f"/v1/jobs/{theirs}").status_code == 200
        assert client.get(f"/v1/jobs/{others}").status_code == 404
