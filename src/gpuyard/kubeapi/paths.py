"""Paths of the API server's objects.

Place in the flow: kind, namespace and name ─**paths**─▶ client. Invariant: a name that is no name of an object makes no
path, so nothing that comes from outside can lead elsewhere.
"""

from __future__ import annotations

import re
from typing import Final

from gpuyard.errors import InputError

_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9._:]{0,251}[A-Za-z0-9])?")


def path_of(
    kind: str, name: str = "", *, namespace: str = "", group: str = "", version: str = "v1", part: str = ""
) -> str:
    """`kind` is the plural, `part` a subresource; without a name it is the collection."""
    parts = ["apis", group, version] if group else ["api", version]
    if namespace:
        parts += ["namespaces", _checked(namespace)]
    parts.append(kind)
    if name:
        parts.append(_checked(name))
    if part:
        parts.append(part)
    return "/" + "/".join(parts)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InputError(f'"{name}" is no name of an object', fix="letters, digits, dashes and points")
    return name
