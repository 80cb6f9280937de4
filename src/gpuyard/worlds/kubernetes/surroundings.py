"""What pods refer to beside their owners (namespaces, volumes, disruption budgets), and what they ask for in its light.

Place in the flow: picture ─pods and these objects─▶ **surroundings** ─requests─▶ jobs. Invariant: when one of them
changes, what waiting pods ask for is worked out anew for just those it concerns; whoever runs stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpuyard.errors import InputError
from gpuyard.model.jobs import Request
from gpuyard.worlds.kubernetes import objects
from gpuyard.worlds.kubernetes.constraints import Translator, follows_namespaces
from gpuyard.worlds.kubernetes.objects import Pod
from gpuyard.worlds.kubernetes.podrecord import Held, PodRecord, key_of
from gpuyard.worlds.kubernetes.requests import asked_by, device_claims_of, gpu_sharing_of
from gpuyard.worlds.kubernetes.selectors import accepts, label_rules
from gpuyard.worlds.kubernetes.volumes import (
    FREE,
    MustWait,
    Settled,
    Storage,
    VolumeRules,
    claims_of,
    is_for_one_pod,
    settled,
    volume_rules,
)


class Surroundings:
    """All of them, and the one translator, whose requests are shared."""

    def __init__(self, pods: Mapping[str, PodRecord], mark: Callable[[str], None]) -> None:
        self._pods = pods
        self._mark = mark
        self.namespaces: dict[str, dict[str, str]] = {}
        """Names and labels."""
        self.budgets: dict[str, objects.DisruptionBudget] = {}
        self.claims: dict[str, objects.VolumeClaim] = {}
        self.volumes: dict[str, objects.PersistentVolume] = {}
        self.classes: dict[str, objects.StorageClass] = {}
        self._translator = Translator()

    def translate(self, record: PodRecord) -> None:
        """What it asks for and where it may go; what cannot be understood or served is held, and says why."""
        pod = record.pod
        rules = volume_rules(pod, self.claims, self.volumes, self.classes, _UsedByOthers(self._pods, record))
        known = FREE if isinstance(rules, MustWait) else rules
        record.labels = self._translator.labels(pod, known)
        try:
            record.request = self._request(pod, known)
            record.claims = known.tell
        except InputError as error:
            record.held = Held("NotUnderstood", error.what)
        else:
            record.held = _held(pod, rules.why if isinstance(rules, MustWait) else "")
        if record.job:
            self._mark(record.job)

    def _request(self, pod: Pod, rules: VolumeRules) -> Request:
        asked = asked_by(pod)
        try:
            return self._translator.request(pod, asked, rules, self.namespaces)
        except InputError:
            if not pod.spec.node_name:
                raise
            # Wherever else it might have run, what it takes up where it is counts.
            return self._translator.amounts(asked)

    def _translate_where(self, concerns: Callable[[Pod], bool]) -> None:
        for record in self._pods.values():
            if record.ours and not record.node and concerns(record.pod):
                self.translate(record)

    # ------------------------------------------------------------------------------------------------------ namespaces

    def put_namespace(self, namespace: objects.Namespace) -> None:
        labels = namespace.metadata.labels or {}
        if self.namespaces.get(namespace.metadata.name) != labels:
            self.namespaces[namespace.metadata.name] = labels
            self._translate_where(follows_namespaces)

    def drop_namespace(self, name: str) -> None:
        if self.namespaces.pop(name, None) is not None:
            self._translate_where(follows_namespaces)

    # -------------------------------------------------------------------------------------------------------- budgets

    def put_budget(self, budget: objects.DisruptionBudget) -> None:
        key = key_of(budget.metadata)
        known = self.budgets.get(key)
        self.budgets[key] = budget
        if known is None or known.status != budget.status or known.spec != budget.spec:
            self._mark_namespace(budget.metadata.namespace)

    def drop_budget(self, key: str) -> None:
        budget = self.budgets.pop(key, None)
        if budget is not None:
            self._mark_namespace(budget.metadata.namespace)

    def _mark_namespace(self, namespace: str) -> None:
        for record in self._pods.values():
            if record.ours and record.node and record.pod.metadata.namespace == namespace:
                self._mark(record.job)

    def allows_disruption(self, records: Sequence[PodRecord], *, together: bool) -> bool:
        """Whether every disruption budget about these pods can bear to lose one of them now, or all at once."""
        for budget in self.budgets.values():
            rules, namespace = label_rules(budget.spec.selector), budget.metadata.namespace
            meant = [one for one in records if one.pod.metadata.namespace == namespace]
            count = sum(accepts(rules, one.pod.metadata.labels or {}) for one in meant)
            if count and budget.status.disruptions_allowed < (count if together else 1):
                return False
        return True

    # -------------------------------------------------------------------------------------------------------- volumes

    def put_claim(self, claim: objects.VolumeClaim) -> None:
        key = key_of(claim.metadata)
        if self.claims.get(key) != claim:
            self.claims[key] = claim
            self._translate_where(lambda pod: _uses(pod, claim.metadata))

    def drop_claim(self, key: str) -> None:
        claim = self.claims.pop(key, None)
        if claim is not None:
            self._translate_where(lambda pod: _uses(pod, claim.metadata))

    def put_volume(self, volume: objects.PersistentVolume) -> None:
        if self.volumes.get(volume.metadata.name) != volume:
            self.volumes[volume.metadata.name] = volume
            self._translate_where(_uses_claims)

    def drop_volume(self, name: str) -> None:
        self.volumes.pop(name, None)
        self._translate_where(_uses_claims)

    def put_class(self, found: objects.StorageClass) -> None:
        self.classes[found.metadata.name] = found
        self._translate_where(_uses_claims)

    def drop_class(self, name: str) -> None:
        self.classes.pop(name, None)
        self._translate_where(_uses_claims)

    def settled(self, pod: Pod, node_labels: dict[str, str]) -> Settled | MustWait:
        """What the claims of a pod must be told or given, now that it has a node."""
        return settled(pod, node_labels, Storage(self.claims, self.volumes, self.classes))

    def look_at_claims_of(self, record: PodRecord) -> None:
        """It has taken its place or left it: claims that one pod at a time may use are free for others, or not."""
        used = [key for key in claims_of(record.pod) if key in self.claims and is_for_one_pod(self.claims[key])]
        if used:
            self._translate_where(lambda pod: not set(used).isdisjoint(claims_of(pod)))


def _held(pod: Pod, volumes: str) -> Held | None:
    if volumes:
        return Held("VolumeNotReady", volumes)
    for word, why in (("GpuSharing", gpu_sharing_of(pod)), ("ResourceClaims", device_claims_of(pod))):
        if why:
            return Held(word, why)
    return None


class _UsedByOthers:
    """Claims that pods with a node use; looked for only where it matters, which is rare."""

    def __init__(self, pods: Mapping[str, PodRecord], but: PodRecord) -> None:
        self._pods, self._but = pods, but

    def __contains__(self, claim: object) -> bool:
        others = (one for one in self._pods.values() if one is not self._but and one.node and not one.over)
        return any(claim in claims_of(one.pod) for one in others)


def _uses_claims(pod: Pod) -> bool:
    return bool(claims_of(pod))


def _uses(pod: Pod, claim: objects.Metadata) -> bool:
    return key_of(claim) in claims_of(pod)
