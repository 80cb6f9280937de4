"""Conformance files in, typed situations out; an unknown field is an error that says where it stands.

Everything is read before anything is judged, so that a file with a mistake is refused as a whole.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from gpuyard.errors import InputError, Where
from gpuyard.scenarios.corpus_format import CorpusFile, Defaults, Scenario, Vector

FORMAT: Final = 1
MAX_FILE_BYTES: Final = 256 << 20

_Entry = TypeVar("_Entry", Scenario, Vector)


class Corpus(msgspec.Struct, frozen=True):
    """A file, read: situations or fair-share cases."""

    defaults: Defaults = Defaults()
    scenarios: tuple[Scenario, ...] = ()
    vectors: tuple[Vector, ...] = ()


class _Named(msgspec.Struct):
    id: str = "(without an id)"


def read_corpus(path: Path) -> Corpus:
    where = Where(str(path))
    file = _decode(_content(path, where), CorpusFile, "the file", where)
    if file.format != FORMAT:
        raise InputError(f"format {file.format} is not known", where=where, fix=f"this reader knows format {FORMAT}")
    if file.scenarios is None and file.vectors is None:
        raise InputError("neither scenarios nor vectors are in it", where=where, fix="add one of the two lists")
    return Corpus(
        file.defaults,
        tuple(_entry(raw, Scenario, where) for raw in file.scenarios or ()),
        tuple(_entry(raw, Vector, where) for raw in file.vectors or ()),
    )


def _content(path: Path, where: Where) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"larger than {MAX_FILE_BYTES >> 20} MiB", where=where, fix="split it into several files")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where, fix="check the path") from None


def _entry(raw: msgspec.Raw, kind: type[_Entry], where: Where) -> _Entry:
    name = _decode(raw, _Named, kind.__name__.lower(), where).id
    return _decode(raw, kind, f"{kind.__name__.lower()} {name}", where)


_Decoded = TypeVar("_Decoded")


def _decode(content: bytes | msgspec.Raw, kind: type[_Decoded], what: str, where: Where) -> _Decoded:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{what}: {_readable(error)}", where=where, fix=_fix(error)) from None
    except msgspec.DecodeError as error:
        raise InputError(f"{what} is not JSON: {error}", where=where, fix="write it as JSON") from None


def _readable(error: msgspec.ValidationError) -> str:
    """`Object contains unknown field `x` - at `$.input`` becomes `unknown field `x` at input`."""
    text = str(error).removeprefix("Object contains ")
    return re.sub(r" - at `(?:\$\.?)?(.*)`$", r" at \1", text)


def _fix(error: msgspec.ValidationError) -> str:
    if "unknown field" in str(error):
        return "remove the field, or use a version of gpuyard that knows it"
    return "write it as the format of conformance files says"
