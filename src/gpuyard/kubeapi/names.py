"""Names for objects of ours that are about another object.

Place in the flow: fake GPUs, node part, scheduler ─**names**─▶ paths. Invariants: two objects never share a name; no
name is longer than the API server takes.
"""

from __future__ import annotations

import hashlib
from typing import Final

MAX_NAME: Final = 253
DIGEST_BYTES: Final = 8


def name_about(what: str, name: str) -> str:
    """`what-name`, or as much of it as there is room for, and then a digest that only this name has."""
    whole = f"{what}-{name}"
    if len(whole) <= MAX_NAME:
        return whole
    digest = hashlib.blake2b(name.encode(), digest_size=DIGEST_BYTES).hexdigest()
    return f"{whole[: MAX_NAME - len(digest) - 1].rstrip('-.')}-{digest}"
