"""Whether a gang has lost a part, or has not got it yet: only the first one is to be stopped after its grace.

Place in the flow: world ─job, what its pods asked for, memory─▶ **staleness** ─▶ since when it is stale. Pure.
Some owners make a gang in two steps: workers once the leader has a place, a launcher once the workers are ready. Such
a gang is not whole while its second part finds no room, and to stop the first part would only begin it all anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuyard.model.jobs import Job, TaskGroup
from gpuyard.scheduler.gang import IN_PLACE, in_place, is_incomplete, satisfied


def most_together(job: Job, before: int) -> int:
    """The largest minimum that the gang has had in place since it was last started; of what is no gang: 0."""
    needed = job.group.fewest_tasks
    if needed <= 1 or not any(task.state in IN_PLACE for task in job.tasks):
        return 0
    return before if is_incomplete(job) else max(before, needed)


def has_lost_a_part(job: Job, asked: Iterable[TaskGroup], together: int) -> bool:
    """`asked`: the trees of the pods in place, each as it was when the pod was made."""
    if not is_incomplete(job):
        return False
    needed = job.group.fewest_tasks
    if together >= needed:
        return True
    counts = in_place(job, frozenset())
    smaller = (tree for tree in asked if tree.fewest_tasks < needed)
    return not any(satisfied(tree, counts) for tree in smaller)
