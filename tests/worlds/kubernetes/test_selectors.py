"""Selectors read as kube-scheduler reads them; the odd cases were compared with its own library."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.errors import InputError
from gpuyard.model.jobs import LabelRule, Operator
from gpuyard.worlds.kubernetes.objects import LabelSelector, NodeSelector
from gpuyard.worlds.kubernetes.selectors import (
    ANYTHING,
    MAX_ALTERNATIVES,
    NAME,
    NEVER,
    Alternatives,
    accepts,
    both,
    either,
    label_rules,
    node_alternatives,
)
from tests.worlds.kubernetes.parts import decoded

NODE = {"zone": "a", "disk": "ssd", "num": "5", NAME: "n1"}


def matches(*terms: dict[str, Any], labels: dict[str, str] = NODE) -> bool:
    found = node_alternatives(decoded(NodeSelector, {"nodeSelectorTerms": list(terms)}))
    return any(accepts(rules, labels) for rules in found)


def on(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def named(operator: str, *values: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (on("zone", "In", "a", "b"), True),
        (on("zone", "In", "b"), False),
        (on("gone", "In", "a"), False),
        (on("zone", "NotIn", "b"), True),
        (on("zone", "NotIn", "a"), False),
        (on("gone", "NotIn", "a"), True),
        (on("zone", "Exists"), True),
        (on("gone", "Exists"), False),
        (on("zone", "DoesNotExist"), False),
        (on("gone", "DoesNotExist"), True),
        (on("num", "Gt", "4"), True),
        (on("num", "Gt", "5"), False),
        (on("num", "Lt", "0010"), True),
        (on("num", "Lt", "5"), False),
        (on("gone", "Gt", "0"), False),
        (on("zone", "Gt", "0"), False),
        (named("In", "n1"), True),
        (named("In", "n2"), False),
        (named("NotIn", "n2"), True),
    ],
)
def test_operators_of_nodes(term: dict[str, Any], expected: bool) -> None:
    assert matches(term) is expected


@pytest.mark.parametrize(
    "term",
    [
        {},
        {"matchExpressions": []},
        on("zone", "In"),
        on("gone", "NotIn"),
        on("zone", "Exists", "a"),
        on("gone", "DoesNotExist", "a"),
        on("num", "Gt", "-1"),
        on("num", "Gt", "1", "2"),
        on("num", "Gt"),
        on("num", "Lt", "99999999999999999999"),
        on("num", "Lt", "many"),
        on("gone", "NotIn", "bad value"),
        on("gone", "NotIn", "x" * 64),
        on("bad key!", "DoesNotExist"),
        on("gone", "Odd", "a"),
        named("In", "n1", "n2"),
        named("Exists"),
        {"matchFields": [{"key": "spec.unschedulable", "operator": "In", "values": ["n1"]}]},
    ],
)
def test_a_term_kubernetes_cannot_read_matches_nothing_and_spoils_no_other(term: dict[str, Any]) -> None:
    assert not matches(term)
    assert matches(term, on("zone", "Exists"))


def test_a_label_that_is_no_number_of_64_bits_is_neither_greater_nor_less() -> None:
    for number in ("99999999999999999999", "x", "1.5", ""):
        assert not matches(on("num", "Gt", "3"), labels={"num": number})
        assert not matches(on("num", "Lt", "3"), labels={"num": number})


def test_a_selector_without_terms_matches_nothing() -> None:
    assert not matches()


def test_expressions_and_fields_of_one_term_must_all_hold() -> None:
    assert matches({**on("zone", "In", "a"), **named("In", "n1")})
    assert not matches({**on("zone", "In", "b"), **named("In", "n1")})


def test_a_key_may_have_a_prefix() -> None:
    assert matches(on("example.com/zone", "DoesNotExist"))
    assert not matches(on("Example.com/zone", "DoesNotExist"))
    assert not matches(on("a/b/zone", "DoesNotExist"))


# --------------------------------------------------------------------------------------------------------------- labels


def test_no_selector_selects_nothing_and_an_empty_one_everything() -> None:
    assert label_rules(None) == (NEVER,)
    assert not accepts(label_rules(None), {"app": "x"})
    assert label_rules(LabelSelector()) == ()


def test_a_selector_of_pods() -> None:
    expressions = [{"key": "tier", "operator": "NotIn", "values": ["db"]}, {"key": "app", "operator": "Exists"}]
    rules = label_rules(decoded(LabelSelector, {"matchLabels": {"app": "x"}, "matchExpressions": expressions}))
    assert accepts(rules, {"app": "x"})
    assert not accepts(rules, {"app": "x", "tier": "db"})
    assert not accepts(rules, {"tier": "web"})


def test_a_selector_of_pods_knows_no_numbers() -> None:
    expressions = [{"key": "n", "operator": "Gt", "values": ["1"]}]
    assert label_rules(decoded(LabelSelector, {"matchExpressions": expressions})) == (NEVER,)


# --------------------------------------------------------------------------------------------------------- alternatives


def rule(key: str, *values: str) -> LabelRule:
    return LabelRule(key, Operator.IN, values)


def test_alternatives_of_one_label_become_one_rule() -> None:
    names: Alternatives = tuple((rule(NAME, f"n{number}"),) for number in range(1000))
    assert len(either(names)) == 1
    assert accepts(either(names)[0], {NAME: "n999"})


def test_what_another_alternative_allows_is_left_out() -> None:
    assert either(((rule("a", "1"),), (rule("a", "1"), rule("b", "2")))) == ((rule("a", "1"),),)
    assert either(((rule("a", "1"),),), ANYTHING) == ANYTHING


def test_too_many_alternatives_are_refused_with_the_limit() -> None:
    twenty: Alternatives = tuple((rule("a", str(n)), rule("b", str(n))) for n in range(20))
    others: Alternatives = tuple((rule("c", str(n)), rule("d", str(n))) for n in range(20))
    with pytest.raises(InputError, match=f"more than {MAX_ALTERNATIVES} ways"):
        both(twenty, others)


rules = st.lists(
    st.builds(
        LabelRule,
        st.sampled_from("kl"),
        st.sampled_from([Operator.IN, Operator.NOT_IN]),
        st.sampled_from([("1",), ("1", "2"), ()]),
    ),
    max_size=2,
).map(tuple)
alternatives = st.lists(rules, max_size=3).map(tuple)
labels = st.dictionaries(st.sampled_from("kl"), st.sampled_from("123"))


def holds(found: Alternatives, of: dict[str, str]) -> bool:
    return any(accepts(one, of) for one in found)


@given(alternatives, alternatives, labels)
def test_both_and_either_mean_what_they_say(left: Alternatives, right: Alternatives, of: dict[str, str]) -> None:
    assert holds(both(left, right), of) is (holds(left, of) and holds(right, of))
    assert holds(either(left, right), of) is (holds(left, of) or holds(right, of))


@given(alternatives, alternatives)
def test_the_order_in_which_things_are_written_makes_no_difference(left: Alternatives, right: Alternatives) -> None:
    assert both(left, right) == both(right, left)
    assert either(left, right) == either(right, left)
