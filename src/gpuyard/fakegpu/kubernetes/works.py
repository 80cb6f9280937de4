"""What the pods that are there do, read once from their annotations.

Place in the flow: picture ─**works**─▶ holdings; mistakes ─▶ reports. Invariant: an annotation is read again only
when it or the named profiles have changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gpuyard.fakegpu.kubernetes.observed import PodFacts
from gpuyard.fakegpu.kubernetes.workload import Work, work_of
from gpuyard.fakegpu.profile import Profile


class Works:
    """The work of every pod, by uid."""

    def __init__(self) -> None:
        self._named: Mapping[str, Profile] = {}
        self._known: dict[str, tuple[tuple[tuple[str, str], ...], Work]] = {}

    def use(self, named: Mapping[str, Profile]) -> bool:
        """Profiles annotations may name from now on; whether they are others than before."""
        if named == self._named:
            return False
        self._named = named
        self._known.clear()
        return True

    def of(self, pods: Iterable[PodFacts]) -> dict[str, Work]:
        return {pod.uid: self._of(pod) for pod in pods}

    def _of(self, pod: PodFacts) -> Work:
        known = self._known.get(pod.uid)
        if known is None or known[0] != pod.annotations:
            known = self._known[pod.uid] = (pod.annotations, work_of(pod, self._named))
        return known[1]

    def keep(self, uids: Collection[str]) -> None:
        """Forget the others, when there are many."""
        if len(self._known) > 2 * len(uids) + 1000:
            self._known = {uid: known for uid, known in self._known.items() if uid in uids}
