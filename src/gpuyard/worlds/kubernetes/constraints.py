"""Where a pod may run, as the model says it: selectors, affinity, spreading, tolerations, host ports, volumes.

Place in the flow: objects.Pod, Asked, VolumeRules ─**constraints**─▶ model Request and labels. Pure but for what it
remembers. Invariants: equal content gives the same object, so that thousands of pods share a few; what is remembered is
bounded; rules mean what they mean to kube-scheduler.

Pseudo-labels let rules between pods look at more than labels: the namespace of a pod, the host ports it takes, the
claims it may share with nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from gpuyard.model.jobs import (
    DESPITE_CORDON,
    LabelRule,
    Neighbour,
    Operator,
    Preference,
    Request,
    SoftNeighbour,
    SoftSpread,
    Spread,
    Toleration,
    Where,
)
from gpuyard.model.nodes import OWN_LABEL, Taint
from gpuyard.scheduler.eligibility import tolerated
from gpuyard.worlds.kubernetes.objects import (
    Affinity,
    Container,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodToleration,
    SpreadConstraint,
)
from gpuyard.worlds.kubernetes.recent import Recent
from gpuyard.worlds.kubernetes.requests import ALWAYS, AMD, Asked
from gpuyard.worlds.kubernetes.selectors import (
    ANYTHING,
    CLUSTER,
    GPU,
    NEVER,
    Alternatives,
    Rules,
    accepts,
    both,
    joined,
    label_rules,
    node_alternatives,
    node_rules,
)
from gpuyard.worlds.kubernetes.volumes import FREE, VolumeRules

NAMESPACE: Final = f"{OWN_LABEL}namespace"
"""The namespace of a pod as a label of it."""
HOST_PORT: Final = f"{OWN_LABEL}hostport/"
"""Begins the labels that tell of a port of the node a pod takes."""
CLAIM: Final = f"{OWN_LABEL}claim/"
"""Begins the labels that tell of a volume claim a pod uses and no other may use with it."""
EVERY_ADDRESS: Final = "0.0.0.0"
NODE: Final = "hostname"
"""The level at which two pods are apart if they are on different nodes."""
REQUIRED: Final = "DoNotSchedule"
PREFERRED: Final = "ScheduleAnyway"
SPREAD_WEIGHT: Final = 100
"""What one pod more in a domain weighs where spreading is preferred, which has no weight of its own: as much as the
strongest preference that has one."""
HONOUR: Final = "Honor"

REMEMBERED: Final = 4096
"""Requests, places and sets of labels that are kept at hand, at least so many of each."""

Labels = tuple[tuple[str, str], ...]
Namespaces = Mapping[str, dict[str, str]]
"""The labels of every namespace by its name."""
HostPort = tuple[str, int, str]
"""Protocol, port and address."""

Shared = TypeVar("Shared")

_OF_AMD: Final = LabelRule(GPU, Operator.IN, (AMD,))
_BESIDE_AMD: Final = Toleration(GPU, AMD)
"""A GPU of one maker is of no use to a pod that asks for the other's, and the model counts them alike."""
_UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable", effect="NoSchedule")
"""What a pod must tolerate to go to a cordoned node, whether the node carries the taint or not."""
_ENCODER: Final = msgspec.msgpack.Encoder()


class Translator:
    """Turns pods into requests and labels, the same object wherever the content is the same."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._translated: Recent[object, Request] = Recent(remembered)
        self._requests: Recent[Request, Request] = Recent(remembered)
        self._wheres: Recent[Where, Where] = Recent(remembered)
        self._labels: Recent[Labels, Labels] = Recent(remembered)
        self._pairs: Recent[tuple[str, str], tuple[str, str]] = Recent(remembered)

    def __len__(self) -> int:
        """How much is remembered."""
        parts = (self._translated, self._requests, self._wheres, self._labels, self._pairs)
        return sum(len(part) for part in parts)

    def request(self, pod: Pod, asked: Asked, volume_rules: VolumeRules, namespaces: Namespaces) -> Request:
        """What a pod asks for and where; InputError where its rules have too many alternatives to be looked at."""
        spec = pod.spec
        written = _ENCODER.encode(
            (spec.node_selector, spec.affinity, spec.tolerations, spec.topology_spread_constraints)
        )
        ports = _host_ports(pod)
        around = _surroundings(pod, namespaces) if spec.affinity or spec.topology_spread_constraints else ()
        key = (asked, written, ports, volume_rules.alternatives, volume_rules.alone, around)
        known = self._translated.get(key)
        if known is None:
            known = self._request(asked, where_of(pod, asked, volume_rules, namespaces))
            self._translated.keep(key, known)
        return known

    def amounts(self, asked: Asked) -> Request:
        """What a pod asks for, anywhere."""
        return self._request(asked, Where())

    def labels(self, pod: Pod, volume_rules: VolumeRules = FREE) -> Labels:
        """What rules of other pods look at: the labels of a pod, its namespace, its host ports, its own claims."""
        labels = _labels_of(pod, volume_rules)
        known = self._labels.get(labels)
        if known is None:
            known = tuple(_shared(self._pairs, pair) for pair in labels)
            self._labels.keep(known, known)
        return known

    def _request(self, asked: Asked, where: Where) -> Request:
        request = Request(
            devices=asked.devices,
            mig=asked.mig,
            cpu_milli=asked.cpu_milli,
            memory_bytes=asked.memory_bytes,
            other=asked.other,
            where=_shared(self._wheres, where),
        )
        return _shared(self._requests, request)


def _shared(seen: Recent[Shared, Shared], value: Shared) -> Shared:
    """The object that was first seen with this content."""
    known = seen.get(value)
    if known is None:
        seen.keep(value, value)
        return value
    return known


def where_of(pod: Pod, asked: Asked, volume_rules: VolumeRules, namespaces: Namespaces) -> Where:
    """Where a pod may run; InputError where its rules have too many alternatives to be looked at."""
    spec = pod.spec
    affinity = spec.affinity or Affinity()
    return Where(
        any_of=_any_of(pod, asked, volume_rules),
        tolerations=_tolerations(spec.tolerations or (), asked),
        neighbours=(
            *_with(pod, namespaces),
            *_apart(pod, namespaces),
            *_port_rules(_host_ports(pod)),
            *_claim_rules(volume_rules),
        ),
        spreads=tuple(
            _spread(pod, one) for one in spec.topology_spread_constraints or () if one.when_unsatisfiable == REQUIRED
        ),
        preferences=_preferences(affinity),
        soft_neighbours=(
            *_rather_near(pod, affinity.pod_affinity, 1, namespaces),
            *_rather_near(pod, affinity.pod_anti_affinity, -1, namespaces),
        ),
        soft_spreads=tuple(
            _soft_spread(pod, one)
            for one in spec.topology_spread_constraints or ()
            if one.when_unsatisfiable == PREFERRED
        ),
    )


def follows_namespaces(pod: Pod) -> bool:
    """Whether the rules of a pod change when namespaces come, go or change their labels."""
    return any(_selects_namespaces(term) for term in _pod_terms(pod))


# ---------------------------------------------------------------------------------------------------------------- nodes


def _any_of(pod: Pod, asked: Asked, volume_rules: VolumeRules) -> Alternatives:
    required = _required_nodes(pod)
    found = both((_selected(pod, asked),), required, volume_rules.alternatives)
    if found == ANYTHING:
        return ()
    return found or ((NEVER,),)


def _selected(pod: Pod, asked: Asked) -> Rules:
    rules = tuple(LabelRule(key, Operator.IN, (value,)) for key, value in (pod.spec.node_selector or {}).items())
    return (*rules, _OF_AMD) if asked.devices and asked.gpus == AMD else rules


def _required_nodes(pod: Pod) -> Alternatives:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    return ANYTHING if affinity is None or affinity.required is None else node_alternatives(affinity.required)


def _preferences(affinity: Affinity) -> tuple[Preference, ...]:
    preferred = affinity.node_affinity.preferred if affinity.node_affinity else None
    read = [(one.weight, node_rules(one.preference)) for one in preferred or ()]
    return tuple(Preference(weight, rules) for weight, rules in read if weight and rules is not None)


def _tolerations(written: Iterable[PodToleration], asked: Asked) -> tuple[Toleration, ...]:
    read = {_toleration(one) for one in written if one.operator in ("", "Equal", "Exists")}
    if not asked.devices or asked.gpus == AMD:
        read.add(_BESIDE_AMD)
    if tolerated(_UNSCHEDULABLE, tuple(read)):
        read.add(DESPITE_CORDON)
    return tuple(sorted(read, key=lambda one: (one.key, one.effect, one.value is not None, one.value or "")))


def _toleration(written: PodToleration) -> Toleration:
    return Toleration(written.key, None if written.operator == "Exists" else written.value, written.effect)


# ----------------------------------------------------------------------------------------------------------- other pods


def _with(pod: Pod, namespaces: Namespaces) -> Iterator[Neighbour]:
    affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity else None
    terms = (affinity.required if affinity else None) or ()
    # Only a pod that fulfils all terms at once counts, for each of them.
    rules = joined(*(_term_rules(pod, term, namespaces) for term in terms))
    for level in dict.fromkeys(term.topology_key for term in terms):
        yield Neighbour((), level, rules=rules)


def _apart(pod: Pod, namespaces: Namespaces) -> Iterator[Neighbour]:
    affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity else None
    for term in (affinity.required if affinity else None) or ():
        yield Neighbour((), term.topology_key, apart=True, rules=_term_rules(pod, term, namespaces))


def _rather_near(pod: Pod, affinity: PodAffinity | None, sign: int, namespaces: Namespaces) -> Iterator[SoftNeighbour]:
    """Every pod counts for each term it fulfils; below zero, rather apart."""
    for one in (affinity.preferred if affinity else None) or ():
        term = one.pod_affinity_term
        if term is not None and one.weight:
            yield SoftNeighbour(sign * one.weight, term.topology_key, _term_rules(pod, term, namespaces))


def _pod_terms(pod: Pod) -> list[PodAffinityTerm]:
    affinity = pod.spec.affinity
    if affinity is None:
        return []
    found: list[PodAffinityTerm] = []
    for kind in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if kind is not None:
            found += kind.required or ()
            found += [one.pod_affinity_term for one in kind.preferred or () if one.pod_affinity_term is not None]
    return found


def _term_rules(pod: Pod, term: PodAffinityTerm, namespaces: Namespaces) -> Rules:
    """Which pods a term is about."""
    rules = label_rules(term.label_selector)
    if term.label_selector is not None:
        # The API server has written these into the selector when the pod was made, unless it is an old one.
        known = {one.key for one in term.label_selector.match_expressions or ()}
        labels = {key: value for key, value in (pod.metadata.labels or {}).items() if key not in known}
        same = _taken_over(term.match_label_keys, labels, Operator.IN)
        rules = (*rules, *same, *_taken_over(term.mismatch_label_keys, labels, Operator.NOT_IN))
    chosen = _chosen_namespaces(pod, term, namespaces)
    return joined(rules) if chosen is None else joined(rules, (LabelRule(NAMESPACE, Operator.IN, chosen),))


def _taken_over(keys: Iterable[str] | None, labels: Mapping[str, str], operator: Operator) -> Rules:
    """Rules with the values a pod itself has; where it has none there is no rule."""
    return tuple(LabelRule(key, operator, (labels[key],)) for key in keys or () if key in labels)


def _selects_namespaces(term: PodAffinityTerm) -> bool:
    """Whether a term picks namespaces by their labels. An empty selector picks all, whatever their labels."""
    return term.namespace_selector is not None and label_rules(term.namespace_selector) != ()


def _chosen_namespaces(pod: Pod, term: PodAffinityTerm, namespaces: Namespaces) -> tuple[str, ...] | None:
    """The namespaces a term looks at; None means all."""
    selector = term.namespace_selector
    if selector is None:
        return tuple(sorted(set(term.namespaces or (pod.metadata.namespace,))))
    rules = label_rules(selector)
    if not rules:
        return None
    selected = {name for name, labels in namespaces.items() if accepts(rules, labels)}
    return tuple(sorted(selected.union(term.namespaces or ())))


def _spread(pod: Pod, constraint: SpreadConstraint) -> Spread:
    return Spread(
        level=constraint.topology_key,
        max_skew=constraint.max_skew,
        rules=_counted(pod, constraint),
        min_domains=constraint.min_domains or 1,
        honour_labels=constraint.node_affinity_policy in (None, HONOUR),
        honour_taints=constraint.node_taints_policy == HONOUR,
    )


def _soft_spread(pod: Pod, constraint: SpreadConstraint) -> SoftSpread:
    return SoftSpread(
        weight=SPREAD_WEIGHT,
        level=constraint.topology_key,
        rules=_counted(pod, constraint),
        honour_labels=constraint.node_affinity_policy in (None, HONOUR),
        honour_taints=constraint.node_taints_policy == HONOUR,
    )


def _counted(pod: Pod, constraint: SpreadConstraint) -> Rules:
    """Which pods are to be spread."""
    rules = label_rules(constraint.label_selector)
    if constraint.label_selector is not None:
        rules = (*rules, *_taken_over(constraint.match_label_keys, pod.metadata.labels or {}, Operator.IN))
    # Here, unlike elsewhere, an empty selector counts no pods.
    return joined(rules or (NEVER,), (LabelRule(NAMESPACE, Operator.IN, (pod.metadata.namespace,)),))


def _surroundings(pod: Pod, namespaces: Namespaces) -> tuple[object, ...]:
    """What the rules of a pod depend on beside what is written in them."""
    terms = _pod_terms(pod)
    spreads = pod.spec.topology_spread_constraints or ()
    if not terms and not spreads:
        return ()
    labels = pod.metadata.labels or {}
    keys = {key for term in terms for key in (*(term.match_label_keys or ()), *(term.mismatch_label_keys or ()))}
    keys.update(key for spread in spreads for key in spread.match_label_keys or ())
    chosen = tuple(_chosen_namespaces(pod, term, namespaces) for term in terms if _selects_namespaces(term))
    return pod.metadata.namespace, tuple((key, labels.get(key)) for key in sorted(keys)), chosen


# ----------------------------------------------------------------------------------------------------- ports and labels


def _host_ports(pod: Pod) -> tuple[HostPort, ...]:
    """The ports of its node a pod takes for as long as it runs. With the node's network they are filled in already."""
    found: list[HostPort] = []
    for container in pod.spec.containers or ():
        if container.ports:
            found.extend(_ports_of(container))
    for container in pod.spec.init_containers or ():
        if container.ports and container.restart_policy == ALWAYS:
            found.extend(_ports_of(container))
    return tuple(sorted(set(found))) if found else ()


def _ports_of(container: Container) -> Iterator[HostPort]:
    for port in container.ports or ():
        if port.host_port > 0:
            yield port.protocol or "TCP", port.host_port, port.host_ip or EVERY_ADDRESS


def _port_rules(ports: Iterable[HostPort]) -> Iterator[Neighbour]:
    """Never beside a pod that takes the same port of the same address; every address is the same as any."""
    for protocol, number, address in ports:
        port = f"{HOST_PORT}{protocol}/{number}"
        taken = [port] if address == EVERY_ADDRESS else [f"{port}/{address}", f"{port}/{EVERY_ADDRESS}"]
        for label in taken:
            yield Neighbour((), NODE, apart=True, rules=(LabelRule(label, Operator.EXISTS),), physical=True)


def _claim_rules(volume_rules: VolumeRules) -> Iterator[Neighbour]:
    """Nowhere in the cluster while another pod is there that uses the same claim."""
    for claim in volume_rules.alone:
        rules = (LabelRule(f"{CLAIM}{claim}", Operator.EXISTS),)
        yield Neighbour((), CLUSTER, apart=True, rules=rules, physical=True)


def _labels_of(pod: Pod, volume_rules: VolumeRules) -> Labels:
    labels = {**(pod.metadata.labels or {}), NAMESPACE: pod.metadata.namespace}
    for protocol, number, address in _host_ports(pod):
        labels[f"{HOST_PORT}{protocol}/{number}"] = ""
        labels[f"{HOST_PORT}{protocol}/{number}/{address}"] = ""
    for claim in volume_rules.alone:
        labels[f"{CLAIM}{claim}"] = ""
    return tuple(sorted(labels.items()))
