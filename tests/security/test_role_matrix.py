"""Every operation x every role x (one's own, the team's, another team's, nobody's), over real HTTP.

What a cell expects is worked out from the table of access alone, in the plainest words; what it asks for is a request
that succeeds if the role allows it (matrix_targets.py), so that no cell is right for another reason. An operation that
is new in the tables and has no target here fails the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from gpuyard.wire.access import READING, TABLE, Grant, Permission, Reach, Role, Scope
from gpuyard.wire.data_job_operations import DATA_JOB_OPERATIONS
from gpuyard.wire.operations import OPERATIONS, Operation
from gpuyard.worlds.standalone.intents import SetUser
from tests.security.matrix_targets import NOBODY, ON, OTHER_TEAM, OWN, SAME_TEAM, TARGETS, Shape, Stage, put_back
from tests.service.yard import Yard

pytestmark = pytest.mark.slow

ROLES: Final[dict[str, Role | None]] = {
    "root": Role.ADMIN,
    "olga": Role.OPERATOR,
    "lea": Role.LEAD,
    "max": Role.MEMBER,
    "vic": Role.VIEWER,
    "new": None,
}
"""Each is of team vision, where the role is one of a team."""
ASKED: Final = [one for one in (*OPERATIONS, *DATA_JOB_OPERATIONS) if one.permission is not None]
APART: Final = frozenset({"join_node"})


@pytest.fixture(scope="module")
def lasting_stage(yard: Yard) -> Stage:
    return Stage(yard)


@pytest.fixture
def stage(lasting_stage: Stage) -> Iterator[Stage]:
    yield lasting_stage
    lasting_stage.clear()


def reach(role: Role | None, permission: Permission) -> Reach:
    return Reach.NONE if role is None else TABLE[permission][role]


def covers(role: Role | None, permission: Permission, target: str) -> bool:
    match reach(role, permission):
        case Reach.ALL:
            return True
        case Reach.TEAM:
            return target in (OWN, SAME_TEAM)
        case Reach.OWN:
            return target == OWN
        case _:
            return False


def expected(operation: Operation, shape: Shape, role: Role | None, target: str) -> int:
    """The status of one cell."""
    permission = operation.permission
    assert permission is not None
    if reach(role, permission) is Reach.NONE:
        return 403
    match shape:
        case Shape.CLUSTER | Shape.LIST:
            return operation.status
        case Shape.TEAM:
            return operation.status if covers(role, permission, target) else 403
        case Shape.TOKEN:
            manages = reach(role, Permission.SET_USERS) is Reach.ALL and target != NOBODY
            return operation.status if target == OWN or manages else 404
        case Shape.THING:
            return _of_a_thing(operation, permission, role, target)


def _of_a_thing(operation: Operation, permission: Permission, role: Role | None, target: str) -> int:
    seeing = Permission.SEE_POOL if operation.path.startswith("/v1/pool") else Permission.SEE_JOBS
    if target == NOBODY or not covers(role, seeing, target):
        return 404
    if not covers(role, permission, target):
        return 403
    if operation.name == "run_schedule" and not covers(role, Permission.SUBMIT, target):
        # An operator may manage it; what runs is its owner's, who may submit.
        return 403 if target == OWN else operation.status
    return operation.status


def test_every_operation_of_the_tables_is_in_the_matrix() -> None:
    assert ON.keys() | APART == {operation.name for operation in ASKED}


@pytest.mark.parametrize("operation", [one for one in ASKED if one.name in ON], ids=lambda operation: operation.name)
def test_who_may_do_what(stage: Stage, operation: Operation) -> None:
    shape, make = ON[operation.name]
    wrong, statuses = [], set()
    for user, role in ROLES.items():
        for target in TARGETS[shape]:
            tried = make(stage, user, target)
            answer = stage.yard.ask(user, operation.method, tried.path, **tried.options)
            put_back(stage, operation)
            statuses.add(answer.status_code)
            wanted = expected(operation, shape, role, target)
            if answer.status_code != wanted:
                wrong.append(f"{role} on {target}: {answer.status_code}, not {wanted}: {answer.text[:300]}")
            elif shape is Shape.LIST and answer.status_code == 200:
                permission = operation.permission
                assert permission is not None
                if (tried.mark in answer.text) != covers(role, permission, target):
                    wrong.append(f"{role} on {target}: shown is not what may be seen")
    assert not wrong, "\n".join(wrong)
    # A matrix in which everybody is allowed, or nobody, would be one of no roles.
    assert {operation.status, 403} <= statuses


# --------------------------------------------------------------------------------------------------- scopes and queues

HELD: Final[dict[Scope, frozenset[Permission]]] = {
    Scope.FULL: frozenset(Permission) - {Permission.JOIN},
    Scope.READ: READING,
    Scope.SCRAPE: frozenset({Permission.SCRAPE}),
    Scope.JOIN: frozenset({Permission.JOIN}),
    Scope.POOL: frozenset({Permission.SEE_POOL, Permission.USE_POOL, Permission.SET_POOL, Permission.RAISE_PRIORITY}),
}


@pytest.mark.parametrize("scope", list(Scope))
def test_a_scope_takes_away_and_never_gives(stage: Stage, scope: Scope) -> None:
    """An admin's token of each scope: what it holds succeeds as without one, the rest is refused."""
    yard = stage.yard
    name = f"root:{scope}"
    yard.tokens[name] = yard.token("root", scope)
    for operation in ASKED:
        if operation.name in APART:
            continue
        tried = ON[operation.name][1](stage, "root", OWN)
        answer = yard.ask(name, operation.method, tried.path, **tried.options)
        put_back(stage, operation)
        wanted = operation.status if operation.permission in HELD[scope] else 403
        assert answer.status_code == wanted, (operation.name, answer.text)


@pytest.mark.parametrize("role", [Role.LEAD, Role.MEMBER, Role.VIEWER])
def test_a_role_in_a_queue_is_one_in_all_teams_below_it(stage: Stage, role: Role) -> None:
    """Of research, above vision and speech: the other team is no other one."""
    name = f"of-research-{role}"
    stage.yard.do(SetUser(name, (Grant(role, "research"),)))
    stage.yard.tokens[name] = stage.yard.token(name)
    for operation in ASKED:
        shape, make = ON.get(operation.name, (Shape.CLUSTER, None))
        if shape is not Shape.THING or make is None:
            continue
        tried = make(stage, name, OTHER_TEAM)
        answer = stage.yard.ask(name, operation.method, tried.path, **tried.options)
        assert answer.status_code == expected(operation, shape, role, SAME_TEAM), (operation.name, answer.text)


@pytest.mark.parametrize("operation", ASKED, ids=lambda operation: operation.name)
def test_without_a_valid_token_all_is_alike(yard: Yard, operation: Operation) -> None:
    """Nobody learns what there is: the answer to a path that exists is that to one that does not."""
    values = {"id": "1", "name": "vision", "team": "vision", "user": "ida", "number": "1", "deployment": "x"}
    paths = (operation.path.format(**values), "/v1/nothing/here")
    answers = [yard.ask("", operation.method, path) for path in paths]
    assert [answer.status_code for answer in answers] == [401, 401]
    bodies = [{key: value for key, value in answer.json().items() if key in ("reason", "status")} for answer in answers]
    assert bodies[0] == bodies[1] == {"reason": "SignInNeeded", "status": 401}
