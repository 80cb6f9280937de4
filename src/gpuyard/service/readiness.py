"""Whether new entries can be recorded, and if not, why: what /readyz says.

Place in the flow: manager ─what its writes met, what a look at the store found─▶ **readiness** ─cause─▶ /readyz,
/v1/status. Invariant: a cause names no path, host or user, because nobody's credential is asked for it; it goes away
when something was written, or could be again.
"""

from __future__ import annotations

import enum

from gpuyard.errors import StoreError, StoreFullError, StoreGoneError, StoreReadOnlyError


class Cause(enum.StrEnum):
    """Why nothing new is recorded, for whoever asks."""

    NONE = ""
    NOT_RUNNING = "the manager is starting or stopping"
    FULL = "the disk of the database is full"
    READ_ONLY = "the database may only be read"
    AWAY = "the database does not answer"
    REFUSES = "the database takes nothing at the moment"


def cause_of(error: StoreError) -> Cause:
    match error:
        case StoreFullError():
            return Cause.FULL
        case StoreReadOnlyError():
            return Cause.READ_ONLY
        case StoreGoneError():
            return Cause.AWAY
        case _:
            return Cause.REFUSES


class Readiness:
    """What is known of it: by the last write that was tried, and by the last look."""

    def __init__(self) -> None:
        self._tried = Cause.NONE
        self._seen = Cause.NONE

    @property
    def cause(self) -> Cause:
        return self._tried or self._seen

    @property
    def is_away(self) -> bool:
        """The connection is lost, and nothing else may be about to find it again."""
        return Cause.AWAY in (self._tried, self._seen)

    def refused(self, error: StoreError) -> None:
        """A write did not succeed; it is tried again."""
        self._tried = cause_of(error)

    def written(self) -> None:
        self._tried = self._seen = Cause.NONE

    def answered(self) -> None:
        """The database is there again; whether it can be written is another question."""
        if self._tried is Cause.AWAY:
            self._tried = Cause.NONE
        if self._seen is Cause.AWAY:
            self._seen = Cause.NONE

    def looked(self, found: StoreError | None) -> None:
        """The store was asked whether it could be written."""
        self._seen = Cause.NONE if found is None else cause_of(found)
