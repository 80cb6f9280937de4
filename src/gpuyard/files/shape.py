"""Checks a tree against a declared format and turns it into typed specs.

Place in the flow: tree ─Spot─▶ **shape** ─specs─▶ nodes, queues, jobs. The declarations in `format.py` are walked side
by side with the tree, so that every error names the exact value. Invariant: what passes here converts without error.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from gpuyard.errors import InputError
from gpuyard.files.format import PATTERN_WORDS, JobSpec, RunningJobSpec
from gpuyard.files.place import Place
from gpuyard.files.tree import Kind

Spec = TypeVar("Spec")

_RUNNING_ONLY: Final = frozenset(RunningJobSpec.__struct_fields__) - frozenset(JobSpec.__struct_fields__)

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


def shaped(place: Place, spec: type[Spec]) -> Spec:
    """The value at a place as the declared spec."""
    declared: Any = spec
    plain = _plain(place, _type_info(declared))
    try:
        return msgspec.convert(plain, spec)
    except msgspec.ValidationError as error:
        raise place.error(f"{place.name or 'the file'} does not fit the format: {error}") from None


@lru_cache(maxsize=32)
def _type_info(spec: Hashable) -> inspect.Type:
    return inspect.type_info(spec)


def _plain(place: Place, expected: inspect.Type) -> object:
    """The value without its places, once it is known to fit."""
    pattern, expected = _unwrapped(expected)
    if isinstance(expected, inspect.UnionType):
        return _plain_member(place, expected)
    if place.spot.kind not in _kinds(expected):
        raise _wrong_kind(place, expected, pattern)
    match expected:
        case inspect.StructType():
            return _plain_struct(place, expected)
        case inspect.DictType():
            return _plain_map(place, expected)
        case inspect.ListType() | inspect.VarTupleType():
            return _plain_list(place, expected)
        case inspect.IntType():
            _check_range(place, expected)
        case inspect.EnumType():
            _check_word(place, [str(member.value) for member in expected.cls])
        case inspect.StrType():
            _check_pattern(place, pattern)
    return place.spot.value


def _plain_member(place: Place, union: inspect.UnionType) -> object:
    for member in union.types:
        if place.spot.kind in _kinds(_unwrapped(member)[1]):
            return _plain(place, member)
    raise _wrong_kind(place, union, "")


def _plain_struct(place: Place, struct: inspect.StructType) -> dict[str, object]:
    fields = {field.encode_name: field for field in struct.fields}
    plain: dict[str, object] = {}
    for name in place.spot.fields:
        value = place.at(name)
        if name not in fields:
            raise _unknown_field(value, name, place, list(fields))
        if value.spot.kind is Kind.NULL and not fields[name].required:
            continue
        plain[name] = _plain(value, fields[name].type)
    for name, field in fields.items():
        if field.required and name not in plain:
            raise InputError(f'{_subject(place)} lacks "{name}"', where=place.where, fix=_described(field.type))
    return plain


def _plain_map(place: Place, expected: inspect.DictType) -> dict[str, object]:
    pattern, _ = _unwrapped(expected.key_type)
    plain: dict[str, object] = {}
    for key in place.spot.fields:
        value = place.at(key)
        if pattern and not re.fullmatch(pattern, key):
            raise InputError(f'"{key}" is not {PATTERN_WORDS[pattern]}', where=value.where_key, fix="change it")
        plain[key] = _plain(value, expected.value_type)
    return plain


def _plain_list(place: Place, expected: inspect.ListType | inspect.VarTupleType) -> list[object]:
    items = [_plain(place.at(index), expected.item_type) for index in range(len(place.spot.items))]
    if expected.min_length and len(items) < expected.min_length:
        raise place.error(f"{_subject(place)} is empty", fix=f"give at least {expected.min_length}")
    return items


def _check_range(place: Place, expected: inspect.IntType) -> None:
    value = place.spot.value
    if isinstance(value, int) and expected.ge is not None and value < expected.ge:
        raise place.error(f"{_subject(place)} must be at least {expected.ge}, not {value}")


def _check_word(place: Place, words: list[str]) -> None:
    word = str(place.spot.value)
    if word not in words:
        raise place.error(
            f'{_subject(place)} cannot be "{word}"{_suggestion(word, words)}', fix=f"one of: {', '.join(words)}"
        )


def _check_pattern(place: Place, pattern: str) -> None:
    text = str(place.spot.value)
    if pattern and not (text and re.fullmatch(pattern, text)):
        raise place.error(f"{_subject(place)} must be {PATTERN_WORDS[pattern]}, not {place.spot.shown()}")


def _wrong_kind(place: Place, expected: inspect.Type, pattern: str) -> InputError:
    spot = place.spot
    words = PATTERN_WORDS.get(pattern) or _words(expected)
    fix = ""
    if spot.kind in (Kind.NUMBER, Kind.DECIMAL, Kind.BOOL) and "text" in _all_words(expected):
        fix = f'put it in quotes if it is a name: "{spot.shown()}"'
    return place.error(f"{_subject(place)} must be {words}, not {spot.shown()}", fix)


def _unknown_field(value: Place, name: str, owner: Place, known: list[str]) -> InputError:
    if name in _RUNNING_ONLY and "job" in known:
        fix = "it is a field of running jobs; this one is pending"
        return InputError(f'unknown field "{name}" in {_subject(owner)}', where=value.where_key, fix=fix)
    suggestion = _suggestion(name, known)
    fix = f"fields here: {', '.join(known)}"
    return InputError(f'unknown field "{name}" in {_subject(owner)}{suggestion}', where=value.where_key, fix=fix)


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word.replace("-", "_"), list(known), n=1) or get_close_matches(word, list(known), n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


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


def _described(expected: inspect.Type) -> str:
    extra = expected.extra_json_schema if isinstance(expected, inspect.Metadata) else None
    return str(extra.get("description", "")) if extra else ""


def _words(expected: inspect.Type) -> str:
    """`a number or text`: what a declared type takes, in words."""
    words = list(dict.fromkeys(_all_words(expected)))
    if Kind.DECIMAL in words and Kind.NUMBER in words:
        words.remove(Kind.NUMBER)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _all_words(expected: inspect.Type) -> list[str]:
    _, expected = _unwrapped(expected)
    match expected:
        case inspect.UnionType():
            return [word for member in expected.types for word in _all_words(member)]
        case inspect.EnumType():
            return [f"one of {', '.join(str(member.value) for member in expected.cls)}"]
        case inspect.FloatType():
            return [Kind.DECIMAL]
        case inspect.NoneType():
            return []
        case _:
            return [min(_kinds(expected))]
