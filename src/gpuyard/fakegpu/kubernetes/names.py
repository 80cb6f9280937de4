"""Where in the cluster our objects are, and what they are called.

Place in the flow: settings ─**names**─▶ updater, node part. Invariant: two nodes never share the name of a ConfigMap.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuyard.kubeapi.names import name_about

NAMESPACE: Final = "gpuyard-fake"
CONFIG_MAP: Final = "fake-gpus"


class Scope(msgspec.Struct, frozen=True):
    """The namespace that everything of ours is in, and the ConfigMap with the configuration."""

    namespace: str = NAMESPACE
    config_map: str = CONFIG_MAP


def map_of_node(scope: Scope, node: str) -> str:
    """The ConfigMap of one node."""
    return name_about(scope.config_map, node)
