"""The REST API as an OpenAPI 3.1 description, made from the table of operations and the types it names.

Place in the flow: OPERATIONS ─**openapi**─▶ clients of any language, `gpuyard schema openapi`, the fuzzer of the tests.
Invariant: it holds exactly the operations of the table.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import msgspec

from gpuyard.files.format import ChangeFileSpec, ScheduleFileSpec, TeamChangesFileSpec, TeamsFileSpec, WorkSpec
from gpuyard.service.limits import MAX_KEY_LENGTH, MAX_PAGE
from gpuyard.service.problems import KINDS, PROBLEM_MEDIA
from gpuyard.wire.operations import CHANGE_FILE, JOB_FILE, OPERATIONS, SCHEDULE_FILE, TEAMS_FILE, Operation, Parameter
from gpuyard.wire.rest import Problem

REF: Final = "#/components/schemas/{name}"
_FILES: Final = (JOB_FILE, TEAMS_FILE, CHANGE_FILE, SCHEDULE_FILE)
_IF_MATCH: Final = re.compile(r"/v1/(jobs/\{id\}/(?!explanation|logs)|teams|nodes/|users/|schedules/)")
_TYPES: Final[dict[type, dict[str, Any]]] = {
    str: {"type": "string"},
    int: {"type": "integer", "format": "int64"},
    bool: {"type": "boolean"},
}


def file_spec(operation: Operation) -> Any:  # noqa: ANN401 - a type
    """The format of a body that is read like a file."""
    if operation.body == JOB_FILE:
        return WorkSpec
    if operation.body == CHANGE_FILE:
        return ChangeFileSpec
    if operation.body == SCHEDULE_FILE:
        return ScheduleFileSpec
    return TeamsFileSpec if operation.method == "PUT" else TeamChangesFileSpec


def body_type(operation: Operation) -> Any:  # noqa: ANN401 - a type
    return file_spec(operation) if operation.body in _FILES else operation.body


def openapi(version: str) -> dict[str, Any]:
    """The whole description."""
    return {**_described(), "info": {**_described()["info"], "version": version}}


@lru_cache(maxsize=1)
def _described() -> dict[str, Any]:
    types = _types()
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    by_type = dict(zip(map(str, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, by_type)
    described = {
        "openapi": "3.1.0",
        "info": {"title": "gpuyard", "summary": "Shares a GPU cluster between teams.", "version": ""},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "gy_<id>_<secret>"}},
        },
        "security": [{"token": []}],
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(described))
    return plain


def _types() -> list[Any]:
    found: dict[str, Any] = {str(Problem): Problem}
    for operation in OPERATIONS:
        for one in (operation.answer, body_type(operation)):
            if one is not None:
                found[str(one)] = one
    return list(found.values())


def _operation(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [*_path_parameters(operation), *map(_parameter, operation.query), *_headers(operation)],
        "responses": _responses(operation, schemas),
    }
    if operation.permission is None:
        described["security"] = []
    else:
        described["x-permission"] = str(operation.permission)
    if operation.body is not None:
        schema = schemas[str(body_type(operation))]
        kinds = ["application/json", *(["application/yaml"] if operation.body in _FILES else [])]
        described["requestBody"] = {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}
    return described


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    names = re.findall(r"\{(\w+)\}", operation.path)
    schema = {"type": "string", "minLength": 1}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = dict(_TYPES[parameter.type])
    if parameter.name == "limit" and parameter.default == 100:
        schema |= {"minimum": 1, "maximum": MAX_PAGE}
    if parameter.default not in (None, ""):
        schema["default"] = parameter.default
    return {"name": parameter.name, "in": "query", "description": parameter.description, "schema": schema}


def _headers(operation: Operation) -> list[dict[str, Any]]:
    headers = []
    if operation.changes and operation.method == "POST" and operation.permission is not None:
        schema = {"type": "string", "minLength": 1, "maxLength": MAX_KEY_LENGTH, "pattern": "^[!-~]+$"}
        about = "Sent again with the same key, the request is done once."
        headers.append({"name": "Idempotency-Key", "in": "header", "description": about, "schema": schema})
    if operation.changes and _IF_MATCH.match(operation.path):
        about = "Only if it is still at this revision: the ETag of an answer."
        schema = {"type": "string", "pattern": '^"[0-9]{1,18}"$'}
        headers.append({"name": "If-Match", "in": "header", "description": about, "schema": schema})
    if any(parameter.name == "watch" for parameter in operation.query):
        about = "Go on after this revision."
        schema = {"type": "string", "pattern": "^[0-9]{1,18}$"}
        headers.append({"name": "Last-Event-ID", "in": "header", "description": about, "schema": schema})
    return headers


def _responses(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {str(operation.status): _success(operation, schemas)}
    if operation.status == 201 and any(parameter.name == "dry_run" for parameter in operation.query):
        found["200"] = _success(operation, schemas)
    if operation.name == "readyz":
        found["503"] = {"description": "Not yet, or no longer."}
    # Before anybody is known, only the request itself can be wrong.
    open_to_all = (400, 405, 413, 421, 429)
    for status in sorted({kind.status for kind in KINDS.values()}):
        if operation.permission is None and status not in open_to_all:
            continue
        reasons = sorted(reason for reason, kind in KINDS.items() if kind.status == status)
        content = {PROBLEM_MEDIA: {"schema": schemas[str(Problem)]}}
        found.setdefault(str(status), {"description": f"Refused: {', '.join(reasons)}", "content": content})
    return found


def _success(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    if operation.answer is None:
        return {"description": operation.summary}
    content: dict[str, Any] = {operation.media: {"schema": schemas[str(operation.answer)]}}
    if any(parameter.name == "watch" for parameter in operation.query):
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": operation.summary, "content": content}
