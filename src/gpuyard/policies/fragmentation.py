"""Fragmentation gradient: place a task where it makes the least of what is left useless to the tasks usually seen.

The fragmentation of a node is the idle GPU it has that a typical task, drawn at random, could not use (Weng et al.,
"Beware of Fragmentation", USENIX ATC 2023). A task goes where that grows least. As in the authors' scheduler the
growth is squeezed into whole numbers from 0 to 100, so that nearly equal nodes tie and the node order decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gpuyard.model.jobs import Job
from gpuyard.policies.policy import TypicalTask


class Gradient:
    """Scores one node at a time from what is left of its devices (in milli) and of its CPU."""

    def __init__(self, typical: Sequence[TypicalTask]) -> None:
        self._typical = tuple(typical)
        self._weight = sum(task.weight for task in typical) or 1

    def score(self, left: Sequence[int], cpu_left: int, model: str, taken: Sequence[int], cpu_milli: int) -> int:
        """0 (much is made useless) to 100 (much is made useful), for taking `taken` of each device."""
        after = [have - take for have, take in zip(left, taken, strict=True)]
        before = self.fragmentation(left, cpu_left, model)
        grown = self.fragmentation(after, cpu_left - cpu_milli, model) - before
        return int(100 / (1 + math.exp(min(700.0, grown / (1000 * self._weight)))))

    def best_device(
        self, left: Sequence[int], cpu_left: int, model: str, milli: int, cpu_milli: int
    ) -> tuple[int, int]:
        """The score of a part on the device where it does least harm, and that device; (-1, -1) where it fits none."""
        best = (-1, -1)
        for device, have in enumerate(left):
            if have < milli:
                continue
            taken = [milli if other == device else 0 for other in range(len(left))]
            score = self.score(left, cpu_left, model, taken, cpu_milli)
            if score > best[0]:
                best = (score, device)
        return best

    def fragmentation(self, left: Sequence[int], cpu_left: int, model: str) -> int:
        """Idle milli that typical tasks could not use, summed over them by weight."""
        idle = sum(left)
        return sum(task.weight * self._useless(task, left, idle, cpu_left, model) for task in self._typical)

    def _useless(self, task: TypicalTask, left: Sequence[int], idle: int, cpu_left: int, model: str) -> int:
        if not task.devices or (task.gpu_model and task.gpu_model != model) or task.cpu_milli > cpu_left:
            return idle
        usable = [have for have in left if have >= task.gpu_milli]
        return idle - sum(usable) if len(usable) >= task.devices else idle


def typical_tasks(jobs: Iterable[Job]) -> tuple[TypicalTask, ...]:
    """The classes of tasks the jobs ask for, the commonest first, until they make up 95 in 100."""
    counts: dict[tuple[int, int, int, str], int] = {}
    for job in jobs:
        for task in job.tasks:
            request = task.request
            model = request.where.gpu_models[0] if len(request.where.gpu_models) == 1 else ""
            kind = (request.devices, request.gpu_milli, request.cpu_milli, model)
            counts[kind] = counts.get(kind, 0) + 1
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    kept: list[TypicalTask] = []
    wanted = 95 * sum(counts.values())
    for (devices, gpu_milli, cpu_milli, model), count in ordered:
        if 100 * sum(task.weight for task in kept) >= wanted:
            break
        kept.append(TypicalTask(devices, gpu_milli, cpu_milli, model, count))
    return tuple(kept)
