"""An API server that does not answer, told once for all who ask it.

Place in the flow: followers ─failure or success─▶ **outage** ─▶ log. Invariant: one outage is one entry, and its end
one more, however many fail and however often.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpuyard.errors import KubeError, KubeRefusedError, KubeUnreachableError

Say = Callable[[str], None]

FORBIDDEN: Final = 403
STARTING_REFUSALS: Final = 6
"""A server that has just started refuses what it has not read the roles for yet; so many times that is no news."""


class Outage:
    """Who of some followers has no answer."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._failing: dict[str, str] = {}
        self._refusals: dict[str, int] = {}

    def about(self, what: str) -> Callable[[KubeError | None], None]:
        """What a follower tells of its failures and successes."""

        def heard(error: KubeError | None) -> None:
            if error is None:
                self._well(what)
            else:
                self._ill(what, error)

        return heard

    def _ill(self, what: str, error: KubeError) -> None:
        """No answer is one problem, whatever words the network has for it; every refusal is one of its own."""
        problem = "unreachable" if self._unanswered(what, error) else str(error)
        if problem not in self._failing.values():
            self._say(f"{error}\n  what was known before serves on; it is tried again")
        self._failing[what] = problem

    def _unanswered(self, what: str, error: KubeError) -> bool:
        if isinstance(error, KubeUnreachableError):
            self._refusals[what] = 0
            return True
        if not isinstance(error, KubeRefusedError) or error.status != FORBIDDEN or what not in self._refusals:
            return False
        self._refusals[what] += 1
        return self._refusals[what] <= STARTING_REFUSALS

    def _well(self, what: str) -> None:
        self._refusals.pop(what, None)
        if self._failing.pop(what, None) is not None and not self._failing:
            self._say("the API server answers again")
