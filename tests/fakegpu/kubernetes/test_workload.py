"""What annotations say pods do; what cannot be read counts as busy and is told."""

from __future__ import annotations

import pytest

from gpuyard.fakegpu.kubernetes.observed import PROFILE, UTILIZATION
from gpuyard.fakegpu.kubernetes.workload import MAX_ANNOTATION_BYTES, Work, work_of
from gpuyard.fakegpu.profile import BUSY, Phase, Profile, read_profile, steady
from tests.fakegpu.kubernetes.sights import a_pod

TRAINING = Profile((Phase(3_600_000, 80, 80), Phase(3_600_000, 0, 0)), 5)
SEED = '{"phases": [{"time": "1h", "utilization": 80}, {"time": "1h", "utilization": 0}], "repeat": 5}'


def work(**annotations: str) -> Work:
    named = {"profile": PROFILE, "utilization": UTILIZATION}
    pairs = tuple((named.get(name, name), text) for name, text in annotations.items())
    return work_of(a_pod("p", annotations=pairs), {"training": TRAINING})


def test_without_a_word_a_pod_is_busy() -> None:
    assert work() == Work()
    assert Work().profile("any") == BUSY


def test_a_profile_by_its_phases_or_by_its_name() -> None:
    assert work(profile=SEED).usual == TRAINING
    assert work(profile="training").usual == TRAINING
    assert work(profile="[{utilization: 10-30}]").usual == read_profile("[{utilization: 10-30}]")


def test_one_container_may_do_something_else() -> None:
    found = work(**{PROFILE: "training", f"{PROFILE}.side": "[{utilization: 5}]"})
    assert found.profile("main") == TRAINING
    assert found.profile("side") == steady(5)


@pytest.mark.parametrize(
    ("text", "low", "high"), [("10-30", 10, 30), ("80", 80, 80), (" 0 - 100 ", 0, 100), ("7%", 7, 7)]
)
def test_the_older_annotation(text: str, low: int, high: int) -> None:
    assert work(utilization=text).usual == Profile((Phase(None, low, high),))


def test_ours_comes_before_the_older_one() -> None:
    assert work(profile="training", utilization="10").usual == TRAINING
    found = work(profile="nonsense: [", utilization="10")
    assert found.usual == steady(10)
    assert len(found.mistakes) == 1


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"profile": "trainin"}, 'called "trainin"; did you mean "training"?'),
        ({"profile": "[{time: soon}]"}, "soon"),
        ({"profile": "[{utilization: 180}]"}, "180"),
        ({"profile": "7"}, 'called "7"'),
        ({"profile": ""}, "profile"),
        ({"profile": "[" + " " * MAX_ANNOTATION_BYTES}, "longer than 64 KiB"),
        ({"utilization": "30-10"}, '"30-10" is neither'),
        ({"utilization": "101"}, "neither"),
        ({"utilization": "much"}, "neither"),
        ({"utilization": ""}, "neither"),
    ],
)
def test_what_cannot_be_read_counts_as_busy_and_says_why(annotations: dict[str, str], words: str) -> None:
    found = work(**annotations)
    assert found.usual == BUSY
    assert words in str(found.mistakes[0])
    assert "count as fully busy" in str(found.mistakes[0])
    assert "\n" not in str(found.mistakes[0])
