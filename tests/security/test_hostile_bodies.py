"""Hostile bodies to every operation that takes one: refused in words, and nothing changed."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from gpuyard.wire.data_job_operations import DATA_JOB_OPERATIONS
from gpuyard.wire.operations import ARCHIVE, FORM, OPERATIONS, Operation
from tests.security.hostile_values import TEXTS, WRITTEN, written
from tests.security.test_rest_fuzz import Answer, check
from tests.service.yard import Yard
from tests.vdk.control.jobs import DataJobs

pytestmark = pytest.mark.slow

WITH_BODY: Final = [
    one for one in (*OPERATIONS, *DATA_JOB_OPERATIONS) if one.body is not None and one.body not in (ARCHIVE, FORM)
]
FILES: Final = [one for one in WITH_BODY if isinstance(one.body, str)]
VALUES: Final = {"name": "vision", "team": "vision", "user": "ida", "number": "1", "deployment": "x", "id": "1"}
DEEP: Final = 20_000
RAW_BODIES: Final = (
    *(
        b"",
        b" ",
        b"\0",
        b"{",
        b"[",
        b"}",
        b"{}{}",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b"\x1f\x8b\x08\x00",
        b"PK\x03\x04",
    ),
    *(b"null", b"true", b"1", b'"text"', b"[]", b"[[]]", b"NaN", b"{]", b"{'a': 1}", b'{"a": 1,}', b'{"a" 1}', b"// x"),
    *(b"[" * DEEP, b'{"a":' * DEEP, b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    *(b'"' + b"x" * 500_000 + b'"', b"[" + b"0," * 20_000 + b"0]", b"9" * 500_000, b'{"k": ' + b"1" * 400_000 + b"}"),
    *(b"{" + b",".join(b'"k%d": 1' % number for number in range(5_000)) + b"}", b'{"a": 1, "a": 2}'),
)
YAML_BODIES: Final = (
    *(
        b"a: [",
        b"a: &a [*a]",
        b"*nowhere",
        b"!!python/object/apply:os.system [id]",
        b"!!map x",
        b"%YAML 9.9\n---\na: 1",
    ),
    *(
        b"a: 1\n---\nb: 2\n",
        b"? [a]\n: b",
        b"<<: *x",
        b"a: |\n  x\n b: 1",
        b"\t- a",
        b"a: b: c",
        b"@a",
        b"`a`",
        b"{a: b",
    ),
    *(
        b"- " * 3_000 + b"x",
        b"a:\n" + b" a:\n" * 100,
        b"&a [" + b"x," * 20 + b"x]\n",
        b"a: !!float .inf",
        b"a: !!binary =",
    ),
    b"a: &a [x,x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (98 + step, 98 + step, b",".join([b"*%c" % (97 + step)] * 10)) for step in range(8)),
)


def state_of(yard: Yard) -> tuple[Any, ...]:
    state = yard.manager.state
    return state.next_job, state.teams_revision, len(state.tokens), dict(state.users), dict(state.schedules)


def send(yard: Yard, operation: Operation, body: bytes, media: str = "application/json") -> Answer:
    path = operation.path.format(**VALUES)
    answer = yard.ask("root", operation.method, path, content=body, headers={"Content-Type": media})
    return Answer(answer.status_code, answer.headers.get("content-type", ""), answer.content)


@pytest.fixture(autouse=True)
def a_data_job(yard: Yard) -> None:
    """The one that paths of data jobs name."""
    if yard.ask("root", "GET", "/data-jobs/for-team/vision/jobs/vision").status_code == 404:
        DataJobs(yard, "root").create("vision")


@pytest.mark.parametrize("operation", WITH_BODY, ids=lambda operation: operation.name)
def test_bodies_that_are_no_request_are_refused(yard: Yard, operation: Operation) -> None:
    before = state_of(yard)
    empty_is_right = operation.name in ("set_properties", "deploy_data_job", "patch_deployment", "start_execution")
    for body in RAW_BODIES:
        answer = send(yard, operation, body)
        check(answer)
        if not empty_is_right:
            assert 400 <= answer.status < 500, (body[:60], answer)
    assert state_of(yard) == before
    assert yard.ask("max", "GET", "/v1/status").status_code == 200


@pytest.mark.parametrize("operation", FILES, ids=lambda operation: operation.name)
def test_yaml_that_is_no_file_is_refused(yard: Yard, operation: Operation) -> None:
    before = state_of(yard)
    for body in (*YAML_BODIES, *RAW_BODIES):
        answer = send(yard, operation, body, "application/yaml")
        check(answer)
        assert 400 <= answer.status < 500, (body[:60], answer)
    assert state_of(yard) == before


@pytest.mark.parametrize("operation", WITH_BODY, ids=lambda operation: operation.name)
def test_no_field_takes_a_value_it_cannot_hold_for_one(yard: Yard, operation: Operation) -> None:
    """Each hostile value in a field that exists, and in one that does not."""
    fields = [field.encode_name for field in _fields(operation)]
    for field in (*fields, "command", "queues", "nothing"):
        for value in (*WRITTEN, *TEXTS[:20]):
            check(send(yard, operation, written({field: value}).encode("utf-8", "surrogatepass")))


def _fields(operation: Operation) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Of the object it takes; a file has no type in the table."""
    kind = operation.body
    return msgspec.structs.fields(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()
