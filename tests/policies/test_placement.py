"""Node placements: each formula says the same of one node as of a column of nodes, and prefers what it promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.policies.placement import SCORES, Score, best_fit, bin_pack, keep_nodes_free, spread

NODES = st.lists(st.tuples(st.integers(0, 8000), st.integers(0, 128_000)), min_size=1, max_size=8)
GPU_ALL, CPU_ALL = 8000, 128_000


@pytest.mark.parametrize("score", list(dict.fromkeys(SCORES.values())))
@given(nodes=NODES, gpu=st.booleans())
def test_a_column_is_scored_as_its_nodes_are(score: Score, nodes: list[tuple[int, int]], gpu: bool) -> None:
    gpus, cpus = (np.array(column, dtype=np.int64) for column in zip(*nodes, strict=True))
    column = score(gpu, gpus, cpus, np.full(len(nodes), GPU_ALL), np.full(len(nodes), CPU_ALL))
    assert [int(value) for value in column] == [score(gpu, g, c, GPU_ALL, CPU_ALL) for g, c in nodes]


def test_bin_pack_takes_the_fullest_and_keeps_gpu_nodes_from_cpu_tasks() -> None:
    assert bin_pack(True, 2000, 0, 8000, 1) < bin_pack(True, 3000, 0, 8000, 1)
    assert bin_pack(False, 0, 64_000, 1, 64_000) < bin_pack(False, 8000, 1_000, 8000, 64_000)


def test_spread_takes_the_one_with_the_largest_part_free() -> None:
    assert spread(True, 2000, 0, 2000, 1) < spread(True, 4000, 0, 8000, 1)


def test_best_fit_counts_cpu_as_well() -> None:
    assert best_fit(True, 2000, 8_000, 8000, 128_000) < best_fit(True, 2000, 64_000, 8000, 128_000)


def test_keep_whole_nodes_free_takes_a_used_large_node_before_an_empty_small_one() -> None:
    assert keep_nodes_free(True, 7000, 0, 8000, 1) < keep_nodes_free(True, 2000, 0, 2000, 1)
    assert bin_pack(True, 2000, 0, 2000, 1) < bin_pack(True, 7000, 0, 8000, 1)
