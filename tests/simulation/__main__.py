"""Replay one seed, or many: python -m tests.simulation SEED [--to SEED] [--steps N] [--trace] [--counts]."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter

from gpuyard.worlds.standalone.lifecycle import OVER
from tests.simulation.invariants import ViolationError
from tests.simulation.world import STEPS, Cluster


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--to", type=int, help="run all seeds up to and with this one")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--trace", action="store_true", help="tell the whole story")
    parser.add_argument("--counts", action="store_true", help="show how often each kind of fault came about")
    asked = parser.parse_args()
    clusters = [Cluster(seed, aloud=asked.trace) for seed in range(asked.seed, (asked.to or asked.seed) + 1)]
    failed = sum(not _run(cluster, asked.steps) for cluster in clusters)
    if asked.counts:
        for kind, count in sorted(sum((cluster.story.faults for cluster in clusters), Counter[str]()).items()):
            print(f"{count:6} {kind}")
    return int(failed > 0)


def _run(cluster: Cluster, steps: int) -> bool:
    try:
        cluster.run(steps)
    except Exception as error:
        _show(cluster, error)
        return False
    print(
        f"seed {cluster.seed}: {cluster.timeline.now_ms // 1000} s, {cluster.manager.state.seq} entries,"
        f" {len(cluster.truth.started)} attempts, {cluster.story.faults.total()} faults,"
        f" {cluster.manager.crashes} crashes of the manager"
    )
    return True


def _show(cluster: Cluster, error: Exception) -> None:
    """What led to it, and how the jobs stood."""
    if not cluster.story.aloud:
        print("\n".join(cluster.story.last))
    if not isinstance(error, ViolationError):
        traceback.print_exc()
    print(f"seed {cluster.seed} after {cluster.timeline.now_ms / 1000:.3f} s: {type(error).__name__}: {error}")
    for job in cluster.manager.state.jobs.values():
        if job.state not in OVER:
            print(f"  job {job.id}: {job.state}, at least {job.form.group.min_tasks}, then {job.then}")
            for task in job.tasks:
                print(f"    {task.phase} {task.attempt} at {task.place}, next {task.next}, given to {task.host}")


if __name__ == "__main__":
    sys.exit(main())
