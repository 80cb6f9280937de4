"""Which pods are one job: by their owners, as far as those have been told of, or by the PodGroup they name.

Place in the flow: picture ─pods, owners, PodGroups─▶ **membership** ─groups─▶ jobs, world. Invariants: every pod that
matters is in one group; when an owner or a PodGroup changes, just the pods that refer to it are grouped anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gpuyard.worlds.kubernetes import objects
from gpuyard.worlds.kubernetes.gangs import job_of_set, pods_left
from gpuyard.worlds.kubernetes.grouping import POD_GROUP, group_of
from gpuyard.worlds.kubernetes.objects import Owner
from gpuyard.worlds.kubernetes.owners import (
    LWS_KIND,
    LWS_VERSION,
    api_group_of,
    named_set,
    owner_path,
    owner_reference,
)
from gpuyard.worlds.kubernetes.podrecord import PodRecord, key_of
from gpuyard.worlds.kubernetes.priorities import Priorities
from gpuyard.worlds.kubernetes.settings import Settings

DOUBT_MS: Final = 3_000
"""How long an owner that is not known yet is waited for: its kind may be told of later than its pods."""

MAX_VERSIONS: Final = 4
"""Versions of one kind of owner that are followed: anybody who makes a pod can name some that do not exist."""

OwnerKind = tuple[str, str]
"""apiVersion and kind."""


class Membership:
    """All groups, and everything they follow from."""

    def __init__(self, settings: Settings, pods: Mapping[str, PodRecord], mark: Callable[[str], None]) -> None:
        self._settings = settings
        self._pods = pods
        self._mark = mark
        self.now_ms = 0
        self.groups: dict[str, dict[str, PodRecord]] = {}
        """By job and key."""
        self.owners: dict[str, Owner] = {}
        """By uid."""
        self._jobs_of_sets: dict[str, dict[str, Owner]] = {}
        """The Jobs of JobSets, by the uid of the set and theirs."""
        self._sets: dict[str, str] = {}
        """Uids of LeaderWorkerSets, by what their workers know of them."""
        self.podgroups: dict[str, objects.PodGroup] = {}
        self.topologies: dict[str, objects.KaiTopology] = {}
        self.wanted_kinds: dict[OwnerKind, None] = {}
        """Kinds of owners that pods have named; whoever follows the cluster follows these, too."""
        self._priorities = Priorities(())
        self._doubted: dict[str, int] = {}
        """Pods whose owner is not known yet, and since when."""
        self._referrers: dict[str, dict[str, None]] = {}
        """By owner or PodGroup, the pods that belong to it."""

    # -------------------------------------------------------------------------------------------------------- one pod

    def regroup(self, record: PodRecord) -> None:
        """Find out which group it belongs to."""
        if not record.ours:
            self._join(record, _alone(record))
            return
        self._refer_to_none(record)
        podgroup = self._podgroup_of(record)
        chain = self._chain(record)
        if chain is None:
            self._doubted.setdefault(record.key, self.now_ms)
            self._join(record, _alone(record))
            record.grouping = None
            return
        self._doubted.pop(record.key, None)
        record.grouping = group_of(record.pod, chain, podgroup, self._priorities, self._settings, self.topologies)
        self._join(record, record.grouping.job_id)

    def leave(self, record: PodRecord) -> None:
        """It is there no more."""
        self._leave_group(record)
        self._refer_to_none(record)
        self._doubted.pop(record.key, None)

    def mark_siblings(self, record: PodRecord) -> None:
        """Have the jobs of all pods looked at again that the same owner has made."""
        for to in record.refers[:2]:
            for key in self._referrers.get(to, ()):
                self._mark(self._pods[key].job)

    def _join(self, record: PodRecord, job: str) -> None:
        if record.job != job:
            self._leave_group(record)
            record.job = job
        self.groups.setdefault(job, {})[record.key] = record
        self._mark(job)

    def _leave_group(self, record: PodRecord) -> None:
        members = self.groups.get(record.job)
        if members is None:
            return
        members.pop(record.key, None)
        if not members:
            del self.groups[record.job]
        self._mark(record.job)

    def _podgroup_of(self, record: PodRecord) -> objects.PodGroup | None:
        name = (record.pod.metadata.annotations or {}).get(POD_GROUP, "")
        if not name:
            return None
        key = f"{record.pod.metadata.namespace}/{name}"
        self._refer(record, key)
        return self.podgroups.get(key)

    def _refer(self, record: PodRecord, to: str) -> None:
        record.refers.append(to)
        self._referrers.setdefault(to, {})[record.key] = None

    def _refer_to_none(self, record: PodRecord) -> None:
        for to in record.refers:
            referrers = self._referrers[to]
            referrers.pop(record.key, None)
            if not referrers:
                del self._referrers[to]
        record.refers = []

    def _chain(self, record: PodRecord) -> tuple[Owner, ...] | None:
        """Its owners, nearest first; None while one of them may still be told of."""
        chain: list[Owner] = []
        reference = owner_reference(record.pod.metadata)
        while reference is not None and reference.uid not in record.refers:
            self._refer(record, reference.uid)
            owner = self.owners.get(reference.uid)
            if owner is None:
                if self._may_be_told_of(record, (reference.api_version, reference.kind)):
                    return None
                break
            chain.append(owner)
            reference = owner_reference(owner.metadata)
        return self._with_named_set(record, chain)

    def _with_named_set(self, record: PodRecord, chain: list[Owner]) -> tuple[Owner, ...] | None:
        """And the set of a worker, which only its labels name."""
        name = named_set(record.pod)
        if not name or any(owner.kind == LWS_KIND for owner in chain):
            return tuple(chain)
        key = _set_key(record.pod.metadata.namespace, name)
        self._refer(record, key)
        found = self.owners.get(self._sets.get(key, ""))
        if found is None:
            waited_for = self._may_be_told_of(record, (LWS_VERSION, LWS_KIND))
            return None if waited_for else tuple(chain)
        return (*chain, found)

    # --------------------------------------------------------------------------------------------------------- doubts

    def _may_be_told_of(self, record: PodRecord, kind: OwnerKind) -> bool:
        if not self._is_followed(kind) or record.grouping is not None:
            # Whoever has a group already does not leave it for a while each time it is looked at.
            return False
        since_ms = self._doubted.get(record.key, self.now_ms)
        return self.now_ms - since_ms < DOUBT_MS

    def _is_followed(self, kind: OwnerKind) -> bool:
        """Have a kind followed from now on, if there is a way to read it."""
        if kind not in self.wanted_kinds:
            versions = [one for one in self.wanted_kinds if _without_version(one) == _without_version(kind)]
            if owner_path(*kind) is None or len(versions) >= MAX_VERSIONS:
                return False
            self.wanted_kinds[kind] = None
        return True

    def look_again(self) -> None:
        """Decide about owners that were waited for long enough."""
        self._regroup_all([key for key, since_ms in self._doubted.items() if self.now_ms - since_ms >= DOUBT_MS])

    @property
    def next_doubt_ms(self) -> int | None:
        """When somebody whose owner is not known yet has waited long enough for it; None: nobody waits for that."""
        first_ms = next(iter(self._doubted.values()), None)
        return None if first_ms is None else first_ms + DOUBT_MS

    # --------------------------------------------------------------------------------------------- what it follows from

    def list_owners(self, kind: OwnerKind, found: Iterable[Owner]) -> None:
        """All there are of one kind."""
        named = [_named(each, kind) for each in found]
        there = {each.metadata.uid for each in named}
        for uid in [uid for uid, each in self.owners.items() if _kind_of(each) == kind and uid not in there]:
            self.drop_owner(uid)
        for each in named:
            self.put_owner(kind, each)
        self._regroup_all(self._doubted)

    def put_owner(self, kind: OwnerKind, found: Owner) -> None:
        owner = _named(found, kind)
        known = self.owners.get(owner.metadata.uid)
        self.owners[owner.metadata.uid] = owner
        if known is not None and _tells(known) == _tells(owner):
            return
        self._count_in_set(known, owner)
        referrers = {**self._referrers.get(owner.metadata.uid, {})}
        if owner.kind == LWS_KIND:
            key = _set_key(owner.metadata.namespace, owner.metadata.name)
            self._sets[key] = owner.metadata.uid
            referrers |= self._referrers.get(key, {})
        self._regroup_all(referrers)

    def drop_owner(self, uid: str) -> None:
        """Its pods stay as they were grouped: they are about to go, or to belong to nobody."""
        owner = self.owners.pop(uid, None)
        self._count_in_set(owner, None)
        if owner is not None and owner.kind == LWS_KIND:
            key = _set_key(owner.metadata.namespace, owner.metadata.name)
            # One of the same name may have come before this one was told to be gone.
            if self._sets.get(key) == uid:
                del self._sets[key]

    def _count_in_set(self, before: Owner | None, now: Owner | None) -> None:
        """A Job has come, changed or gone: if it is one of a JobSet, all pods of the set depend on what it has done."""
        for job in (before, now):
            above = owner_reference(job.metadata) if job is not None and job_of_set(job) else None
            if job is None or above is None:
                continue
            jobs = self._jobs_of_sets.setdefault(above.uid, {})
            if job is now:
                jobs[job.metadata.uid] = job
            elif not (jobs.pop(job.metadata.uid, None) and jobs):
                self._jobs_of_sets.pop(above.uid)
            # They are all in one job.
            for key in list(self._referrers.get(above.uid, ()))[:1]:
                self._mark(self._pods[key].job)

    def jobs_left(self, id: str) -> dict[str, int]:
        """Of a job that is a JobSet: how many pods each of its Jobs has still to see done, by leaf."""
        record = next(iter(self.groups.get(id, {}).values()), None)
        if record is None or not self._jobs_of_sets:
            return {}
        made = (job for uid in record.refers for job in self._jobs_of_sets.get(uid, {}).values())
        return {job_of_set(job): pods_left(job) for job in made}

    def put_podgroup(self, podgroup: objects.PodGroup) -> None:
        key = key_of(podgroup.metadata)
        known = self.podgroups.get(key)
        self.podgroups[key] = podgroup
        if known is None or known.spec != podgroup.spec or known.metadata.labels != podgroup.metadata.labels:
            self._regroup_all(self._referrers.get(key, ()))

    def drop_podgroup(self, key: str) -> None:
        self.podgroups.pop(key, None)
        self._regroup_all(self._referrers.get(key, ()))

    def set_priorities(self, classes: Iterable[objects.PriorityClass]) -> None:
        self._priorities = Priorities(classes)
        self.regroup_ours()

    def regroup_ours(self) -> None:
        """Something has changed that any of our pods may depend on."""
        self._regroup_all(key for key, record in self._pods.items() if record.ours)

    def _regroup_all(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            record = self._pods.get(key)
            if record is not None:
                self.regroup(record)


def _alone(record: PodRecord) -> str:
    return f"{record.pod.metadata.namespace}/pod/{record.pod.metadata.name}"


def _set_key(namespace: str, name: str) -> str:
    return f"{LWS_KIND}/{namespace}/{name}"


def _named(owner: Owner, kind: OwnerKind) -> Owner:
    """Objects in a list do not say what they are."""
    if owner.kind:
        return owner
    return Owner(owner.metadata, kind[1], kind[0], owner.spec, owner.status)


def _without_version(kind: OwnerKind) -> OwnerKind:
    return api_group_of(kind[0]), kind[1]


def _kind_of(owner: Owner) -> OwnerKind:
    return owner.api_version, owner.kind


def _tells(owner: Owner) -> tuple[object, ...]:
    """What groups may depend on."""
    metadata, status = owner.metadata, owner.status or {}
    going = metadata.deletion_timestamp is not None
    counts = status.get("failed"), status.get("succeeded"), status.get("completionTime")
    return owner.spec, metadata.labels, metadata.annotations, metadata.owner_references, counts, going
