"""The picture of the nodes."""

from __future__ import annotations

from gpuyard.kaidemo.map import Held, map_lines


def test_workloads_stand_apart_the_largest_first_and_what_is_free_is_counted() -> None:
    held = [Held("node-1", "two", 2), Held("node-1", "one", 4), *(Held("node-10", "gang", 2) for _ in range(4))]
    assert map_lines(("node-1", "node-10", "node-2"), 8, held) == [
        "node-1   ■■■■ ■■ ··  one (4 GPUs), two (2 GPUs), 2 free",
        "node-10  ■■■■■■■■    gang (8 GPUs)",
        "node-2   ········    8 free",
    ]
