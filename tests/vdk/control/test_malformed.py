"""Whatever is sent to a data job's path, it is answered in words: no bug is met, and nothing is half done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.wire.data_job_operations import DATA_JOB_OPERATIONS
from gpuyard.wire.operations import BYTE_BODIES, Operation
from tests.service.yard import Yard
from tests.vdk.control.jobs import DataJobs

JSON = {"Content-Type": "application/json"}
WITH_BODY = [one for one in DATA_JOB_OPERATIONS if one.body is not None and one.body not in BYTE_BODIES]
ODD_BODIES = [
    b"",
    b"null",
    b"[]",
    b"5",
    b'"text"',
    b"{",
    b"\xff\xfe",
    b"[" * 5_000,
    b'{"job_name": 5}',
    b'{"job_name": "job-it-is", "config": []}',
    b'{"job_name": "job-it-is", "config": {"schedule": {"schedule_cron": 5}}}',
    b'{"args": []}',
    b'{"args": {"a": NaN}}',
    b'{"started_by": {}}',
    b'{"enabled": "yes"}',
    b'{"job_version": 5}',
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("yard")) as running:
        DataJobs(running, "root").create("some-job")
        yield running


def path_of(operation: Operation) -> str:
    return operation.path.format(team="vision", name="some-job", deployment="production", id="1")


def answered(yard: Yard, operation: Operation, **options: Any) -> int:
    response = yard.ask("root", operation.method, path_of(operation), **options)
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        told = response.json()
        assert told["what"]
        assert told["why"]
    return int(response.status_code)


@pytest.mark.parametrize("operation", WITH_BODY, ids=lambda operation: operation.name)
def test_a_body_that_is_none_is_refused(yard: Yard, operation: Operation) -> None:
    for body in ODD_BODIES:
        answered(yard, operation, content=body, headers=JSON)
    assert answered(yard, operation, content=b"{", headers=JSON) == 400
    assert answered(yard, operation, content=b"{}", headers={"Content-Type": "text/plain"}) == 415


@pytest.mark.parametrize("operation", WITH_BODY, ids=lambda operation: operation.name)
def test_any_json_is_answered_without_a_bug(yard: Yard, operation: Operation) -> None:
    fields = (
        "job_name",
        "config",
        "description",
        "team",
        "args",
        "started_by",
        "enabled",
        "job_version",
        "vdk_version",
    )

    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.dictionaries(st.sampled_from(fields), json_values, max_size=4))
    def ask(body: dict[str, Any]) -> None:
        answered(yard, operation, json=body)

    ask()


@pytest.mark.parametrize(
    "path",
    [
        "/data-jobs/for-team/%00/jobs",
        "/data-jobs/for-team/../jobs/some-job",
        "/data-jobs/for-team/vision/jobs/%2e%2e",
        "/data-jobs/for-team/vision/jobs/a%2fb/executions",
        "/data-jobs/for-team/vision/jobs/some-job/executions/%ff",
        "/data-jobs/for-team/vision/jobs/some-job/executions/" + "9" * 400,
        "/data-jobs/for-team/" + "x" * 1_000 + "/jobs",
        "/data-jobs/",
        "/data-jobs/for-team/vision/jobs/some-job/deployments/production/secrets",
        "/oauth2/authorize",
    ],
)
def test_an_odd_path_is_answered_in_words(yard: Yard, path: str) -> None:
    response = yard.ask("root", "GET", path)
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        assert response.json()["why"]
