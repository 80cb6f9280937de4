"""The plan of addresses: nothing is given out twice."""

from __future__ import annotations

from itertools import combinations

from gpuyard.testbed.addresses import MAX_NODES, MAX_SLOTS, RANGE, Addresses, free_slot

ROUTES = """\
default via 192.168.8.1 dev eth0
198.18.0.0/22 dev tun0 scope link
broadcast 192.168.8.255 dev eth0 table local
198.18.32.7 dev tun0
"""


def test_two_slots_share_no_address() -> None:
    networks = [Addresses(slot).network for slot in range(MAX_SLOTS)]
    assert not [pair for pair in combinations(networks, 2) if pair[0].overlaps(pair[1])]
    assert all(network.subnet_of(RANGE) for network in networks)


def test_within_a_slot_everything_has_an_address_of_its_own() -> None:
    plan = Addresses(3)
    nodes = range(1, MAX_NODES + 1)
    single = [plan.host, plan.control, *map(plan.node, nodes)]
    assert len(set(single)) == len(single)
    assert all(address in plan.machines for address in single)
    parts = [plan.machines, plan.services, *map(plan.pods_of, nodes)]
    assert not [pair for pair in combinations(parts, 2) if pair[0].overlaps(pair[1])]
    assert all(part.subnet_of(plan.network) for part in parts)
    assert all(plan.pods_of(node).subnet_of(plan.pods) for node in nodes)


def test_the_api_server_has_the_address_kubernetes_gives_its_service() -> None:
    plan = Addresses(0)
    assert plan.api == next(plan.services.hosts())
    assert plan.dns in plan.services


def test_the_first_slot_that_nobody_has_is_taken() -> None:
    assert free_slot([], "") == 0
    assert free_slot([0, 1, 3], "") == 2
    assert free_slot(range(MAX_SLOTS), "") is None


def test_a_slot_whose_addresses_this_machine_uses_is_left_out() -> None:
    assert free_slot([1], ROUTES) == 3
