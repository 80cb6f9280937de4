"""Places that are kept for the pods made in the stead of those that were moved: for how long, and for whom.

Place in the flow: world ─a move, time, pods that came─▶ **kept** ─SavePlaces─▶ writer. Invariants: a place waits from
when the pod before it has gone, however long that takes to end; what is kept is noted in the cluster and outlives us.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from gpuyard.worlds.kubernetes.intents import PLACE_MS, Intents, Place
from gpuyard.worlds.kubernetes.jobs import ALONE, STUCK_MS, leaver_of
from gpuyard.worlds.kubernetes.picture import Picture
from gpuyard.worlds.kubernetes.podrecord import PodRecord
from gpuyard.worlds.kubernetes.writes import Errand, SavePlaces

HOUR_MS: Final = 3_600_000


class KeptPlaces:
    """All of them, and how many moves were made lately."""

    def __init__(self, picture: Picture, intents: Intents, errands: deque[Errand]) -> None:
        self._picture = picture
        self._intents = intents
        self._errands = errands
        self._moves_ms: deque[int] = deque()

    def adopt(self, saved: SavePlaces) -> None:
        """Go on from what was noted before."""
        self._intents.places = [place for place in saved.places if not self._was_never_told_to_go(place)]
        self._moves_ms = deque(sorted(saved.moves_ms))

    def keep(self, place: Place, now_ms: int) -> None:
        """A pod is told to go for this place."""
        self._intents.places.append(place)
        self._moves_ms.append(now_ms)

    def end(self, gone: Iterable[Place]) -> None:
        """Others may have them."""
        over = list(gone)
        if not over:
            return
        self._intents.drop_places(over)
        for place in over:
            self._picture.mark(place.job)
        self._errands.append(Errand(notes=(self.saved(),)))

    def saved(self) -> SavePlaces:
        return SavePlaces(tuple(self._intents.places), tuple(self._moves_ms))

    @property
    def moves_last_hour(self) -> int:
        return len(self._moves_ms)

    def look_again(self, now_ms: int) -> None:
        """What follows from pods that came or went, and from time that has passed."""
        self._wait_on(now_ms)
        self._pass_on()
        while self._moves_ms and self._moves_ms[0] <= now_ms - HOUR_MS:
            self._moves_ms.popleft()

    def _was_never_told_to_go(self, place: Place) -> bool:
        """Whoever noted the place did not come to do anything about it."""
        leaver = leaver_of(place, self._picture.pods)
        return leaver is not None and not leaver.leaving and not leaver.over

    def _wait_on(self, now_ms: int) -> None:
        over: list[Place] = []
        for at, place in enumerate(self._intents.places):
            leaver = leaver_of(place, self._picture.pods)
            if leaver is not None and not leaver.over and now_ms - (leaver.deleted_ms or now_ms) <= STUCK_MS:
                self._intents.places[at] = replace(place, until_ms=now_ms + PLACE_MS)
            elif place.until_ms <= now_ms:
                over.append(place)
        self.end(over)

    def _pass_on(self) -> None:
        """Where every pod is a job of its own, the one made in the stead of another is another job: it inherits."""
        if not self._intents.places:
            return
        heirs = {place.heir for place in self._intents.places}
        for id in tuple(self._picture.jobs_changed):
            for record in self._picture.groups.get(id, {}).values():
                grouping = record.grouping
                if grouping is not None and grouping.successor_key in heirs and not self._intents.places_of(id):
                    self._pass_one_on(record, grouping.successor_key)

    def _pass_one_on(self, record: PodRecord, heir: str) -> None:
        for at, place in enumerate(self._intents.places):
            if place.heir == heir and place.job != record.job and not record.node and self._is_left(place):
                self._intents.places[at] = replace(place, job=record.job)
                self._picture.mark(place.job)
                return

    def _is_left(self, place: Place) -> bool:
        """Whether its job was one pod, and that pod is the one which goes or has gone."""
        leaver = leaver_of(place, self._picture.pods)
        others = [one for one in self._picture.groups.get(place.job, {}).values() if one is not leaver]
        return place.job.split("/", 2)[1] == ALONE and not others
