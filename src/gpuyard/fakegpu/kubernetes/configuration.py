"""The configuration of a cluster's fake GPUs: the text of a ConfigMap, with the nodes of the cluster as its pools.

Place in the flow: ConfigMap and nodes ─**configuration**─▶ Fleet ─▶ yard, labels, capacity. Pure but for what it
remembers: the last text that was good. Invariants: a text with a mistake changes nothing; nothing that somebody holds
is taken away under its hands, and nothing because of a slip in a name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec

from gpuyard.errors import InputError
from gpuyard.fakegpu.config import ClusterFleet, fleet_of_cluster
from gpuyard.fakegpu.fleet import Fleet, MachineSpec
from gpuyard.fakegpu.format import MigStrategy
from gpuyard.fakegpu.profile import Profile

FLEET_KEY: Final = "fleet.yaml"
"""Where in the ConfigMap people write the fleet."""
STATUS_KEY: Final = "status.yaml"
"""Where in the ConfigMap the updater writes who holds what."""

Members = Mapping[str, Sequence[str]]


def fleet_text(data: Mapping[str, str] | None) -> str | None:
    """The configuration in a ConfigMap: under its key, or under the only other one there is."""
    written = {key: text for key, text in (data or {}).items() if key != STATUS_KEY}
    if FLEET_KEY in written:
        return written[FLEET_KEY]
    return next(iter(written.values())) if len(written) == 1 else None


class Draft(msgspec.Struct, frozen=True):
    """A text that can be used, before it counts."""

    found: ClusterFleet
    gone: tuple[str, ...]
    """Names that stood there before."""
    come: tuple[str, ...]
    """Names that did not, or that were not known to the cluster when they came; empty where none has gone."""


class Configuration:
    """What holds now, and what is wrong with the newest text."""

    def __init__(self, name: str) -> None:
        self._file = f"{name}/{FLEET_KEY}"
        self._read: tuple[str, Members] | None = None
        self.fleet: Fleet | None = None
        """None until there was a good one."""
        self.mig_strategy = MigStrategy.NONE
        self.profiles: Mapping[str, Profile] = {}
        self.error: InputError | None = None
        self.unplaced: tuple[InputError, ...] = ()
        self.kept: tuple[str, ...] = ()
        """Nodes the text no longer names and that stay as they were, because it names others that are not there."""

    def read(self, text: str | None, members: Members) -> Draft | None:
        """What a text says, unless it is the one that counts already, or has a mistake."""
        if text is None:
            self._read = None
            what = f'the ConfigMap is not there, or has no "{FLEET_KEY}"'
            self.error = InputError(what, fix="create it; an example is in deploy/fakegpu")
            return None
        if self._read == (text, members):
            return None
        self._read = (text, members)
        try:
            found = fleet_of_cluster(text, self._file, members)
        except InputError as error:
            self.error = error
            return None
        self.error = None
        before = [machine.name for machine in self.fleet.machines] if self.fleet else []
        named = {machine.name for machine in found.fleet.machines}
        gone = tuple(name for name in before if name not in named)
        known = {name for name in before if not self.kept or name in self.kept}
        return Draft(found, gone, tuple(sorted(named - known)) if gone else ())

    def accept(self, draft: Draft, absent: Collection[str]) -> bool:
        """Let a text count; whether anything is different now. `absent` are those of its names that no node has.

        Where a name has gone and another has come that no node has, somebody has mistyped it, or is renaming: what was
        there stays until that is over.
        """
        before = {machine.name: machine for machine in self.fleet.machines} if self.fleet else {}
        slipped = any(name in absent for name in draft.come)
        self.kept = tuple(name for name in draft.gone if name not in absent) if slipped else ()
        found = draft.found
        machines = (*found.fleet.machines, *(before[name] for name in self.kept))
        previous = self.fleet, self.mig_strategy
        self.fleet = msgspec.structs.replace(found.fleet, machines=machines)
        self.mig_strategy, self.unplaced = found.mig_strategy, found.unplaced
        self.profiles = dict(found.fleet.profiles)
        return (self.fleet, self.mig_strategy) != previous

    def doubt(self) -> None:
        """Other nodes are there: the next `read` looks at the names again."""
        if self.kept:
            self._read = None


def with_held(fleet: Fleet, before: Fleet, held: Callable[[str], frozenset[str]]) -> Fleet:
    """A fleet, with the GPUs it no longer has and somebody holds; they leave when they are let go."""
    machines = {machine.name: machine for machine in fleet.machines}
    for machine in before.machines:
        ids = held(machine.name)
        if ids:
            machines[machine.name] = _keeping(machine, ids, machines.get(machine.name))
    return msgspec.structs.replace(fleet, machines=tuple(machines.values()))


def _keeping(before: MachineSpec, held: frozenset[str], now: MachineSpec | None) -> MachineSpec:
    there = now.gpus if now else ()
    known = {gpu.uuid for gpu in there}
    leaving = tuple(
        msgspec.structs.replace(gpu, leaving=True) for gpu in before.gpus if gpu.uuid in held and gpu.uuid not in known
    )
    return msgspec.structs.replace(now or before, gpus=(*there, *leaving)) if leaving or now is None else now
