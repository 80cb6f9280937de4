"""Fair-share cases: the division of the production scheduler against the expected shares.

Amounts of every resource are counted in millionths of what the file writes, so that its decimals stay exact; surplus
is handed out in wholes, as the files count it.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from gpuyard.errors import InputError
from gpuyard.model.quantities import MILLI
from gpuyard.scenarios.corpus_format import UNLIMITED, Demand, Number, Vector
from gpuyard.scenarios.verdict import Verdict
from gpuyard.scheduler.fairshare import PPM, Claim, divide

SCALE: Final = 10**6


def judge_vector(vector: Vector) -> Verdict:
    mismatches = tuple(line for resource in vector.total for line in _mismatches(vector, resource))
    return Verdict(vector.id, not mismatches, mismatches)


def _mismatches(vector: Vector, resource: str) -> Iterator[str]:
    total = _scaled(vector.total[resource], vector)
    claims = list(_claims(vector, resource, total))
    shares = divide(claims, total, SCALE, round(Fraction(str(vector.k)) * MILLI))
    for queue, expected in vector.expected.items():
        if resource in expected and shares.get(queue, 0) != _scaled(expected[resource], vector):
            got = shares.get(queue, 0) / SCALE
            yield f"{queue} {resource}: expected {expected[resource]:g}, got {got:g}"


def _claims(vector: Vector, resource: str, total: int) -> Iterator[Claim]:
    for name, queue in vector.queues.items():
        parent = queue.get("parent")
        demand = queue.get(resource)
        if isinstance(parent, Demand) or isinstance(demand, str):
            fix = "write parent as a name and every resource as an object"
            raise InputError(f"vector {vector.id}: queue {name} is not readable", fix=fix)
        yield _claim(name, parent or None, demand or Demand(), vector, total)


def _claim(name: str, parent: str | None, demand: Demand, vector: Vector, total: int) -> Claim:
    return Claim(
        name,
        parent,
        quota=None if demand.deserved == UNLIMITED else _scaled(demand.deserved, vector),
        limit=None if demand.limit == UNLIMITED else _scaled(demand.limit, vector),
        weight_milli=max(0, round(Fraction(str(demand.weight)) * MILLI)),
        request=total if demand.request == UNLIMITED else _scaled(demand.request, vector),
        usage_ppm=round(Fraction(str(demand.usage)) * PPM),
        priority=demand.priority,
        order=demand.order,
    )


def _scaled(value: Number, vector: Vector) -> int:
    scaled = Fraction(str(value)) * SCALE
    if scaled.denominator != 1:
        raise InputError(f"vector {vector.id}: {value} has more than six decimals", fix="round it to millionths")
    return int(scaled)
