"""Fair share: one resource divided over the tree of queues.

Place in the flow: the cycle asks once per resource, before anything is placed. Every queue first gets what it is owed,
then the surplus goes to those who want more: by priority class, inside a class by weight. Children divide what their
parent got.
Invariants: integers throughout; the order of the claims means nothing; nobody gets more than it asked for or may hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gpuyard.model.quantities import MILLI
from gpuyard.model.queues import DEFAULT_QUEUE_PRIORITY, DEFAULT_WEIGHT_MILLI

PPM: Final = 10**6


class Claim(msgspec.Struct, frozen=True, gc=False):
    """What one queue asks of one resource."""

    name: str
    parent: str | None = None
    quota: int | None = 0
    """None: owed all it asks for."""
    limit: int | None = None
    """None: no upper bound."""
    weight_milli: int = DEFAULT_WEIGHT_MILLI
    request: int = 0
    """What its jobs hold and wait for, with all queues below it."""
    usage_ppm: int = 0
    """How much of the whole cluster it has used lately, in millionths."""
    priority: int = DEFAULT_QUEUE_PRIORITY
    order: int = 0
    """Age: the smaller, the older."""

    @property
    def requestable(self) -> int:
        return self.request if self.limit is None else min(self.limit, self.request)


class _Want(msgspec.Struct, gc=False):
    """What a queue still wants beyond what it has, while the surplus is being shared out."""

    claim: Claim
    missing: int
    lost: int = 0
    """What rounding down took from it in the last round; comparable inside its class only."""


def divide(claims: Sequence[Claim], total: int, unit: int, usage_weight_milli: int = 0) -> dict[str, int]:
    """The share of every queue. `unit` is the smallest amount of surplus that is handed out (1000 for whole GPUs)."""
    families: dict[str | None, list[Claim]] = {}
    for claim in claims:
        families.setdefault(claim.parent, []).append(claim)
    shares = {claim.name: 0 for claim in claims}
    open_families: list[tuple[str | None, int]] = [(None, total)]
    while open_families:
        parent, amount = open_families.pop()
        divided = _divide_family(families[parent], amount, unit, usage_weight_milli) if parent in families else {}
        shares.update(divided)
        open_families.extend(divided.items())
    return shares


def _divide_family(siblings: list[Claim], amount: int, unit: int, usage_weight_milli: int) -> dict[str, int]:
    shares = {claim.name: min(amount if claim.quota is None else claim.quota, claim.requestable) for claim in siblings}
    surplus = amount - sum(shares.values())
    if surplus <= 0:
        return shares
    wants = [
        _Want(claim, claim.requestable - shares[claim.name])
        for claim in siblings
        if claim.weight_milli > 0 and claim.requestable > shares[claim.name]
    ]
    if sum(want.missing for want in wants) > surplus:
        _share_out(wants, surplus, unit, usage_weight_milli)
    else:
        _satisfy(wants)
    for want in wants:
        shares[want.claim.name] = want.claim.requestable - want.missing
    return shares


def _satisfy(wants: Iterable[_Want]) -> None:
    for want in wants:
        want.missing = 0


def _share_out(wants: list[_Want], surplus: int, unit: int, usage_weight_milli: int) -> None:
    """Serve the classes from the highest down; only then hand out what rounding left over, in the same order."""
    classes = _classes(wants)
    for members in classes:
        surplus = _serve_class(members, surplus, unit, usage_weight_milli)
    for members in classes:
        surplus = _hand_out_rest(members, surplus, unit)


def _classes(wants: list[_Want]) -> list[list[_Want]]:
    by_priority: dict[int, list[_Want]] = {}
    for want in wants:
        by_priority.setdefault(want.claim.priority, []).append(want)
    return [by_priority[priority] for priority in sorted(by_priority, reverse=True)]


def _serve_class(members: list[_Want], surplus: int, unit: int, usage_weight_milli: int) -> int:
    """Rounds by weight: whoever wants less than its part leaves its rest to the next round. Returns what is left."""
    hungry = members
    while hungry and surplus > 0:
        left = _serve_round(hungry, surplus, unit, _round_weights(hungry, usage_weight_milli))
        still_hungry = [want for want in hungry if want.missing]
        if len(still_hungry) == len(hungry):
            return left
        hungry, surplus = still_hungry, left
    return surplus


def _serve_round(hungry: list[_Want], surplus: int, unit: int, weights: list[int]) -> int:
    """Give each its part of the surplus, in whole units where it wants more than that. Returns what is left."""
    whole = sum(weights)
    left = surplus
    for want, weight in zip(hungry, weights, strict=True):
        given = want.missing
        if given * whole > surplus * weight:
            units, want.lost = divmod(surplus * weight, whole * unit)
            given = units * unit
        want.missing -= given
        left -= given
    return left


def _round_weights(hungry: list[_Want], usage_weight_milli: int) -> list[int]:
    """Weights that past use lowers: `w/W + k(w/W - usage)`, never below zero, with all denominators multiplied out."""
    plain = [want.claim.weight_milli for want in hungry]
    if not usage_weight_milli or not any(want.claim.usage_ppm for want in hungry):
        return plain
    whole = sum(plain)
    lowered = [
        max(0, weight * MILLI * PPM + usage_weight_milli * (weight * PPM - want.claim.usage_ppm * whole))
        for weight, want in zip(plain, hungry, strict=True)
    ]
    # Where everybody has used too much, nobody is ahead of the others.
    return lowered if any(lowered) else plain


def _hand_out_rest(members: list[_Want], surplus: int, unit: int) -> int:
    """At most one unit each: who lost most to rounding first, then the older. Returns what is left."""
    hungry = [want for want in members if want.missing]
    hungry.sort(key=lambda want: (-want.lost, want.claim.order, want.claim.name))
    for want in hungry:
        given = min(unit, surplus, want.missing)
        want.missing -= given
        surplus -= given
    return surplus
