"""Objects with fields of a type nobody expects, read without those fields.

Place in the flow: follow ─JSON that cannot be decoded─▶ **salvage** ─▶ follow. A kind somebody else has defined may
allow what ours does not, and one such object must not keep us from all the others. Invariant: what is wrong reads as
if it were not there; what then still has no name is no object.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

MOST_WRONG: Final = 32
"""Fields of one object that are left out; whatever has more wrong is no such object."""

NEEDED: Final = ("metadata", "metadata.name", "metadata.namespace", "metadata.uid")
"""Without one of these it is not known which object it is."""

_WHERE: Final = re.compile(r"at `\$\.([^`\[]+)")


def salvaged(raw: bytes | msgspec.Raw, kind: type[Any]) -> tuple[Any, tuple[str, ...]] | None:
    """The object, and the fields it was read without; None where too little is left of it."""
    content = msgspec.json.decode(raw)
    without: list[str] = []
    for _ in range(MOST_WRONG):
        try:
            return msgspec.convert(content, kind), tuple(without)
        except msgspec.ValidationError as error:
            found = _WHERE.search(str(error))
            if found is None or found[1] in NEEDED or not _drop(content, found[1].split(".")):
                return None
            without.append(found[1])
    return None


def _drop(content: Any, path: list[str]) -> bool:  # noqa: ANN401
    """Take a field away; False where there is none, because it is one that is missing."""
    *above, last = path
    for key in above:
        content = content.get(key) if isinstance(content, dict) else None
    return isinstance(content, dict) and content.pop(last, None) is not None
