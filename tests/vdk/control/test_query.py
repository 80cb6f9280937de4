"""VDK's query for lists."""

from __future__ import annotations

import pytest

from gpuyard.errors import RefusedError
from gpuyard.vdk.control.query import read_query

FROM_VDKCLI = (
    '{ jobs(pageNumber: 2, pageSize: 100, filter: [{ property: "config.team", pattern: "vision", sort: ASC }, '
    '{ property: "jobName", sort: ASC }]) { content { jobName config { team description schedule { scheduleCron } } '
    "deployments { enabled status } } } }"
)


def test_the_query_of_the_command_line_is_understood() -> None:
    query = read_query(FROM_VDKCLI)
    assert (query.page, query.size) == (2, 100)
    assert query.accepts("vision", "any")
    assert not query.accepts("speech", "any")
    assert query.wants("deployments")
    assert not query.wants("executions")


def test_nothing_said_means_the_first_page_of_everything() -> None:
    query = read_query("")
    assert (query.page, query.size, query.patterns) == (1, 100, ())


@pytest.mark.parametrize(
    "text", ["jobs(pageNumber: 0)", "jobs(pageSize: 0)", "jobs(pageSize: 1001)", '{property: "secret", pattern: "x"}']
)
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(RefusedError) as caught:
        read_query(text)
    assert caught.value.fix
