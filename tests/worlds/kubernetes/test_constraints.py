"""Where pods may run. Rules are tried out on labels, as the scheduler does; kube-scheduler's plugins agree."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpuyard.errors import InputError
from gpuyard.model.jobs import (
    DESPITE_CORDON,
    LabelRule,
    Neighbour,
    Operator,
    Preference,
    SoftNeighbour,
    SoftSpread,
    Spread,
    Toleration,
    Where,
)
from gpuyard.model.nodes import Node
from gpuyard.scheduler.eligibility import may_use
from gpuyard.worlds.kubernetes.constraints import NAMESPACE, Translator, follows_namespaces, where_of
from gpuyard.worlds.kubernetes.nodes import node_of
from gpuyard.worlds.kubernetes.objects import Pod
from gpuyard.worlds.kubernetes.requests import AMD, Asked, asked_by
from gpuyard.worlds.kubernetes.selectors import NEVER, accepts
from gpuyard.worlds.kubernetes.volumes import FREE, VolumeRules
from tests.worlds.kubernetes.parts import a_container, a_node, a_pod

SPACES: dict[str, dict[str, str]] = {"default": {"team": "t"}, "web": {"team": "u"}, "other": {}}
HERE = LabelRule(NAMESPACE, Operator.IN, ("default",))


def where(pod: Pod, volume_rules: VolumeRules = FREE) -> Where:
    return where_of(pod, asked_by(pod), volume_rules, SPACES)


def may_run(pod: Pod, labels: dict[str, str], volume_rules: VolumeRules = FREE) -> bool:
    return may_use(Node("n", labels=labels), where(pod, volume_rules))


def given(written: dict[str, str]) -> tuple[Toleration, ...]:
    """What is read of a toleration somebody has given a pod, but for what it says of cordoned nodes."""
    read = where(a_pod(containers=[a_container(gpu="1")], tolerations=[written])).tolerations
    return tuple(one for one in read if one != DESPITE_CORDON)


def on(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def requiring(*terms: list[dict[str, Any]], **fields: Any) -> Pod:
    written = [{"matchExpressions": term} for term in terms]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": written}}
    return a_pod(affinity={"nodeAffinity": required}, **fields)


# ---------------------------------------------------------------------------------------------------------------- nodes


def test_a_plain_pod_runs_anywhere() -> None:
    assert where(a_pod(containers=[a_container(gpu="1")])) == Where()


def test_selector_and_affinity_must_both_hold_and_one_term_is_enough() -> None:
    pod = requiring([on("zone", "In", "a")], [on("gpu", "Exists")], nodeSelector={"disk": "ssd"})
    assert may_run(pod, {"disk": "ssd", "zone": "a"})
    assert may_run(pod, {"disk": "ssd", "gpu": ""})
    assert not may_run(pod, {"disk": "ssd", "zone": "b"})
    assert not may_run(pod, {"zone": "a"})


def test_an_affinity_without_readable_terms_fits_no_node() -> None:
    assert where(requiring()).any_of == ((NEVER,),)
    assert where(requiring([])).any_of == ((NEVER,),)
    assert not may_run(requiring(), {"zone": "a"})


def test_volumes_narrow_it_further() -> None:
    rules = VolumeRules(((LabelRule("zone", Operator.IN, ("a",)),), (LabelRule("zone", Operator.IN, ("b",)),)))
    pod = requiring([on("zone", "In", "b", "c")])
    assert [zone for zone in "abc" if may_run(pod, {"zone": zone}, rules)] == ["b"]
    assert not may_run(a_pod(), {"zone": "a"}, VolumeRules(()))


def test_too_many_ways_are_refused_with_the_reason() -> None:
    pod = requiring(*([on(f"k{at}", "Exists")] for at in range(20)))
    rules = VolumeRules(tuple((LabelRule(f"v{at}", Operator.EXISTS),) for at in range(20)))
    with pytest.raises(InputError, match="more than 256 ways"):
        where(pod, rules)


def test_a_pod_for_one_node_by_its_name() -> None:
    fields = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    pod = a_pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}})
    assert may_run(pod, node_of(a_node("n1"), None).labels)
    assert not may_run(pod, node_of(a_node("n2"), None).labels)


def test_gpus_of_one_maker_are_of_no_use_to_a_pod_of_the_other() -> None:
    amd = node_of(a_node(allocatable={"amd.com/gpu": "8"}), None)
    nvidia = node_of(a_node(allocatable={"nvidia.com/gpu": "8"}), None)
    asking = [{"nvidia.com/gpu": "1"}, {AMD: "1"}, {"cpu": "1"}]
    wishes = [where(a_pod(containers=[a_container(limits=limits)])) for limits in asking]
    assert [may_use(nvidia, wish) for wish in wishes] == [True, False, True]
    assert [may_use(amd, wish) for wish in wishes] == [False, True, True]


def test_preferences_that_say_nothing_are_left_out() -> None:
    good = {"matchExpressions": [on("zone", "In", "a")]}
    preferred = [
        {"weight": 50, "preference": good},
        {"weight": 0, "preference": good},
        {"weight": 10, "preference": {}},
        {"weight": 10, "preference": {"matchExpressions": [on("num", "Gt", "x")]}},
    ]
    pod = a_pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}})
    assert where(pod).preferences == (Preference(50, (LabelRule("zone", Operator.IN, ("a",)),)),)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, Toleration("k", None, "NoExecute")),
        ({"key": "k", "value": "v"}, Toleration("k", "v", "")),
        ({"key": "k", "operator": "Equal"}, Toleration("k", "", "")),
        ({"operator": "Exists"}, Toleration("", None, "")),
    ],
)
def test_tolerations(written: dict[str, str], read: Toleration) -> None:
    assert given(written) == (read,)


def test_a_toleration_with_an_unknown_operator_tolerates_nothing() -> None:
    assert given({"key": "k", "operator": "Gt", "value": "5"}) == ()


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "node.kubernetes.io/unschedulable", "value": "x"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
@pytest.mark.parametrize("tainted", [True, False])
def test_a_cordoned_node_takes_pods_that_tolerate_it(toleration: dict[str, str], expected: bool, tainted: bool) -> None:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    node = node_of(a_node(unschedulable=True, taints=[taint] if tainted else []), None)
    assert may_use(node, where(a_pod(tolerations=[toleration]))) == expected
    assert not may_use(replace(node, ready=False), where(a_pod(tolerations=[toleration])))


# ----------------------------------------------------------------------------------------------------------- other pods


def term(selector: dict[str, Any] | None, level: str = "zone", **more: Any) -> dict[str, Any]:
    return {"topologyKey": level, **({} if selector is None else {"labelSelector": selector}), **more}


def beside(*terms: dict[str, Any], **fields: Any) -> tuple[Neighbour, ...]:
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}
    return where(a_pod(affinity=affinity, **fields)).neighbours


def apart(*terms: dict[str, Any], **fields: Any) -> tuple[Neighbour, ...]:
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}
    return where(a_pod(affinity=affinity, **fields)).neighbours


APP_X = {"matchLabels": {"app": "x"}}
IS_X = LabelRule("app", Operator.IN, ("x",))


def test_a_term_is_about_pods_of_its_own_namespace() -> None:
    assert beside(term(APP_X)) == (Neighbour((), "zone", rules=(IS_X, HERE)),)
    assert apart(term(APP_X)) == (Neighbour((), "zone", apart=True, rules=(IS_X, HERE)),)


def test_only_a_pod_that_fulfils_all_terms_counts() -> None:
    is_y = LabelRule("tier", Operator.IN, ("y",))
    rules = (IS_X, HERE, is_y)
    terms = (term(APP_X), term({"matchLabels": {"tier": "y"}}, "rack"))
    assert beside(*terms) == (Neighbour((), "zone", rules=rules), Neighbour((), "rack", rules=rules))
    assert [one.rules for one in apart(*terms)] == [(IS_X, HERE), (HERE, is_y)]


def test_no_selector_is_about_no_pod_and_an_empty_one_about_all() -> None:
    (nobody,) = apart(term(None))
    assert not accepts(nobody.rules, {NAMESPACE: "default"})
    (everybody,) = apart(term({}))
    assert everybody.rules == (HERE,)


@pytest.mark.parametrize(
    ("more", "spaces"),
    [
        ({"namespaces": ["web", "default", "web"]}, ("default", "web")),
        ({"namespaceSelector": {"matchLabels": {"team": "u"}}}, ("web",)),
        ({"namespaceSelector": {"matchLabels": {"team": "u"}}, "namespaces": ["gone"]}, ("gone", "web")),
        ({"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}}, ("other",)),
        ({"namespaceSelector": {"matchLabels": {"team": "nobody"}}}, ()),
    ],
)
def test_which_namespaces_a_term_looks_at(more: dict[str, Any], spaces: tuple[str, ...]) -> None:
    (neighbour,) = apart(term(APP_X, **more))
    assert neighbour.rules == (IS_X, LabelRule(NAMESPACE, Operator.IN, spaces))


def test_an_empty_namespace_selector_looks_at_all_of_them() -> None:
    (neighbour,) = apart(term(APP_X, namespaceSelector={}, namespaces=["web"]))
    assert neighbour.rules == (IS_X,)


def test_whether_a_pod_follows_namespaces() -> None:
    def follows(more: dict[str, Any]) -> bool:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [term(APP_X, **more)]}
        preferred = rather((1, term(APP_X, **more)))
        found = {follows_namespaces(a_pod(affinity={"podAffinity": kind})) for kind in (required, preferred)}
        return found == {True}

    assert follows({"namespaceSelector": {"matchLabels": {"team": "u"}}})
    assert not follows({"namespaceSelector": {}})
    assert not follows({"namespaces": ["web"]})
    assert not follows_namespaces(a_pod())


def test_values_a_term_takes_over_from_the_pod_itself() -> None:
    labels = {"ver": "2", "tenant": "t"}
    written = term(APP_X, matchLabelKeys=["ver", "missing"], mismatchLabelKeys=["tenant"])
    (neighbour,) = apart(written, labels=labels)
    taken = (LabelRule("tenant", Operator.NOT_IN, ("t",)), LabelRule("ver", Operator.IN, ("2",)))
    assert neighbour.rules == (IS_X, HERE, *taken)


def test_what_the_api_server_has_already_taken_over_stays_as_it_was() -> None:
    merged = {"matchExpressions": [{"key": "ver", "operator": "In", "values": ["1"]}]}
    (neighbour,) = apart(term(merged, matchLabelKeys=["ver"]), labels={"ver": "2"})
    assert neighbour.rules == (HERE, LabelRule("ver", Operator.IN, ("1",)))


# ---------------------------------------------------------------------------------------------------- preferred company


def rather(*terms: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    written = [{"weight": weight, "podAffinityTerm": term} for weight, term in terms]
    return {"preferredDuringSchedulingIgnoredDuringExecution": written}


def soft(affinity: dict[str, Any], **fields: Any) -> tuple[SoftNeighbour, ...]:
    found = where(a_pod(affinity=affinity, **fields))
    assert found.neighbours == ()
    return found.soft_neighbours


def test_preferred_company_counts_by_its_weight_and_against_it_below_zero() -> None:
    is_y = LabelRule("tier", Operator.IN, ("y",))
    near = rather((30, term(APP_X)), (1, term({"matchLabels": {"tier": "y"}}, "rack")))
    apart_from = rather((100, term(APP_X, "kubernetes.io/hostname")))
    assert soft({"podAffinity": near, "podAntiAffinity": apart_from}) == (
        SoftNeighbour(30, "zone", (IS_X, HERE)),
        SoftNeighbour(1, "rack", (HERE, is_y)),
        SoftNeighbour(-100, "kubernetes.io/hostname", (IS_X, HERE)),
    )


def test_preferred_company_without_weight_or_term_is_left_out() -> None:
    empty = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5}]}
    assert soft({"podAffinity": rather((0, term(APP_X))), "podAntiAffinity": empty}) == ()


def test_preferred_company_is_chosen_like_required() -> None:
    more: dict[str, Any] = {"namespaceSelector": {"matchLabels": {"team": "u"}}, "namespaces": ["gone"]}
    written = term(APP_X, matchLabelKeys=["ver"], mismatchLabelKeys=["tenant"], **more)
    (found,) = soft({"podAntiAffinity": rather((7, written))}, labels={"ver": "2", "tenant": "t"})
    (required,) = apart(written, labels={"ver": "2", "tenant": "t"})
    assert found == SoftNeighbour(-7, "zone", required.rules)


def test_required_and_preferred_company_stand_beside_each_other() -> None:
    both = {"requiredDuringSchedulingIgnoredDuringExecution": [term(APP_X, "rack")], **rather((2, term(APP_X)))}
    found = where(a_pod(affinity={"podAffinity": both}))
    assert found.neighbours == (Neighbour((), "rack", rules=(IS_X, HERE)),)
    assert found.soft_neighbours == (SoftNeighbour(2, "zone", (IS_X, HERE)),)


# ------------------------------------------------------------------------------------------------------------ spreading


def spreading(**fields: Any) -> Where:
    labels = {"labels": fields.pop("labels")} if "labels" in fields else {}
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", **fields}
    return where(a_pod(topologySpreadConstraints=[constraint], **labels))


def spread(**fields: Any) -> tuple[Spread, ...]:
    return spreading(**fields).spreads


def test_spreading_over_zones() -> None:
    assert spread(labelSelector=APP_X) == (Spread("zone", 1, (IS_X, HERE)),)


def test_all_the_ways_to_spread() -> None:
    found = spread(labelSelector=APP_X, maxSkew=2, minDomains=3, nodeAffinityPolicy="Ignore", nodeTaintsPolicy="Honor")
    assert found == (Spread("zone", 2, (IS_X, HERE), min_domains=3, honour_labels=False, honour_taints=True),)


def test_spreading_that_is_only_wished_for_binds_nobody() -> None:
    anyway = spreading(labelSelector=APP_X, whenUnsatisfiable="ScheduleAnyway", maxSkew=5)
    assert (anyway.spreads, anyway.soft_spreads) == ((), (SoftSpread(100, "zone", (IS_X, HERE)),))
    policies = {"nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"}
    (found,) = spreading(labelSelector=APP_X, whenUnsatisfiable="ScheduleAnyway", **policies).soft_spreads
    assert found == SoftSpread(100, "zone", (IS_X, HERE), honour_labels=False, honour_taints=True)
    unknown = spreading(labelSelector=APP_X, whenUnsatisfiable="Sometime")
    assert (unknown.spreads, unknown.soft_spreads) == ((), ())


@pytest.mark.parametrize("selector", [{}, None])
def test_here_an_empty_selector_counts_no_pods(selector: dict[str, Any] | None) -> None:
    (found,) = spread(**({} if selector is None else {"labelSelector": selector}))
    assert not accepts(found.rules, {NAMESPACE: "default"})


def test_each_version_is_spread_by_itself() -> None:
    (found,) = spread(labelSelector=APP_X, matchLabelKeys=["ver", "missing"], labels={"ver": "2"})
    assert found.rules == (IS_X, HERE, LabelRule("ver", Operator.IN, ("2",)))
    (alone,) = spread(labelSelector={}, matchLabelKeys=["ver"], labels={"ver": "2"})
    assert alone.rules == (HERE, LabelRule("ver", Operator.IN, ("2",)))


# ----------------------------------------------------------------------------------------------------------- host ports


def taking(*ports: tuple[int, str], protocol: str = "TCP", **container: Any) -> Pod:
    written = [{"hostPort": number, "hostIP": address, "protocol": protocol} for number, address in ports]
    return a_pod(containers=[{"name": "c", "ports": written, **container}])


def collide(one: Pod, other: Pod) -> bool:
    """Whether the rules of one keep it from where the other is."""
    labels = dict(Translator().labels(other))
    neighbours = where(one).neighbours
    assert all(rule.apart and rule.level == "hostname" for rule in neighbours)
    return any(accepts(rule.rules, labels) for rule in neighbours)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (taking((80, "")), taking((80, "")), True),
        (taking((80, "")), taking((81, "")), False),
        (taking((80, "")), taking((80, ""), protocol="UDP"), False),
        (taking((80, "10.0.0.1")), taking((80, "10.0.0.2")), False),
        (taking((80, "10.0.0.1")), taking((80, "10.0.0.1")), True),
        (taking((80, "10.0.0.1")), taking((80, "0.0.0.0")), True),
        (taking((80, "")), taking((80, "10.0.0.1"), (80, "10.0.0.2")), True),
        (taking((80, "10.0.0.2")), taking((80, "10.0.0.1"), (80, "10.0.0.2")), True),
        (taking((80, "10.0.0.3")), taking((80, "10.0.0.1"), (80, "10.0.0.2")), False),
        (taking((80, "::")), taking((80, "10.0.0.1")), False),
        (taking((0, "")), taking((0, "")), False),
    ],
)
def test_ports_of_the_node(one: Pod, other: Pod, expected: bool) -> None:
    assert collide(one, other) is expected
    assert collide(other, one) is expected


def test_ports_of_sidecars_count_and_those_of_init_containers_do_not() -> None:
    port = {"ports": [{"hostPort": 80}]}
    plain = taking((80, ""))
    assert collide(plain, a_pod(initContainers=[{"name": "s", "restartPolicy": "Always", **port}]))
    assert not collide(plain, a_pod(initContainers=[{"name": "i", **port}]))


# ----------------------------------------------------------------------------------------------------------- translator


def test_labels_of_a_pod_with_its_namespace() -> None:
    pod = a_pod(labels={"z": "1", "app": "x"}, namespace="web")
    assert Translator().labels(pod) == (("app", "x"), (NAMESPACE, "web"), ("z", "1"))
    assert Translator().labels(a_pod()) == ((NAMESPACE, "default"),)


def test_equal_content_gives_the_same_object() -> None:
    translator = Translator()

    def translated(name: str, order: int, **fields: Any) -> tuple[object, object]:
        selector = dict([("a", "1"), ("b", "2")][::order])
        pod = a_pod(name, labels={"app": "x"}, nodeSelector=selector, containers=[a_container(gpu="1")], **fields)
        return translator.request(pod, asked_by(pod), FREE, SPACES), translator.labels(pod)

    first, second = translated("p", 1), translated("q", -1)
    assert first[0] is second[0]
    assert first[1] is second[1]
    other = translated("r", 1, tolerations=[{"key": "k"}])
    assert other[0] is not first[0]
    assert other[1] is first[1]


def test_a_request_carries_all_that_is_asked_for() -> None:
    asked = Asked(500, 1 << 30, 2, mig=(("1g.10gb", 1),), other=(("example.com/x", 1),))
    request = Translator().request(a_pod(nodeSelector={"a": "1"}), asked, FREE, SPACES)
    assert (request.cpu_milli, request.memory_bytes, request.devices) == (500, 1 << 30, 2)
    assert (request.mig, request.other) == ((("1g.10gb", 1),), (("example.com/x", 1),))
    assert request.whole


def test_the_same_words_mean_something_else_in_another_namespace_or_with_other_labels() -> None:
    translator = Translator()

    def rules(**fields: Any) -> tuple[Neighbour, ...]:
        terms = [term(APP_X, matchLabelKeys=["ver"])]
        affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        return translator.request(a_pod(affinity=affinity, **fields), Asked(), FREE, SPACES).where.neighbours

    assert rules() != rules(namespace="web")
    assert rules() != rules(labels={"ver": "1"})
    assert rules(labels={"ver": "1"}) != rules(labels={"ver": "2"})
    assert rules(labels={"other": "1"}) == rules()


def test_when_namespaces_change_so_do_the_rules_about_them() -> None:
    translator = Translator()
    selector = {"matchLabels": {"team": "u"}}
    terms = [term(APP_X, namespaceSelector=selector)]
    pod = a_pod(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
    before = translator.request(pod, Asked(), FREE, SPACES).where
    assert translator.request(pod, Asked(), FREE, {**SPACES, "more": {}}).where is before
    after = translator.request(pod, Asked(), FREE, {**SPACES, "more": {"team": "u"}}).where
    assert after.neighbours[0].rules == (IS_X, LabelRule(NAMESPACE, Operator.IN, ("more", "web")))


def test_what_is_preferred_changes_with_labels_and_namespaces_as_well() -> None:
    translator = Translator()
    written = term(APP_X, matchLabelKeys=["ver"], namespaceSelector={"matchLabels": {"team": "u"}})

    def rules(spaces: dict[str, dict[str, str]], **labels: str) -> tuple[SoftNeighbour, ...]:
        pod = a_pod(affinity={"podAffinity": rather((1, written))}, labels=labels)
        return translator.request(pod, Asked(), FREE, spaces).where.soft_neighbours

    assert rules(SPACES, ver="1") != rules(SPACES, ver="2")
    assert rules(SPACES, ver="1") != rules({**SPACES, "more": {"team": "u"}}, ver="1")


def test_what_is_remembered_is_bounded() -> None:
    translator = Translator(remembered=50)
    for number in range(1000):
        pod = a_pod(nodeSelector={"job": str(number)}, labels={"job": str(number)})
        translator.request(pod, Asked(), FREE, SPACES)
        translator.labels(pod)
    assert len(translator) <= 5 * 2 * 50
