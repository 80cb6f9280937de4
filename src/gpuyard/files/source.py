"""The text of a file a person wrote, or a clear word about why it cannot be had.

Place in the flow: path ─**source**─▶ text ─tree─▶ values with their places. Invariant: nothing larger than
MAX_FILE_BYTES is held, and what is returned holds only characters YAML allows.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from gpuyard.errors import InputError, Where

MAX_FILE_BYTES: Final = 16 << 20

_NOT_ALLOWED: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def read_text(path: Path) -> str:
    """The text of a file, without a byte order mark."""
    return text_of(_read_bytes(path), str(path))


def text_of(content: bytes, name: str) -> str:
    """The text of what came as a file of that name."""
    if len(content) > MAX_FILE_BYTES:
        limit = f"{MAX_FILE_BYTES >> 20} MiB"
        raise InputError(f"larger than {limit}", where=Where(name), fix="split it, or use counts and ranges")
    text = _decode(content, name).removeprefix("\ufeff")
    _refuse_control_characters(text, name)
    return text


def _read_bytes(path: Path) -> bytes:
    where = Where(str(path))
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InputError("no such file", where=where, fix=_similar_names(path)) from None
    except IsADirectoryError:
        raise InputError("is a folder, not a file", where=where, fix="name a file in it") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"cannot be read: {why}", where=where) from None


def _similar_names(path: Path) -> str:
    """What the person may have meant; the folder is only looked at once something went wrong."""
    from difflib import get_close_matches

    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"the folder {path.parent} does not exist either"
    close = get_close_matches(path.name, names, n=1)
    return f"did you mean {path.parent / close[0]}?" if close else "check the spelling of its path"


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8")) + 1
        raise InputError(
            f"not UTF-8 text (byte 0x{content[error.start]:02x})",
            where=Where(name, line, column),
            fix="save it with the encoding UTF-8",
        ) from None


def _refuse_control_characters(text: str, name: str) -> None:
    found = _NOT_ALLOWED.search(text)
    if found is None:
        return
    before = text[: found.start()]
    where = Where(name, before.count("\n") + 1, len(before) - before.rfind("\n"))
    raise InputError(f"holds the control character U+{ord(found.group()):04X}", where=where, fix="remove it")
