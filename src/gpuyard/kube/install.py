"""What the scheduler needs in a cluster before it starts: the kinds of KAI, its priority classes, its default queues.

Place in the flow: worlds/kubernetes/manifests ─**install**─▶ API server. Invariant: only what is missing is made; what
is there already, KAI's own or anybody's, is used as it is and never changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from gpuyard.errors import KubeError, KubeRefusedError
from gpuyard.kubeapi.access import find_access
from gpuyard.kubeapi.client import CONFLICT, NOT_FOUND, KubeClient
from gpuyard.kubeapi.paths import path_of
from gpuyard.platform.clock import monotonic_ms

ESTABLISHED_WITHIN_MS: Final = 60_000
POLL_S: Final = 0.1

DEFINITION: Final = "CustomResourceDefinition"
PRIORITY_CLASS: Final = "PriorityClass"
_COLLECTIONS: Final = {
    DEFINITION: path_of("customresourcedefinitions", group="apiextensions.k8s.io"),
    PRIORITY_CLASS: path_of("priorityclasses", group="scheduling.k8s.io"),
    "Queue": path_of("queues", group="scheduling.run.ai", version="v2"),
    "Namespace": path_of("namespaces"),
}

Say = Callable[[str], None]
Answer = TypeVar("Answer")


class Wanted(msgspec.Struct, frozen=True):
    """One object a cluster should have."""

    body: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def collection(self) -> str:
        return _COLLECTIONS[self.kind]

    @property
    def path(self) -> str:
        return f"{self.collection}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def definitions() -> tuple[Wanted, ...]:
    """The kinds of KAI that are read, and the priority classes its manifests name."""
    return tuple(one for file in ("queues", "podgroups", "topologies", "priority-classes") for one in _manifests(file))


def default_queues() -> tuple[Wanted, ...]:
    """Where workloads go that name no queue."""
    return _manifests("default-queues")


def home(namespace: str) -> Wanted:
    """Where the scheduler keeps its lease and its notes."""
    return Wanted({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})


def _manifests(file: str) -> tuple[Wanted, ...]:
    text = resources.files("gpuyard.worlds.kubernetes").joinpath(f"manifests/{file}.yaml").read_text(encoding="utf-8")
    return tuple(Wanted(body) for body in yaml.safe_load_all(text))


# ------------------------------------------------------------------------------------------------- as a command does it


def run(wanted: Sequence[Wanted], kubeconfig: Path | None, context: str | None, say: Say) -> None:
    """Make what is missing in the cluster that is named."""
    asyncio.run(_with_client(kubeconfig, context, lambda client: ensure(client, wanted, say)))


def look(wanted: Sequence[Wanted], kubeconfig: Path | None, context: str | None) -> list[dict[str, Any]]:
    """What would be made."""
    found = asyncio.run(_with_client(kubeconfig, context, lambda client: missing(client, wanted)))
    return [one.body for one in found]


async def _with_client(
    kubeconfig: Path | None, context: str | None, use: Callable[[KubeClient], Awaitable[Answer]]
) -> Answer:
    client = KubeClient(find_access(kubeconfig, context))
    try:
        return await use(client)
    finally:
        await client.close()


# ----------------------------------------------------------------------------------------------------------- installing


async def ensure_crds(client: KubeClient, say: Say) -> None:
    """Make of the definitions what is missing, and come back when the API server answers for all of them."""
    await ensure(client, definitions(), say)


async def ensure(client: KubeClient, wanted: Sequence[Wanted], say: Say) -> None:
    """Make what is missing, and come back when the API server answers for the kinds among it."""
    kinds = [one for one in wanted if one.kind == DEFINITION]
    for one in kinds:
        say(await _made_or_found(client, one))
    for one in kinds:
        await _established(client, one)
    # After the kinds, because some of these are of them.
    for one in wanted:
        if one.kind != DEFINITION:
            say(await _made_or_found(client, one))


async def missing(client: KubeClient, wanted: Sequence[Wanted]) -> tuple[Wanted, ...]:
    """Those of them that the cluster has not."""
    return tuple([one for one in wanted if await _found(client, one.path) is None])


async def _made_or_found(client: KubeClient, one: Wanted) -> str:
    """Asked for first: a definition that is there needs no right to make one."""
    found = await _found(client, one.path)
    if found is None:
        try:
            await client.create(one.collection, one.body)
        except KubeRefusedError as error:
            # Somebody else has made it in the meantime.
            if error.status != CONFLICT:
                raise
            found = await _found(client, one.path)
    if found is None:
        return f"{one} is made"
    return f"{one} is there already and stays as it is{_differs(one, found)}"


def _differs(one: Wanted, found: dict[str, Any]) -> str:
    """Numbers that mean something else than KAI's manifests expect are told; nobody would look for them."""
    if one.kind != PRIORITY_CLASS or found.get("value") == one.body["value"]:
        return ""
    return f": its value is {found.get('value')}, not {one.body['value']}"


async def _found(client: KubeClient, path: str) -> dict[str, Any] | None:
    try:
        return dict(msgspec.json.decode(await client.get(path)))
    except KubeRefusedError as error:
        if error.status != NOT_FOUND:
            raise
        return None


# ---------------------------------------------------------------------------------------------------------- being ready


async def _established(client: KubeClient, definition: Wanted) -> None:
    """Until discovery lists the kind: before that, lists and watches of it are answered with 404."""
    spec = definition.body["spec"]
    group, version, plural = spec["group"], spec["versions"][0]["name"], spec["names"]["plural"]
    until = monotonic_ms() + ESTABLISHED_WITHIN_MS
    while not await _served(client, f"/apis/{group}/{version}", plural):
        await _refuse_other_versions(client, definition, version)
        if monotonic_ms() > until:
            what = f"the API server does not serve {plural}.{group} after {ESTABLISHED_WITHIN_MS // 1000} s"
            raise KubeError(what, fix=f"see why: kubectl describe crd {definition.name}")
        await asyncio.sleep(POLL_S)


async def _served(client: KubeClient, discovery: str, plural: str) -> bool:
    found = await _found(client, discovery)
    return found is not None and any(one["name"] == plural for one in found.get("resources", ()))


async def _refuse_other_versions(client: KubeClient, definition: Wanted, version: str) -> None:
    """A definition of somebody else's that has not the version we read will not get it by waiting."""
    found = await _found(client, definition.path)
    served = [each["name"] for each in found["spec"]["versions"] if each["served"]] if found else [version]
    if version not in served:
        what = f"{definition} is there already and serves {', '.join(served) or 'no version'}, but not {version}"
        raise KubeError(what, fix="bring KAI's definitions to a version that has it, or take them away")
