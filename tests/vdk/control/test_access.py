"""Who may do what with data jobs: every role x operation x (own, same team, other team), from the one table of access.

What one may not see is not there (404); what one sees but may not do is refused (403).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpuyard.service.handlers import HANDLERS
from gpuyard.vdk.control.face import ControlFace
from gpuyard.vdk.serving.face import PoolFace
from gpuyard.wire.access import TABLE, Permission, Reach, Role
from gpuyard.wire.data_job_operations import DATA_JOB_OPERATIONS
from gpuyard.wire.operations import OPERATIONS, Operation
from tests.service.yard import Yard
from tests.vdk.control.folders import STEP, config, packed
from tests.vdk.control.jobs import OCTETS, DataJobs

pytestmark = pytest.mark.slow

ROLES: dict[str, Role | None] = {
    "root": Role.ADMIN,
    "olga": Role.OPERATOR,
    "lea": Role.LEAD,
    "max": Role.MEMBER,
    "vic": Role.VIEWER,
    "new": None,
}
ASKED = [operation for operation in DATA_JOB_OPERATIONS if operation.permission is not None]
OF_EXECUTIONS = [operation for operation in ASKED if "/executions/{id}" in operation.path]
OF_TEAMS = [operation for operation in ASKED if operation not in OF_EXECUTIONS]
BODIES: dict[str, dict[str, Any]] = {
    "create_data_job": {"json": {"job_name": "shared-job"}},
    "set_data_job": {"json": {"job_name": "shared-job"}},
    "upload_sources": {"content": packed({"config.ini": config("x"), "10_a.py": STEP}), "headers": OCTETS},
    "deploy_data_job": {"json": {}},
    "patch_deployment": {"json": {}},
    "start_execution": {"json": {}},
    "set_properties": {"json": {}},
}


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("yard")) as running:
        yield running


def test_handlers_and_tables_hold_the_same_operations_and_no_two_the_same_name_or_path() -> None:
    handlers = ControlFace().handlers
    assert handlers.keys() == {operation.name for operation in DATA_JOB_OPERATIONS}
    assert not handlers.keys() & (HANDLERS.keys() | PoolFace().handlers.keys())
    paths = [(operation.method, operation.path) for operation in (*OPERATIONS, *DATA_JOB_OPERATIONS)]
    assert len(paths) == len(set(paths))
    assert [one.name for one in DATA_JOB_OPERATIONS if one.permission is None] == ["exchange_token"]
    prefixes = ControlFace.prefixes
    assert all(operation.path.startswith(prefixes) for operation in DATA_JOB_OPERATIONS)
    assert not any(operation.path.startswith(prefixes) for operation in OPERATIONS)


def covers(role: Role | None, permission: Permission, target: str) -> bool:
    match Reach.NONE if role is None else TABLE[permission][role]:
        case Reach.ALL:
            return True
        case Reach.TEAM:
            return target in ("own", "same team")
        case Reach.OWN:
            return target == "own"
        case _:
            return False


def asked(yard: Yard, user: str, operation: Operation, **path: str) -> int:
    given = {"deployment": "production", "name": "shared-job", **path}
    options = BODIES.get(operation.name, {})
    return int(yard.ask(user, operation.method, operation.path.format(**given), **options).status_code)


def prepared(yard: Yard, team: str) -> DataJobs:
    """The team has a job that is deployed and does not run; whatever a test left is gone."""
    jobs = DataJobs(yard, "root", team)
    jobs.clear()
    jobs.ask("DELETE", "/jobs/shared-job")
    jobs.create("shared-job")
    jobs.deploy("shared-job")
    return jobs


def everything(jobs: DataJobs) -> list[Any]:
    """All that can be changed about the job."""
    paths = ("", "/deployments", "/deployments/x/properties", "/executions")
    return [jobs.ask("GET", f"/jobs/shared-job{path}").json() for path in paths]


@pytest.mark.parametrize("target", ["same team", "other team"])
@pytest.mark.parametrize("operation", OF_TEAMS, ids=lambda operation: operation.name)
def test_data_jobs_of_a_team(yard: Yard, operation: Operation, target: str) -> None:
    team = {"same team": "vision", "other team": "speech"}[target]
    permission = operation.permission
    assert permission is not None
    jobs = prepared(yard, team)
    for user, role in ROLES.items():
        if operation.name == "create_data_job":
            jobs.ask("DELETE", "/jobs/shared-job")
        before = everything(jobs)
        status = asked(yard, user, operation, team=team)
        if covers(role, permission, target):
            assert 200 <= status < 300, (user, status)
            if operation.changes:
                prepared(yard, team)
        elif operation.name == "query_data_jobs" and role is not None:
            # A list leaves out what one may not see; the team in the path is only VDK's way to say who asks.
            found = yard.ask(user, "GET", operation.path.format(team=team)).json()["data"]["content"]
            assert team not in {one["config"]["team"] for one in found}, user
        else:
            assert status in (403, 404), (user, status)
            assert everything(jobs) == before


@pytest.mark.parametrize("target", ["own", "same team", "other team"])
@pytest.mark.parametrize("operation", OF_EXECUTIONS, ids=lambda operation: operation.name)
def test_executions(yard: Yard, operation: Operation, target: str) -> None:
    permission = operation.permission
    assert permission is not None
    team = "speech" if target == "other team" else "vision"
    for user, role in ROLES.items():
        if target == "own" and not covers(role, Permission.SUBMIT, "own"):
            continue
        jobs = prepared(yard, team)
        starter = {"same team": "mia", "other team": "sue"}.get(target, user)
        id = DataJobs(yard, starter, team).start("shared-job")
        yard.wait_for(id, "running")
        status = asked(yard, user, operation, team=team, id=id)
        if covers(role, permission, target):
            assert status == 200, (user, status)
        else:
            seen = covers(role, Permission.SEE_JOBS, target)
            assert status == 403 if seen else status in (403, 404), (user, status)
            assert jobs.execution("shared-job", id)["status"] == "running"


def test_of_another_teams_jobs_nothing_is_told_at_all(yard: Yard) -> None:
    prepared(yard, "speech")
    there, nowhere = (
        yard.ask("max", "GET", f"/data-jobs/for-team/speech/jobs/{name}").json() for name in ("shared-job", "no-such")
    )
    assert (there["status"], there["reason"]) == (nowhere["status"], nowhere["reason"]) == (404, "DataJobUnknown")
    listed = yard.ask("max", "GET", "/data-jobs/for-team/speech/jobs").json()["data"]
    assert {one["config"]["team"] for one in listed["content"]} <= {"vision"}
    assert listed["totalItems"] == len(listed["content"])
