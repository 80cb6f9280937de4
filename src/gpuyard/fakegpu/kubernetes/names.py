"""Where in the cluster our objects are, and what they are called.

Place in the flow: settings ─**names**─▶ updater, node part. Invariant: two nodes never share the name of a ConfigMap.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

MAX_NAME: Final = 253
DIGEST_BYTES: Final = 8
NAMESPACE: Final = "gpuyard-fake"
CONFIG_MAP: Final = "fake-gpus"


class Scope(msgspec.Struct, frozen=True):
    """The namespace that everything of ours is in, and the ConfigMap with the configuration."""

    namespace: str = NAMESPACE
    config_map: str = CONFIG_MAP


def map_of_node(scope: Scope, node: str) -> str:
    """The ConfigMap of one node."""
    name = f"{scope.config_map}-{node}"
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.blake2b(node.encode(), digest_size=DIGEST_BYTES).hexdigest()
    return f"{name[: MAX_NAME - len(digest) - 1].rstrip('-.')}-{digest}"
