"""The one object of our own: places kept for pods that are not there yet, so that they outlive us.

Place in the flow: world ─SavePlaces─▶ **places** ─ConfigMap─▶ API server; at the start the other way round.
Invariant: what cannot be read is as if nothing had been noted; that costs a moved pod its place, never a start.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from gpuyard.errors import KubeRefusedError
from gpuyard.kubeapi.client import NOT_FOUND, KubeClient
from gpuyard.kubeapi.paths import path_of
from gpuyard.worlds.kubernetes.intents import Place
from gpuyard.worlds.kubernetes.objects import ConfigMap
from gpuyard.worlds.kubernetes.writes import SavePlaces

NAME: Final = "gpuyard-places"
KEY: Final = "places.json"
MANAGER: Final = "gpuyard-scheduler"


async def save_places(client: KubeClient, namespace: str, saved: SavePlaces) -> bytes:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": namespace},
        "data": {KEY: msgspec.json.encode(saved).decode()},
    }
    return await client.apply(path_of("configmaps", NAME, namespace=namespace), body, MANAGER)


async def saved_places(client: KubeClient, namespace: str) -> SavePlaces:
    try:
        content = await client.get(path_of("configmaps", NAME, namespace=namespace))
        text = (msgspec.json.decode(content, type=ConfigMap).data or {}).get(KEY, "")
        saved = msgspec.json.decode(text, type=SavePlaces)
        return replace(saved, places=tuple(place for place in saved.places if _names_a_job(place)))
    except KubeRefusedError as error:
        if error.status != NOT_FOUND:
            raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    return SavePlaces((), ())


def _names_a_job(place: Place) -> bool:
    """As namespace/kind/name: somebody may have written it by hand."""
    return place.job.count("/") >= 2
