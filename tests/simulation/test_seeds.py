"""Crashes and lost messages, simulated: whatever a seed brings about, no invariant is broken.

A seed that fails is replayed with its whole story by `python -m tests.simulation SEED --trace`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.world import Cluster

GROUPS = 10
SEEDS_PER_GROUP = 5
LONG_GROUPS = 40
LONG_SEEDS_PER_GROUP = 50
ROOT = Path(__file__).parents[2]
DOCUMENTED = frozenset(re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/simulation.md").read_text(), re.MULTILINE))


def run(seed: int) -> None:
    cluster = Cluster(seed)
    try:
        cluster.run()
    except Exception as error:
        story = "\n".join(cluster.story.last)
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{story}") from error
    assert set(cluster.story.faults) <= DOCUMENTED


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_no_seed_breaks_an_invariant(group: int) -> None:
    for seed in range(group * SEEDS_PER_GROUP, (group + 1) * SEEDS_PER_GROUP):
        run(seed)


@pytest.mark.long
@pytest.mark.parametrize("group", range(LONG_GROUPS))
def test_no_seed_of_many_breaks_an_invariant(group: int) -> None:
    for seed in range(10_000 + group * LONG_SEEDS_PER_GROUP, 10_000 + (group + 1) * LONG_SEEDS_PER_GROUP):
        run(seed)


@pytest.mark.slow
def test_a_seed_gives_the_same_course_of_events_in_every_process() -> None:
    program = "from tests.simulation.world import Cluster; c = Cluster(7); c.run(60); print(c.digest())"

    def digest(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        return subprocess.run(
            [sys.executable, "-c", program], env=environment, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout

    assert digest("1") == digest("2")
