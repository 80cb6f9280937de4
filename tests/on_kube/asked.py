"""What a part asks of the API server, in the words of its roles; and whether it was let."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gpuyard.errors import KubeRefusedError, KubeUnreachableError
from gpuyard.kubeapi.access import Access
from gpuyard.kubeapi.client import APPLY, JSON, KubeClient

ANY = "*"


class Permission(msgspec.Struct, frozen=True, order=True):
    """One thing somebody may do, or wants to."""

    group: str
    resource: str
    verb: str
    name: str = ANY

    def covers(self, wanted: Permission) -> bool:
        return self in (wanted, msgspec.structs.replace(wanted, name=ANY))


def granted(roles: list[dict[str, Any]], name: str) -> set[Permission]:
    """Everything the roles of a part name."""
    return {
        Permission(group, resource, verb, only)
        for role in roles
        if role["metadata"]["name"] == name
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for only in rule.get("resourceNames", [ANY])
    }


def wanted(method: str, path: str, params: Mapping[str, str] | None) -> Permission | None:
    """None for what is open to everybody, as the list of kinds."""
    parts = path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    if not rest:
        return None
    name = rest[1] if len(rest) > 1 else ANY
    resource = "/".join([rest[0], *rest[2:]])
    watches = (params or {}).get("watch") == "true"
    reads = "get" if name != ANY else "watch" if watches else "list"
    verb = {"GET": reads, "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]
    return Permission(group, resource, verb, name)


class Recording(KubeClient):
    """Remembers what was asked for and what was refused; may lose the first answer to a request."""

    def __init__(self, access: Access, is_there: Callable[[str], bool], lose: str = "") -> None:
        super().__init__(access)
        self.asked: set[Permission] = set()
        self.refused: list[str] = []
        self._is_there = is_there
        self._lose = lose

    async def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: object = None,
        kind: str = JSON,
        tries: int | None = None,
    ) -> bytes:
        # What is applied and not there is made, which is a right of its own.
        self._note("POST" if kind == APPLY and not self._is_there(path) else method, path, params, kind)
        try:
            answer = await super()._send(method, path, params, body, kind, tries)
        except KubeRefusedError as error:
            self._refuse(error)
            raise
        if self._lose and path.endswith(self._lose):
            self._lose = ""
            raise KubeUnreachableError("the answer was lost on the way")
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self._note("GET", path, params, JSON)
        try:
            async with super().stream(path, params, silence_s) as pieces:
                yield pieces
        except KubeRefusedError as error:
            self._refuse(error)
            raise

    def _note(self, method: str, path: str, params: Mapping[str, str] | None, kind: str) -> None:
        found = wanted(method, path, params)
        if found is not None and kind == APPLY and method == "POST":
            # The path is the object's own.
            found = msgspec.structs.replace(found, verb="create")
            self.asked.add(msgspec.structs.replace(found, verb="patch"))
        if found is not None:
            self.asked.add(found)

    def _refuse(self, error: KubeRefusedError) -> None:
        if error.status in (401, 403):
            self.refused.append(str(error))

    def unused(self, rights: set[Permission]) -> set[Permission]:
        """Rights it has made no use of."""
        return {right for right in rights if not any(right.covers(one) for one in self.asked)}
