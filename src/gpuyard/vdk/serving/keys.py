"""Requests that come twice: which plan a key was answered with, and which other calls were done under one.

Place in the flow: desk ─key─▶ **keys** ─▶ the answer of the first time, or None. A plan keeps the key of its request,
so a provision that is sent again is answered with its plan even after a restart; what other calls did is remembered
while the manager runs. Invariant: a key that comes with another request is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from gpuyard.errors import RefusedError
from gpuyard.service.problems import ProblemReason
from gpuyard.vdk.model import Plan, Request

MAX_KEYS: Final = 10_000


class Keys:
    """Of the newest requests."""

    def __init__(self, plans: Iterable[Plan]) -> None:
        self._plans: OrderedDict[str, tuple[Request, str]] = OrderedDict()
        self._done: OrderedDict[str, tuple[object, ...]] = OrderedDict()
        for plan in plans:
            self.planned(plan)

    def planned(self, plan: Plan) -> None:
        if plan.request.key:
            self._plans[plan.request.key] = (plan.request, plan.id)
            _shorten(self._plans)

    def plan_of(self, request: Request) -> str | None:
        """The plan this very request was answered with before."""
        before = self._plans.get(request.key)
        if before is None:
            return None
        if before[0] != request:
            raise _reused()
        return before[1]

    def has_done(self, key: str, *what: object) -> bool:
        """Whether this was done before under this key."""
        before = self._done.get(key)
        if before is not None and before != what:
            raise _reused()
        return before is not None

    def done(self, key: str, *what: object) -> None:
        if key:
            self._done[key] = what
            _shorten(self._done)


def _shorten(kept: OrderedDict[str, tuple[Request, str]] | OrderedDict[str, tuple[object, ...]]) -> None:
    while len(kept) > MAX_KEYS:
        kept.popitem(last=False)


def _reused() -> RefusedError:
    return RefusedError(
        ProblemReason.KEY_REUSED, "the key was used for another request", fix="take a new Idempotency-Key"
    )
