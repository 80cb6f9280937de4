"""Checks a tree against a declared format and turns it into typed specs.

Place in the flow: tree ─Spot─▶ **shape** ─specs─▶ nodes, queues, jobs. The declarations in `format.py` are walked side
by side with the tree, so that every error names the exact value. Invariant: what passes here converts without error.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect
from msgspec.structs import replace

from gpuyard.errors import InputError
from gpuyard.files.format import NAME_PATTERN, PATTERN_WORDS, ClusterFileSpec, JobSpec, RunningJobSpec
from gpuyard.files.place import Place
from gpuyard.files.suggest import did_you_mean
from gpuyard.files.tree import YES_NO, Kind

Spec = TypeVar("Spec")

_RUNNING_ONLY: Final = frozenset(RunningJobSpec.__struct_fields__) - frozenset(JobSpec.__struct_fields__)

_OTHER_WORDS: Final = {
    "name": "job",
    "replicas": "tasks",
    "min_available": "gang",
    "memory": "ram",
    "fraction": "gpus",
    "project": "team",
    "node_selector": "selector",
    "deserved": "quota",
    "usage": "used",
    "pending": "jobs",
    "job": "name",
    "cmd": "command",
    "script": "command",
    "environment": "env",
    "cwd": "workdir",
    "time_limit": "run_limit",
    "timeout": "run_limit",
    "min_tasks": "gang",
    "signal": "notice_signal",
    "dependencies": "after",
    "held": "hold",
    "timezone": "time_zone",
    "tz": "time_zone",
    "schedule": "cron",
}
"""What other schedulers call a field of ours."""

_FIELDS_OF_KIND: Final = {
    "cluster file": frozenset(ClusterFileSpec.__struct_fields__),
    "job file": frozenset({"job", "jobs"}),
    "job to submit": frozenset({"command"}),
    "change file": frozenset({"cancel"}),
    "scenario": frozenset({"rule", "expect"}),
}
"""Fields that tell at the top of a file which kind it is."""

_KINDS: Final[dict[type[inspect.Type], frozenset[Kind]]] = {
    inspect.StrType: frozenset({Kind.TEXT}),
    inspect.EnumType: frozenset({Kind.TEXT}),
    inspect.IntType: frozenset({Kind.NUMBER}),
    inspect.FloatType: frozenset({Kind.NUMBER, Kind.DECIMAL}),
    inspect.BoolType: frozenset({Kind.BOOL}),
    inspect.NoneType: frozenset({Kind.NULL}),
    inspect.ListType: frozenset({Kind.LIST}),
    inspect.VarTupleType: frozenset({Kind.LIST}),
    inspect.DictType: frozenset({Kind.MAP}),
    inspect.StructType: frozenset({Kind.MAP}),
}
"""Which kinds of value a declared type takes."""


def shaped(place: Place, spec: type[Spec], kind: str) -> Spec:
    """The top of a file of some kind as the declared spec."""
    declared: Any = spec
    plain = _plain(place, _type_info(declared), f"all fields: gpuyard schema {kind}")
    try:
        return msgspec.convert(plain, spec)
    except msgspec.ValidationError as error:
        raise place.error(f"{_subject(place)} does not fit the format: {error}") from None


@lru_cache(maxsize=32)
def _type_info(spec: Hashable) -> inspect.Type:
    return inspect.type_info(spec)


def _plain(place: Place, expected: inspect.Type, about: str) -> object:
    """The value without its places, once it is known to fit. `about` says what the nearest field is for."""
    about = _described(expected) or about
    pattern, expected = _unwrapped(expected)
    if isinstance(expected, inspect.UnionType):
        return _plain_member(place, expected, about)
    if place.spot.kind not in _kinds(expected):
        raise _wrong_kind(place, _words_of(pattern, expected), about or _hint(expected))
    match expected:
        case inspect.StructType():
            return _plain_struct(place, expected)
        case inspect.DictType():
            return _plain_map(place, expected, about)
        case inspect.ListType() | inspect.VarTupleType():
            return _plain_list(place, expected, about)
        case inspect.IntType():
            _check_range(place, expected, about)
        case inspect.EnumType():
            _check_word(place, [str(member.value) for member in expected.cls])
        case inspect.StrType():
            _check_pattern(place, pattern, about)
    return place.spot.value


def _plain_member(place: Place, union: inspect.UnionType, about: str) -> object:
    for member in union.types:
        if place.spot.kind in _kinds(_unwrapped(member)[1]):
            return _plain(place, member, about)
    raise _wrong_kind(place, _words_of("", union), about)


def _plain_struct(place: Place, struct: inspect.StructType) -> dict[str, object]:
    fields = {field.encode_name: field for field in struct.fields}
    plain: dict[str, object] = {}
    for name in place.spot.fields:
        value = place.at(name)
        if name not in fields:
            raise _unknown_field(value, name, place, list(fields))
        if value.spot.kind is Kind.NULL and not fields[name].required and not _takes_null(fields[name].type):
            continue
        plain[name] = _plain(value, fields[name].type, "")
    for name, field in fields.items():
        if field.required and name not in plain:
            raise _lacking(place, name, _described(field.type))
    return plain


def _lacking(place: Place, name: str, meaning: str) -> InputError:
    """The place is that of the whole, the field that of what is not there."""
    where = replace(place.where, field=f"{place.name}.{name}" if place.name else name)
    fix = f"{name}: {meaning}" if meaning else f"add {name}"
    return InputError(f'{_subject(place)} lacks "{name}"', where=where, fix=fix)


def _plain_map(place: Place, expected: inspect.DictType, about: str) -> dict[str, object]:
    pattern, _ = _unwrapped(expected.key_type)
    plain: dict[str, object] = {}
    for key in place.spot.fields:
        value = place.at(key)
        if pattern and not re.fullmatch(pattern, key):
            raise InputError(f'"{key}" is not {PATTERN_WORDS[pattern]}', where=value.where_key, fix=about)
        plain[key] = _plain(value, expected.value_type, about)
    return plain


def _plain_list(place: Place, expected: inspect.ListType | inspect.VarTupleType, about: str) -> list[object]:
    items = [_plain(place.at(index), expected.item_type, about) for index in range(len(place.spot.items))]
    if expected.min_length and len(items) < expected.min_length:
        raise place.error(f"{_subject(place)} is empty", about)
    return items


def _check_range(place: Place, expected: inspect.IntType, about: str) -> None:
    value = place.spot.value
    if isinstance(value, int) and expected.ge is not None and value < expected.ge:
        raise place.error(f"{_subject(place)} must be at least {expected.ge}, not {value}", about)
    if isinstance(value, int) and expected.le is not None and value > expected.le:
        raise place.error(f"{_subject(place)} must be at most {expected.le}, not {value}", about)


def _check_word(place: Place, words: list[str]) -> None:
    word = str(place.spot.value)
    if word not in words:
        what = f'{_subject(place)} cannot be "{word}"{did_you_mean(word, words)}'
        raise place.error(what, f"one of: {', '.join(map(_as_written, words))}")


def _check_pattern(place: Place, pattern: str, about: str) -> None:
    text = str(place.spot.value)
    if pattern and not (text and re.fullmatch(pattern, text)):
        raise place.error(f"{_subject(place)} must be {PATTERN_WORDS[pattern]}, not {place.spot.shown()}", about)


def _wrong_kind(place: Place, words: list[str], about: str) -> InputError:
    spot = place.spot
    is_name = any(word in words for word in (Kind.TEXT, PATTERN_WORDS[NAME_PATTERN]))
    if is_name and spot.kind in (Kind.NUMBER, Kind.DECIMAL, Kind.BOOL):
        about = f'put it in quotes if it is a name: "{spot.shown()}"'
    return place.error(f"{_subject(place)} must be {_either(words)}, not {spot.shown()}", about)


def _hint(expected: inspect.Type) -> str:
    """What to write, for a field that has no description."""
    if isinstance(expected, inspect.StructType):
        return f"its fields: {', '.join(field.encode_name for field in expected.fields)}"
    return f"write {_either(_words_of('', expected))}"


def _unknown_field(value: Place, name: str, owner: Place, known: list[str]) -> InputError:
    fix = f"fields here: {', '.join(known)}"
    if name in _RUNNING_ONLY and "job" in known:
        fix = "it is a field of running jobs; this one is pending"
    meant = _OTHER_WORDS.get(name, "")
    suggestion = f'; did you mean "{meant}"?' if meant in known else did_you_mean(name, known)
    if not owner.name and meant not in known:
        suggestion = _other_kind(name, known) or suggestion
    return InputError(f'unknown field "{name}" in {_subject(owner)}{suggestion}', where=value.where_key, fix=fix)


def _other_kind(name: str, known: list[str]) -> str:
    """What a field at the top of a file says about it, where it is of another kind than expected."""
    others = {kind: fields for kind, fields in _FIELDS_OF_KIND.items() if not fields.intersection(known)}
    kind = next((kind for kind, fields in others.items() if name in fields), "")
    return f"; it is a field of a {kind}" if kind else ""


def _subject(place: Place) -> str:
    return place.name or "the file"


def _unwrapped(expected: inspect.Type) -> tuple[str, inspect.Type]:
    """The published pattern, if any, and the type without its descriptions."""
    pattern = ""
    while isinstance(expected, inspect.Metadata):
        pattern = pattern or str((expected.extra_json_schema or {}).get("pattern", ""))
        expected = expected.type
    return pattern, expected


def _kinds(expected: inspect.Type) -> frozenset[Kind]:
    return _KINDS.get(type(expected), frozenset())


def _takes_null(expected: inspect.Type) -> bool:
    """Whether nothing is a value here, such as no bound, and not only another way to leave the field out."""
    _, plain = _unwrapped(expected)
    return isinstance(plain, inspect.UnionType) and plain.includes_none


def _described(expected: inspect.Type) -> str:
    extra = expected.extra_json_schema if isinstance(expected, inspect.Metadata) else None
    return str(extra.get("description", "")) if extra else ""


def _as_written(word: str) -> str:
    """A word as a file holds it: YAML takes a bare `off` for false."""
    return f'"{word}"' if word in YES_NO else word


def _words_of(pattern: str, expected: inspect.Type) -> list[str]:
    """What a declared type takes, in words."""
    match expected:
        case inspect.UnionType():
            words = [word for member in expected.types for word in _words_of(*_unwrapped(member))]
        case inspect.EnumType():
            words = [f"one of {', '.join(_as_written(str(member.value)) for member in expected.cls)}"]
        case inspect.FloatType():
            words = [Kind.DECIMAL]
        case inspect.NoneType():
            words = []
        case _:
            words = [PATTERN_WORDS.get(pattern) or min(_kinds(expected))]
    distinct = list(dict.fromkeys(words))
    return [word for word in distinct if word is not Kind.NUMBER or Kind.DECIMAL not in distinct]


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
