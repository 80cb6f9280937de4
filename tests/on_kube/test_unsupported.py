"""Objects that are not acted on are told so, whatever stands in their status."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.kube.unsupported import KINDS, TYPE, _told_status


@pytest.mark.parametrize("conditions", [None, 7, "x", {"a": 1}, [], [7, None]])
def test_conditions_of_any_shape_are_survived(conditions: Any) -> None:
    told = _told_status(KINDS[0], {"conditions": conditions})
    assert told is not None
    assert [one["type"] for one in told["conditions"]] == [TYPE]


def test_conditions_of_others_stay_and_one_is_told_once() -> None:
    told = _told_status(KINDS[0], {"conditions": [{"type": "Ready"}]})
    assert told is not None
    assert [one["type"] for one in told["conditions"]] == ["Ready", TYPE]
    assert _told_status(KINDS[0], told) is None
