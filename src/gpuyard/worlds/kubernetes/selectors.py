"""Selectors of Kubernetes as rules of the model, read as kube-scheduler reads them.

Place in the flow: objects ─**selectors**─▶ constraints, volumes. Pure. Invariant: whatever Kubernetes cannot read in a
term makes that term match nothing, as there.

A *rule* is one condition, *rules* must all hold, of *alternatives* one must hold (none: nothing will do).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gpuyard.errors import InputError
from gpuyard.model.jobs import LabelRule, Operator
from gpuyard.model.nodes import OWN_LABEL
from gpuyard.worlds.kubernetes.objects import Expression, LabelSelector, NodeSelector, NodeTerm

NAME: Final = f"{OWN_LABEL}name"
"""The name of a node as a label of it. No label of Kubernetes has a colon, so nobody can set it."""
CLUSTER: Final = f"{OWN_LABEL}cluster"
"""A label that all nodes have alike: the level at which nothing is apart."""
GPU: Final = f"{OWN_LABEL}gpu"
"""Label and taint of nodes whose GPUs are not NVIDIA's: the resource they are offered as."""

Rules = tuple[LabelRule, ...]
Alternatives = tuple[Rules, ...]

NEVER: Final = LabelRule(NAME, Operator.IN, ())
"""What no label fulfils."""
ANYTHING: Final[Alternatives] = ((),)

MAX_ALTERNATIVES: Final = 256
"""Ways to fulfil the node affinity of a pod and the demands of its volumes at once."""

_OPERATORS: Final = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.MISSING,
    "Gt": Operator.GREATER,
    "Lt": Operator.LESS,
}
_OF_SETS: Final = (Operator.IN, Operator.NOT_IN)
_OF_PRESENCE: Final = (Operator.EXISTS, Operator.MISSING)
_WORD: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_VALUE: Final = re.compile(rf"(?:{_WORD})?", re.ASCII)
_KEY: Final = re.compile(rf"(?:(?=[^/]{{1,253}}/)[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?{_WORD}", re.ASCII)
_LARGEST_NUMBER: Final = (1 << 63) - 1


# ---------------------------------------------------------------------------------------------------------------- nodes


def node_alternatives(selector: NodeSelector) -> Alternatives:
    """The terms of a node selector; one that is empty matches nothing."""
    read = [node_rules(term) for term in selector.node_selector_terms or ()]
    return _simplest([rules for rules in read if rules is not None])


def node_rules(term: NodeTerm | None) -> Rules | None:
    """One term of a node selector; None where it matches nothing."""
    if term is None or not (term.match_expressions or term.match_fields):
        return None
    rules = [_node_rule(one) for one in term.match_expressions or ()]
    return _all([*rules, *(_field_rule(one) for one in term.match_fields or ())])


def _node_rule(expression: Expression) -> LabelRule | None:
    operator = _OPERATORS.get(expression.operator)
    values = expression.values or []
    if operator is None or not _KEY.fullmatch(expression.key) or not all(map(_VALUE.fullmatch, values)):
        return None
    if operator in _OF_SETS:
        return _set_rule(expression.key, operator, values) if values else None
    if operator in _OF_PRESENCE:
        return None if values else LabelRule(expression.key, operator)
    is_number = len(values) == 1 and values[0].isdecimal() and int(values[0]) <= _LARGEST_NUMBER
    return LabelRule(expression.key, operator, (values[0],)) if is_number else None


def _field_rule(expression: Expression) -> LabelRule | None:
    operator = _OPERATORS.get(expression.operator)
    values = expression.values or []
    if expression.key != "metadata.name" or operator not in _OF_SETS or len(values) != 1:
        return None
    return LabelRule(NAME, operator, (values[0],))


# --------------------------------------------------------------------------------------------------------------- labels


def label_rules(selector: LabelSelector | None) -> Rules:
    """A selector of pods or namespaces: none selects nothing, an empty one everything."""
    if selector is None:
        return (NEVER,)
    equal = [LabelRule(key, Operator.IN, (value,)) for key, value in (selector.match_labels or {}).items()]
    rules = _all([*equal, *(_label_rule(one) for one in selector.match_expressions or ())])
    return (NEVER,) if rules is None else rules


def _label_rule(expression: Expression) -> LabelRule | None:
    operator = _OPERATORS.get(expression.operator)
    values = expression.values or []
    if operator in _OF_SETS:
        return _set_rule(expression.key, operator, values) if values else None
    return LabelRule(expression.key, operator) if operator in _OF_PRESENCE and not values else None


def accepts(rules: Rules, labels: dict[str, str]) -> bool:
    return all(rule.accepts(labels) for rule in rules)


# ----------------------------------------------------------------------------------------------------------- in general


def both(*parts: Alternatives) -> Alternatives:
    """Alternatives that fulfil all of several; InputError where there are too many to be looked at."""
    found = ANYTHING
    for part in parts:
        if len(found) * len(part) > MAX_ALTERNATIVES:
            raise InputError(
                f"its node affinity and its volumes can be fulfilled in more than {MAX_ALTERNATIVES} ways, "
                "which are too many to be looked at",
                fix="write fewer terms, with more values each",
            )
        found = _simplest([joined(left, right) for left in found for right in _simplest(list(part))])
    return found


def either(*parts: Alternatives) -> Alternatives:
    """Alternatives that fulfil one of several."""
    return _simplest([rules for part in parts for rules in part])


def _simplest(alternatives: list[Rules]) -> Alternatives:
    """The same in fewer words: names of places in one rule, and nothing that another alternative already allows."""
    places: dict[str, set[str]] = {}
    kept: list[Rules] = []
    for rules in {joined(each) for each in alternatives}:
        if len(rules) == 1 and rules[0].operator is Operator.IN:
            places.setdefault(rules[0].key, set()).update(rules[0].values)
        else:
            kept.append(rules)
    kept += [(_set_rule(key, Operator.IN, values),) for key, values in places.items()]
    kept.sort(key=lambda rules: (len(rules), [_order(rule) for rule in rules]))
    if len(kept) > MAX_ALTERNATIVES:
        # They will be refused: not worth the pains.
        return tuple(kept)
    return tuple(rules for at, rules in enumerate(kept) if not any(set(kept[i]) <= set(rules) for i in range(at)))


def joined(*rules: Rules) -> Rules:
    """All of several rules, in an order that does not depend on how they were written."""
    return tuple(sorted({rule for some in rules for rule in some}, key=_order))


def _order(rule: LabelRule) -> tuple[str, str, tuple[str, ...]]:
    return rule.key, rule.operator.value, rule.values


def _set_rule(key: str, operator: Operator, values: Iterable[str]) -> LabelRule:
    return LabelRule(key, operator, tuple(sorted(set(values))))


def _all(rules: list[LabelRule | None]) -> Rules | None:
    known = [rule for rule in rules if rule is not None]
    return joined(tuple(known)) if len(known) == len(rules) else None
