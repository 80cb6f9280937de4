"""The description of the API: valid, whole, and true of what runs: found out by a fuzzer that reads it."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis.strategies import DrawFn, composite
from jsonschema import Draft202012Validator
from schemathesis import GenerationMode, checks
from schemathesis.core.errors import UnsupportedSchema
from schemathesis.specs.openapi import checks as openapi_checks

from gpuyard.service.openapi import openapi
from gpuyard.service.problems import KINDS
from gpuyard.wire.operations import OPERATIONS
from tests.service.yard import Yard

LONG = os.environ.get("GPUYARD_LONG") == "1"
EXAMPLES = 200 if LONG else 6

CHECKS = (
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
)


def test_every_schema_of_it_is_one() -> None:
    described = openapi("1")
    for schema in described["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(described)) == described


def test_every_reference_leads_somewhere() -> None:
    described = openapi("1")
    known = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*map(references, value.values()))
        return set().union(*map(references, value)) if isinstance(value, list) else set()

    assert references(described) <= known


def test_moments_are_described_as_such() -> None:
    schemas = openapi("1")["components"]["schemas"]
    moment = {"type": "string", "format": "date-time"}
    assert schemas["JobObject"]["properties"]["submitted_at"] == moment
    assert moment in schemas["JobObject"]["properties"]["started_at"]["anyOf"]
    assert schemas["PoolPlan"]["properties"]["made_at"] == moment


def test_the_served_description_is_this_one(yard: Yard) -> None:
    served = yard.ask("vic", "GET", "/v1/openapi.json").json()
    assert served == openapi("1.2.3")


def test_every_refusal_is_described_where_it_can_happen() -> None:
    statuses = {str(kind.status) for kind in KINDS.values()}
    for path, methods in openapi("1")["paths"].items():
        for method, described in methods.items():
            if described.get("security") != []:
                assert statuses <= described["responses"].keys(), (path, method)


schema = schemathesis.openapi.from_dict(openapi("1"))


@composite
def cases(draw: DrawFn, described: Any, mode: GenerationMode) -> schemathesis.Case[Any]:
    """Of what it is to break, schemathesis draws now and then a part for which it knows no counterexample."""
    try:
        case: schemathesis.Case[Any] = draw(described.as_strategy(generation_mode=mode))
    except UnsupportedSchema:
        reject()
    return case


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(operation.name, mode, id=f"{operation.name}-{mode.value}")
        for operation in OPERATIONS
        for mode in GenerationMode
        # There is nothing to be wrong about where nothing is asked.
        if mode is GenerationMode.POSITIVE or operation.permission is not None
    ],
)
def test_whatever_is_asked_the_answer_is_as_described(yard: Yard, name: str, mode: GenerationMode) -> None:
    """Requests that fit the description, and requests that do not."""
    operation = next(one for one in OPERATIONS if one.name == name)
    described = schema[operation.path][operation.method]
    headers = {"Authorization": f"Bearer {yard.tokens['root']}"}

    def run(case: schemathesis.Case[Any]) -> None:
        # A stream has no end to wait for; it has tests of its own.
        for stream in ("watch", "follow"):
            (case.query or {}).pop(stream, None)
        case.call_and_validate(base_url=yard.url, headers=headers, checks=list(CHECKS), timeout=30)

    bounded = settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    bounded(given(case=cases(described, mode))(run))()
