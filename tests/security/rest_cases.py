"""Hostile requests, made of the tables of operations: right ones of each, with some of their parts exchanged.

Everything comes from one random.Random: the same seed and number give the same request, byte for byte, for the same
names. Bodies are written here and not by a JSON encoder, which could write neither NaN nor a key twice.
"""

from __future__ import annotations

import base64
import random
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints
from urllib.parse import quote

import msgspec

from gpuyard.wire.data_job_operations import DATA_JOB_OPERATIONS
from gpuyard.wire.operations import (
    ARCHIVE,
    BYTE_BODIES,
    CHANGE_FILE,
    FORM,
    JOB_FILE,
    OPERATIONS,
    SCHEDULE_FILE,
    TEAMS_FILE,
    Operation,
    Parameter,
)
from tests.security.hostile_values import NUMBERS, PATHS, TEXTS, damaged, hostile, mutated, written
from tests.vdk.control.folders import config, packed

ALL: Final = (*OPERATIONS, *DATA_JOB_OPERATIONS)
DRAWN: Final = [operation for operation in ALL for _ in range(3 if operation.body is not None else 1)]
"""What has a body has more that can be wrong with it."""
USERS: Final = (*("root",) * 12, "olga", "lea", "lea", "max", "max", "vic", "sam", "new", "")


LARGEST: Final = 200_000
"""Bytes of a body: large ones are tried by tests of their own, which say how long they may take."""


class Names(NamedTuple):
    """What there is to name, besides the things a request makes up."""

    jobs: tuple[str, ...]
    tokens: tuple[str, ...]
    plans: tuple[str, ...]


class Case(NamedTuple):
    operation: str
    user: str
    head: tuple[str, str, tuple[tuple[str, str], ...]]
    """Method, target and header lines."""
    body: bytes

    def __str__(self) -> str:
        method, target, lines = self.head
        return f"{self.operation} as {self.user or 'nobody'}: {method} {target[:300]} {lines} {self.body[:600]!r}"


# -------------------------------------------------------------------------------------------------------- right values

JOBS: Final[tuple[dict[str, Any], ...]] = (
    {"command": ["true"], "team": "vision", "gpus": 0},
    {
        "command": "echo x",
        "team": "vision",
        "gpus": 0.5,
        "name": "n",
        "env": {"A": "1"},
        "labels": {"a": "b"},
        "hold": True,
    },
    {"command": ["x"], "team": "vision", "gpus": 1, "array": "0-3%2", "priority": 50, "retries": 2, "grace": "10s"},
    {
        "command": ["x"],
        "team": "speech",
        "gpus": 0,
        "tasks": 2,
        "gang": 1,
        "cpu": "500m",
        "ram": "1Gi",
        "hold": True,
    },
    {
        "command": ["x"],
        "team": "vision",
        "gpu_memory": "4Gi",
        "run_limit": "1h",
        "estimate": "10m",
        "checkpointable": True,
    },
    {
        "command": ["x"],
        "team": "vision",
        "gpus": 0,
        "after": ["1"],
        "afterok": ["2"],
        "preemptible": True,
        "movable": False,
    },
    {
        "command": ["x"],
        "team": "vision",
        "nodes": 1,
        "gpus": 0,
        "near": {"labels": {"a": "b"}, "level": "zone"},
        "selector": {"zone": "a"},
        "hold": True,
    },
    {
        "command": ["x"],
        "team": "vision",
        "gpus": 0,
        "apart": [{"labels": {"a": {"not": "q"}}}],
        "prefer": {"selector": {"zone": "a"}},
    },
    {
        "team": "vision",
        "command": ["x"],
        "groups": [{"name": "a", "tasks": 2, "gpus": 0}, {"name": "b", "tasks": 1, "gpus": 0}],
    },
    {"command": ["x"], "team": "speech", "gpus": 0, "cpu": 0, "ram": 0, "array": "0-119"},
)
TEAM_TREES: Final[tuple[dict[str, Any], ...]] = (
    {"queues": {"vision": {"quota": 4, "limit": 8, "idle_limit": "30m"}, "speech": {"quota": 2}, "product": 2}},
    {"queues": {"vision": 3, "speech": {"quota": 2, "weight": 2, "priority": 150, "parent": "research"}}},
    {"queues": {"fresh": {"new": True, "parent": "research", "quota": 0, "members": {"max": "member"}}}},
    {"queues": {"vision": {"quota": "unlimited", "cpu": {"quota": 4}, "memory": "1Ti", "models": {"A100": 2}}}},
)
CHANGES: Final[tuple[dict[str, Any], ...]] = (
    {"queues": {"vision": {"quota": 3}}},
    {"nodes": {"drain": ["m1"]}},
    {"jobs": [{"job": "late", "team": "vision", "gpus": 1}], "queues": {"speech": {"limit": 16}}},
    {"nodes": {"add": [{"name": "n9", "gpus": 8}]}},
)
SCHEDULES: Final[tuple[dict[str, Any], ...]] = (
    {"cron": "0 0 1 1 *", "job": {"command": ["x"], "gpus": 0}},
    {
        "cron": "@daily",
        "time_zone": "Europe/Berlin",
        "overlap": "queue",
        "missed": "skip",
        "missed_limit": "1d",
        "job": JOBS[1],
    },
)
FILES: Final[dict[str, tuple[dict[str, Any], ...]]] = {
    JOB_FILE: JOBS,
    TEAMS_FILE: TEAM_TREES,
    CHANGE_FILE: CHANGES,
    SCHEDULE_FILE: SCHEDULES,
}
ARCHIVES: Final = (
    packed({"config.ini": config("vision"), "10_a.py": "x"}),
    packed({"config.ini": config("vision", gpus="0.5", priority="true"), "requirements.txt": ""}),
)


def right(kind: Any, chance: random.Random, names: Names, depth: int = 0) -> Any:
    """A value of a type of the tables."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return right(chance.choice(arguments), chance, names, depth)
    if origin is Literal:
        return chance.choice(arguments)
    if origin in (tuple, list):
        count = chance.randrange(3) if depth < 3 else 0
        return [right(arguments[0], chance, names, depth + 1) for _ in range(count)]
    if origin in (dict, Mapping):
        return {chance.choice(("a", "zone", "k")): right(arguments[1], chance, names, depth + 1)}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        fields = [field for field in msgspec.structs.fields(kind) if field.required or chance.random() < 0.6]
        return {field.encode_name: right(hints[field.name], chance, names, depth + 1) for field in fields}
    if isinstance(kind, type) and hasattr(kind, "__members__"):
        return str(chance.choice(list(kind.__members__.values())))
    return _plain(kind, chance, names)


def _plain(kind: Any, chance: random.Random, names: Names) -> Any:
    if kind is bool:
        return chance.random() < 0.5
    if kind is int:
        return chance.choice((0, 1, 2, 8, 3_600_000))
    if kind is float:
        return chance.choice((0.5, 1.0))
    if kind is type(None):
        return None
    if kind is dict or kind is Any:
        return {"a": 1}
    return a_name(chance, names)


def a_name(chance: random.Random, names: Names) -> str:
    known = (
        "vision",
        "speech",
        "research",
        "product",
        "m1",
        "max",
        "ida",
        "nightly",
        "shared-job",
        "production",
        "0.5",
        "gpu",
        "large",
    )
    return chance.choice((*known, *names.jobs[-4:], *names.tokens[-2:], *names.plans[-2:]))


# --------------------------------------------------------------------------------------------------------------- a case


def make(seed: int, number: int, names: Callable[[], Names]) -> Case:
    chance = random.Random(f"{seed}-{number}")
    operation = chance.choice(DRAWN)
    known = names()
    method = (
        operation.method
        if chance.random() < 0.97
        else chance.choice(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
    )
    target = _path(operation, chance, known) + _query(operation, chance, known)
    media, body = _body(operation, chance, known)
    lines = _headers(chance, media)
    return Case(operation.name, chance.choice(USERS), (method, target, lines), body)


def _path(operation: Operation, chance: random.Random, names: Names) -> str:
    parts = []
    for part in operation.path.split("/"):
        if not part.startswith("{"):
            parts.append(part if chance.random() < 0.995 else chance.choice(PATHS))
        elif chance.random() < 0.9:
            parts.append(quote(_target(operation, part, chance, names), safe=""))
        else:
            parts.append(chance.choice((*PATHS, quote(chance.choice(TEXTS), safe=""))))
    return "/".join(parts)


def _target(operation: Operation, part: str, chance: random.Random, names: Names) -> str:
    words = operation.path.removeprefix("/").split("/")
    before = words[words.index(part) - 1]
    likely = {
        "{team}": ("vision", "vision", "vision", "speech", "nobody"),
        "{name}": _NAMED.get(words[1] if words[0] == "v1" else words[0], ("vision", "m1")),
        "{user}": ("ida", "max", "nobody"),
        "{number}": ("1", "1", "2", "0", "-1", "99999999999"),
        "{deployment}": ("production", "x"),
        "{id}": {"tokens": names.tokens, "plans": names.plans}.get(before, names.jobs[-6:]),
    }
    return chance.choice(likely.get(part, ("1",)))


_QUERY: Final = (
    '{ jobs(pageNumber: 1, pageSize: 10, filter: [{property: "config.team", pattern: "vision"}]) '
    "{ content { jobName } } }"
)
_NAMED: Final = {
    "teams": ("vision", "speech", "product", "fresh"),
    "nodes": ("m1", "m1", "m2"),
    "users": ("ida", "nobody", "fresh"),
    "schedules": ("nightly", "nightly", "fresh"),
    "data-jobs": ("shared-job", "shared-job", "fresh-job"),
    "pool": ("large", "fresh"),
}
"""What a path names, by what its operation is about."""


def _query(operation: Operation, chance: random.Random, names: Names) -> str:
    given = []
    for parameter in operation.query:
        if chance.random() < 0.25:
            given.append((parameter.name, _parameter(parameter, chance, names)))
    if given and chance.random() < 0.05:
        given.append(chance.choice(given))
    if chance.random() < 0.04:
        given.append((chance.choice(TEXTS), chance.choice(TEXTS)))
    text = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in given)
    if chance.random() < 0.02:
        text += chance.choice(("&", "&&=", "%", "%ff", "&a=1" * 60, "=", "?", "&x=%00", "&" + "y" * 9000))
    return f"?{text}" if text else ""


def _parameter(parameter: Parameter, chance: random.Random, names: Names) -> str:
    if chance.random() < 0.3:
        return str(chance.choice((*TEXTS, *(number for number in NUMBERS if abs(number) < 10**31))))
    match parameter.name:
        case "cursor":
            made_up = written([hostile(chance) for _ in range(chance.randrange(4))]).encode("utf-8", "replace")
            return base64.urlsafe_b64encode(made_up).decode().rstrip("=")
        case "object":
            kind = chance.choice(("job", "node", "team", "user", "token", "schedule/vision", "data-job/vision"))
            return f"{kind}/{a_name(chance, names)}"
        case "since" | "until":
            return chance.choice(("1h", "30d", "2026-01-01", "2026-01-01T00:00:00Z", "1m"))
        case "query":
            return _QUERY
    if parameter.type is bool:
        return chance.choice(("true", "false", "1"))
    if parameter.type is int:
        return str(chance.choice((0, 1, 10, -1, 1000)))
    return a_name(chance, names)


def _body(operation: Operation, chance: random.Random, names: Names) -> tuple[str, bytes]:
    """Its media type and its bytes."""
    kind = operation.body
    if kind is None:
        return ("application/json", b"{}") if chance.random() < 0.05 else ("", b"")
    if kind == ARCHIVE:
        data = chance.choice(ARCHIVES)
        return BYTE_BODIES[ARCHIVE], data if chance.random() < 0.3 else damaged(data, chance)
    if kind == FORM:
        field = chance.choice(("refresh_token", "api_token", "x"))
        return BYTE_BODIES[FORM], f"{field}={quote(chance.choice(TEXTS))}".encode()
    value = chance.choice(FILES[kind]) if isinstance(kind, str) else right(kind, chance, names)
    for _ in range(chance.choice((0, 0, 1, 1, 1, 2, 4))):
        value = mutated(value, chance)
    data = written(value).encode("utf-8", "surrogatepass")[:LARGEST]
    if chance.random() < 0.08:
        data = damaged(data, chance)
    yaml = isinstance(kind, str) and chance.random() < 0.3
    return "application/yaml" if yaml else "application/json", data


def _headers(chance: random.Random, media: str) -> tuple[tuple[str, str], ...]:
    lines = [("Content-Type", media)] if media else []
    if chance.random() < 0.03:
        kinds = (
            "text/plain",
            "application/json; charset=utf-16",
            "application/json;;;",
            "x",
            "a/b; charset=\xff",
            "application/yaml",
        )
        lines = [("Content-Type", chance.choice(kinds))]
    for name, values in _ODD_HEADERS.items():
        if chance.random() < 0.04:
            lines.append((name, chance.choice(values)))
    return tuple(lines)


_ODD_HEADERS: Final = {
    "If-Match": ("*", '"1"', '"0"', "1", 'W/"3"', '"99999999999999999"', '"' + "9" * 30 + '"', "x", '"-1"', ""),
    "Idempotency-Key": ("k", "k", "key-2", "x" * 255, "x" * 256, "a b", "\xe9", "", "~"),
    "Last-Event-ID": ("0", "1", "-1", "x", "999999999999999999", "9" * 19, ""),
    "Content-Encoding": ("gzip", "identity", "br", ""),
    "Accept": ("text/html", "*/*", "\xff"),
    "X-Anything": ("y" * 3000, "\xe9\xff", ""),
    "Expect": ("100-continue", "x"),
    "Range": ("bytes=0-0", "bytes=-1"),
}
