"""Which address everything has: a plan made of one number.

Place in the flow: record ─slot─▶ **addresses** ─▶ configuration, cables, routes. Pure.
Invariant: two slots share no address, and within one no two things do. All of it lies in the range that is set aside
for tests of networks (RFC 2544), so that it exists on this machine alone.

    slot s: 198.18.0.0/15 + s × 4096
      +0     /24  machines: .1 this host, .2 the control plane, .11 node-1, .12 node-2, ...
      +1024  /22  services: the first is the API server, the tenth DNS
      +2048  /21  pods: 128 addresses for each node
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from typing import Final

import msgspec

RANGE: Final = IPv4Network("198.18.0.0/15")
SLOT_SIZE: Final = 4096
MAX_SLOTS: Final = RANGE.num_addresses // SLOT_SIZE
MAX_NODES: Final = 16
PODS_PER_NODE: Final = 128

_CONTROL: Final = 2
_FIRST_NODE: Final = 11
_SERVICES: Final = 1024
_DNS: Final = 10
_PODS: Final = 2048


class Addresses(msgspec.Struct, frozen=True):
    """Every address of one testbed."""

    slot: int

    @property
    def network(self) -> IPv4Network:
        """All of it."""
        return IPv4Network((self._at(0), 20))

    @property
    def machines(self) -> IPv4Network:
        return IPv4Network((self._at(0), 24))

    @property
    def services(self) -> IPv4Network:
        return IPv4Network((self._at(_SERVICES), 22))

    @property
    def pods(self) -> IPv4Network:
        return IPv4Network((self._at(_PODS), 21))

    @property
    def host(self) -> IPv4Address:
        """Where programs on this machine itself are reached from inside, as a webhook under development."""
        return self._at(1)

    @property
    def control(self) -> IPv4Address:
        return self._at(_CONTROL)

    @property
    def api(self) -> IPv4Address:
        """The address of the service `kubernetes`, which the API server itself listens on: no proxy is needed."""
        return self._at(_SERVICES + 1)

    @property
    def dns(self) -> IPv4Address:
        return self._at(_SERVICES + _DNS)

    def node(self, number: int) -> IPv4Address:
        """Nodes are counted from one."""
        return self._at(_FIRST_NODE + number - 1)

    def pods_of(self, number: int) -> IPv4Network:
        return IPv4Network((self._at(_PODS + (number - 1) * PODS_PER_NODE), 25))

    def _at(self, offset: int) -> IPv4Address:
        return RANGE[self.slot * SLOT_SIZE + offset]


def free_slot(taken: Iterable[int], routes: str) -> int | None:
    """The first slot that no testbed has and no network of this machine touches; `routes` is what `ip route` prints."""
    used, networks = set(taken), _networks(routes)
    for slot in range(MAX_SLOTS):
        here = Addresses(slot).network
        if slot not in used and not any(here.overlaps(network) for network in networks):
            return slot
    return None


def _networks(routes: str) -> list[IPv4Network]:
    words = (line.split()[0] for line in routes.splitlines() if line.strip())
    return [IPv4Network(word, strict=False) for word in words if word[:1].isdigit()]
