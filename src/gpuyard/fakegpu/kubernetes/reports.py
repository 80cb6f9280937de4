"""Problems that people should hear of: once in the log, and once as an event of the object they are about.

Place in the flow: whoever notices ─**reports**─▶ log, events.k8s.io. Invariants: the same words about the same
object are told once, also by a process that was started anew (the name of an event follows from them) and until they
have been taken back; a cluster that takes no event holds nothing up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gpuyard.errors import KubeError, KubeRefusedError
from gpuyard.kubeapi.client import CONFLICT, KubeClient
from gpuyard.kubeapi.events import Author, Subject, event_of, path_of_event
from gpuyard.platform.clock import wall_micros_text
from gpuyard.platform.listening import host_name

CONTROLLER: Final = "gpuyard.io/fake-gpus"
MAX_REMEMBERED: Final = 10_000

Say = Callable[[str], None]


class Reports:
    """What was told, and is not to be told again."""

    def __init__(self, client: KubeClient, say: Say) -> None:
        self._client = client
        self._say = say
        self._told: OrderedDict[tuple[Subject, str], str] = OrderedDict()
        self._events_refused = False

    async def tell(self, subject: Subject, reason: str, note: str, *, with_event: bool = True) -> None:
        """A problem; nothing happens if these words were the last about it."""
        if self._told.get((subject, reason)) == note:
            return
        self._told[subject, reason] = note
        while len(self._told) > MAX_REMEMBERED:
            self._told.popitem(last=False)
        self._say(f"{subject}: {note}")
        if with_event:
            await self._record(subject, reason, note)

    def take_back(self, subject: Subject, reason: str, note: str = "") -> None:
        """It is no longer so; said only if it was told."""
        if self._told.pop((subject, reason), None) is not None and note:
            self._say(f"{subject}: {note}")

    def keep(self, reason: str, subjects: set[Subject]) -> None:
        """Of this kind of problem only these are left."""
        for subject, about in [key for key in self._told if key[1] == reason and key[0] not in subjects]:
            self.take_back(subject, about)

    async def _record(self, subject: Subject, reason: str, note: str) -> None:
        event = event_of(subject, reason, note, Author(CONTROLLER, host_name()), wall_micros_text())
        try:
            await self._client.create(path_of_event(event), event)
        except KubeRefusedError as error:
            if error.status != CONFLICT and not self._events_refused:
                self._events_refused = True
                self._say(f"events cannot be written: {error}")
        except KubeError:
            return  # Whoever follows the API server tells that it is gone; the log has the words.
