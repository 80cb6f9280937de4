"""The texts of all ConfigMaps that say who holds what: one for the cluster, or one for each node where there are many.

Place in the flow: readings of fake nodes, ConfigMaps of node parts ─**statustexts**─▶ map writer. Invariants: up to
MAX_GPUS_IN_ONE GPUs one ConfigMap holds all nodes; a ConfigMap of a node that is no longer ours is taken away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from gpuyard.fakegpu.fleet import MachineSpec
from gpuyard.fakegpu.kubernetes.assign import Allocation
from gpuyard.fakegpu.kubernetes.configuration import STATUS_KEY
from gpuyard.fakegpu.kubernetes.mapwriter import NODE, ROLE, MapWriter, Wanted
from gpuyard.fakegpu.kubernetes.names import Scope, map_of_node
from gpuyard.fakegpu.kubernetes.objects import ConfigMap
from gpuyard.fakegpu.kubernetes.picture import Picture
from gpuyard.fakegpu.kubernetes.restored import restored
from gpuyard.fakegpu.kubernetes.statusmap import MAX_GPUS_IN_ONE, document, holders_in, node_entries, node_text
from gpuyard.fakegpu.kubernetes.tenancy import Tenancy

MOVES_AT_ONCE: Final = 5
"""Nodes whose utilisation is written down anew at a look, of those where it changes by itself."""


class StatusTexts:
    """What was last said about each fake node."""

    def __init__(self, scope: Scope, picture: Picture, maps: MapWriter) -> None:
        self._scope = scope
        self._picture = picture
        self._maps = maps
        self._texts: dict[str, str] = {}
        """By node, the oldest first."""
        self._frame: tuple[str, tuple[str, ...], int] | None = None

    def update(
        self,
        strategy: str,
        machines: Mapping[str, MachineSpec],
        fakes: Tenancy,
        changed: Collection[str],
        told: Collection[str],
    ) -> None:
        """Say what follows from changes on some fake nodes, and from ConfigMaps that others have changed."""
        fresh = [name for name in changed if name not in self._texts and not fakes.held(name)]
        moved = self._oldest(fakes.moving.difference(changed))
        self._render(strategy, fakes, [*changed, *moved])
        configured = [name for name in machines if name in self._picture.nodes]
        gpus = sum(len(machines[name].gpus) for name in configured)
        ours = (*configured, *self._left_over(machines, fakes))
        of_nodes = [name for name in told if name != self._scope.config_map]
        frame, self._frame = self._frame, (strategy, ours, gpus)
        at_rest = not changed and not of_nodes and frame == self._frame
        if at_rest and not moved:
            return
        if gpus <= MAX_GPUS_IN_ONE:
            whole = Wanted(document(strategy, self._entries(ours)))
            self._maps.want(self._scope.config_map, whole, at_leisure=at_rest)
        else:
            # A thousand new nodes need their GPUs first; that nobody holds them yet can wait.
            self._want_each(strategy, moved.union(fresh))
        self._clean_up(set(ours), in_one=gpus <= MAX_GPUS_IN_ONE)

    def _left_over(self, machines: Mapping[str, MachineSpec], fakes: Tenancy) -> list[str]:
        """Nodes that are no longer configured, and on which somebody still holds a GPU."""
        told = (
            node
            for there in self._picture.maps.values()
            if (node := _node_of(there)) and node not in machines and self._is_held(node, there)
        )
        return sorted({*told, *(name for name in fakes.names if name not in machines and fakes.held(name))})

    def _is_held(self, node: str, there: ConfigMap) -> bool:
        """Whether a pod that the node's part names is still there."""
        pods = {pod.key for pod in self._picture.on_node.get(node, {}).values()}
        holders = holders_in((there.data or {}).get(STATUS_KEY, "")).get(node, []) if pods else []
        return any((each.holder.namespace, each.holder.pod) in pods for each in holders)

    def _render(self, strategy: str, fakes: Tenancy, names: Collection[str]) -> None:
        for name in self._texts.keys() - fakes.names:
            del self._texts[name]
        for name in names:
            if name in fakes.names:
                self._texts.pop(name, None)
                self._texts[name] = node_text(fakes.reading(name), strategy)

    def _want_each(self, strategy: str, unhurried: Collection[str]) -> None:
        self._maps.want(self._scope.config_map, Wanted(None))
        for name, text in self._texts.items():
            one = Wanted(document(strategy, [text]), name)
            self._maps.want(map_of_node(self._scope, name), one, at_leisure=name in unhurried)

    def _entries(self, names: Collection[str]) -> list[str]:
        """Of fake nodes our own text, of others what their node part says."""
        return [text for name in names if (text := self._texts.get(name) or self._told(name))]

    def _told(self, name: str) -> str:
        return node_entries(self._text_of(map_of_node(self._scope, name))).get(name, "")

    def _text_of(self, name: str) -> str:
        there = self._picture.maps.get(name)
        return (there.data or {}).get(STATUS_KEY, "") if there else ""

    def _clean_up(self, ours: set[str], *, in_one: bool) -> None:
        for name, there in self._picture.maps.items():
            if (there.metadata.labels or {}).get(ROLE) is None:
                continue
            node = _node_of(there)
            if node not in ours or (in_one and node in self._texts):
                self._maps.remove(name)

    def written(self, name: str) -> tuple[Allocation, ...]:
        """What was given out on a node, by the ConfigMaps as they are."""
        pods = self._picture.on_node.get(name)
        if not pods:
            return ()
        for source in (map_of_node(self._scope, name), self._scope.config_map):
            entry = node_entries(self._text_of(source)).get(name, "")
            devices = holders_in(document("none", [entry])).get(name)
            if devices:
                return restored(devices, pods.values())
        return ()

    def _oldest(self, names: Collection[str]) -> set[str]:
        """Of some nodes those whose text is oldest, but no more than there is time for."""
        found: set[str] = set()
        for name in self._texts if names else ():
            if name in names:
                found.add(name)
            if len(found) == MOVES_AT_ONCE:
                break
        return found


def _node_of(there: ConfigMap) -> str:
    """Of which node a ConfigMap of ours is; empty for all others."""
    is_ours = (there.metadata.labels or {}).get(ROLE) is not None
    return (there.metadata.annotations or {}).get(NODE, "") if is_ours else ""
