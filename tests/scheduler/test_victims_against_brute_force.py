"""Who gives way, against the best there is, on thousands of tiny clusters.

`tests.victims_by_force` looks at every set of blocks and says what the order allows, and what of it is best. No
feasible plan may be missed, no plan may be illegal, and the work lost may on average be 5 % above the optimum.
Cases are numbered: a case that went wrong is found again by its kind and number.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple

import pytest
from msgspec.structs import replace

from gpuyard.model.jobs import DeviceShare, Job, Request, Sharing, Task, TaskGroup, TaskState
from gpuyard.model.nodes import Device, Node
from gpuyard.model.plan import Bind, Evict, Move, Plan, Promise
from gpuyard.model.quantities import GPU, MILLI
from gpuyard.model.queues import Queue, QueueShare
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import DEFAULT, Policy, Step
from gpuyard.scheduler.cycle import schedule
from tests.conftest import LONG
from tests.replay import replay
from tests.scheduler.blocks_judge import fair_shares
from tests.victims_by_force import (
    Block,
    Found,
    best_allowed,
    blocks_of,
    free_devices,
    move_sets,
    pieces,
    preempt_sets,
    reclaim_sets,
    work_lost,
    yielders,
)

CASES: Final = 2000 if LONG else 100
"""Of those in which somebody waits who cannot simply be placed."""
MAX_GAP_PERCENT: Final = 5
MAX_SHORTER_PERCENT: Final = 1
MAX_MISSED_PER_THOUSAND: Final = 1
NOW_MS: Final = 10_000
MAX_GPUS: Final = 6
MAX_BLOCKS: Final = 9
GPU_MIB: Final = 1000

Draw = random.Random


class Case(NamedTuple):
    snapshot: Snapshot
    job: Job
    """The one that waits."""


class Tally:
    """What came of many cases."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.solved = 0
        self.gaps: list[float] = []
        self.problems: list[str] = []
        self.shorter = 0
        """Cases in which a queue comes further below what it is owed than it must."""

    def note(self, number: int, best: Found | None, found: Found | None) -> None:
        if best is None and found is None:
            return
        if best is None or found is None:
            self.problems.append(f"case {number} is {'illegal' if best is None else 'missed'}")
            return
        self.solved += 1
        if found.shortfall_milli > best.shortfall_milli:
            self.shorter += 1
            return
        self.gaps.append(found.work / best.work - 1)

    @property
    def gap_percent(self) -> float:
        return 100 * sum(self.gaps) / max(1, len(self.gaps))

    def __str__(self) -> str:
        worse = sum(gap > 0 for gap in self.gaps)
        return (
            f"{self.kind}: {self.solved} solved, {self.gap_percent:.2f} % more work lost than at best"
            f" ({worse} cases above it), {self.shorter} further below what is owed than need be,"
            f" {len(self.problems)} missed or illegal {self.problems[:12]}"
        )


# --------------------------------------------------------------------------------------------------------- cases


def tiny_case(kind: str, number: int) -> Case:
    """At most three nodes of six GPUs in all, mostly in use, and one job that waits."""
    draw = random.Random(f"{kind} {number}")
    sizes = draw.choice(((2,), (4,), (6,), (1, 2), (2, 2), (3, 3), (2, 4), (1, 2, 3), (2, 2, 2), (1, 1, 2)))
    nodes = tuple(Node(f"n{i}", (Device("gpu", GPU_MIB),) * size, 64_000, 1 << 40) for i, size in enumerate(sizes))
    queues = QUEUES[kind](draw)
    leaves = [queue.name for queue in queues if queue.name not in {one.parent for one in queues}]
    free = {node.name: [MILLI] * len(node.devices) for node in nodes}
    jobs: list[Job] = []
    while sum(len(blocks_of(job)) for job in jobs) < MAX_BLOCKS - 2 and (
        job := running_job(draw, f"r{len(jobs)}", draw.choice((*leaves, *leaves[1:])), free)
    ):
        jobs.append(job)
    if kind == "consolidate":
        jobs = [job for job in jobs if draw.random() < 0.6] or jobs[:1]
    waits = waiting_job(draw, leaves[0], kind)
    return Case(Snapshot(nodes, queues, (*jobs, waits), now_ms=NOW_MS), waits)


def owed_queues(draw: Draw) -> tuple[Queue, ...]:
    def queue(name: str, parent: str | None, order: int, *gpus: float) -> Queue:
        shares = (QueueShare(GPU, int(draw.choice(gpus) * MILLI)),)
        return Queue(name, parent, shares, draw.choice((100, 100, 100, 200)), order, overcommit=True)

    if draw.random() < 0.6:
        others = [queue(name, None, order, 0, 0.5, 1, 2) for order, name in enumerate("bc", 1)]
        return queue("a", None, 0, 1, 2, 3, 4), *others[: draw.randint(1, 2)]
    left = queue("left", None, 0, 2, 3, 4)
    right = queue("right", None, 1, 0, 1, 2)
    teams = queue("a", "left", 2, 1, 2, 3), queue("b", "left", 3, 0, 1), queue("c", "right", 4, 0, 1, 2)
    return left, right, *teams


def one_queue(draw: Draw) -> tuple[Queue, ...]:
    return (Queue("a", shares=(QueueShare(GPU, MILLI * draw.randint(0, 6)),)),)


QUEUES: Final[dict[str, Callable[[Draw], tuple[Queue, ...]]]] = {
    "reclaim": owed_queues,
    "preempt": one_queue,
    "consolidate": one_queue,
}


def running_job(draw: Draw, id: str, queue: str, free: dict[str, list[int]]) -> Job | None:
    """A job where there is room for it; None where there is none."""
    milli = draw.choice((1000, 1000, 1000, 500, 250, 600))
    devices = draw.choice((1, 1, 2)) if milli == MILLI else 1
    count, gang = draw.choice(((1, 1), (1, 1), (1, 1), (2, 2), (2, 1), (3, 1)))
    for size in (count, 1):
        held = dict_copy(free)
        places = [place(draw, held, devices, milli) for _ in range(size)]
        if all(places):
            free.update(held)
            return a_running_job(draw, id, queue, request_of(devices, milli), [one for one in places if one], gang)
    whole = place(draw, free, 1, MILLI)
    return a_running_job(draw, id, queue, request_of(1, MILLI), [whole], 1) if whole else None


def dict_copy(free: dict[str, list[int]]) -> dict[str, list[int]]:
    return {name: list(devices) for name, devices in free.items()}


def place(draw: Draw, free: dict[str, list[int]], devices: int, milli: int) -> tuple[str, tuple[int, ...]] | None:
    for name in draw.sample(sorted(free), len(free)):
        usable = [device for device, left in enumerate(free[name]) if left >= milli]
        if len(usable) >= devices:
            for device in usable[:devices]:
                # A device that is shared takes no whole task, and the other way round: both count in thousandths.
                free[name][device] -= milli
            return name, tuple(usable[:devices])
    return None


def request_of(devices: int, milli: int) -> Request:
    sharing = Sharing.EXCLUSIVE if milli == MILLI else Sharing.TIME_SLICED
    return Request(devices=devices, gpu_milli=milli, sharing=sharing)


def a_running_job(
    draw: Draw, id: str, queue: str, request: Request, places: list[tuple[str, tuple[int, ...]]], gang: int
) -> Job:
    started_at_ms = 1000 * draw.randint(0, 8)
    mib = request.gpu_milli * GPU_MIB // MILLI
    tasks = tuple(
        Task(
            f"{id}-{index}",
            request,
            "",
            TaskState.RUNNING,
            node,
            tuple(DeviceShare(device, request.gpu_milli, mib) for device in devices),
            0,
            started_at_ms,
        )
        for index, (node, devices) in enumerate(places)
    )
    return Job(
        id,
        queue,
        tasks,
        TaskGroup(min_tasks=min(gang, len(tasks))),
        priority=draw.choice((50, 50, 25)),
        submitted_at_ms=draw.randint(0, 3),
        checkpoint_at_ms=draw.choice((None, None, started_at_ms + 700)),
        restart_ms=draw.choice((0, 0, 300)),
    )


def waiting_job(draw: Draw, queue: str, kind: str) -> Job:
    milli = draw.choice((1000, 1000, 1000, 500))
    request = request_of(draw.choice((1, 1, 2, 3)) if milli == MILLI else 1, milli)
    if kind == "consolidate":
        request = request_of(draw.choice((1, 2, 2, 3)), MILLI)
    count = draw.choice((1, 1, 1, 2, 3)) if request.devices == 1 else draw.choice((1, 1, 2))
    tasks = tuple(Task(f"w-{index}", request) for index in range(count))
    return Job("w", queue, tasks, TaskGroup(min_tasks=count), draw.choice((50, 60)) + 10, submitted_at_ms=5)


# ------------------------------------------------------------------------------------------------------ judgement


def planned(case: Case, plan: Plan) -> Found | None:
    """What the plan makes give way, as a set of blocks; None where the job waits on."""
    replay(plan, case.snapshot)
    if not any(isinstance(action, Bind | Promise) for action in plan.actions):
        assert not plan.actions
        return None
    gone = {action.task for action in plan.actions if isinstance(action, Evict | Move)}
    blocks = [block for job in yielders(case.snapshot) for block in blocks_of(job)]
    touched = {(block.job.id, block.step) for block in blocks if any(task.id in gone for task in block.tasks)}
    # With what a job gives up last goes what it gives up first, even if that finds its old place again.
    chosen = tuple(b for b in blocks if any((b.job.id, step) in touched for step in range(b.step, MAX_BLOCKS)))
    return Found(0, work_lost(case.snapshot, chosen), len(chosen), 0, chosen)


def judged(sets: list[Found], found: Found | None) -> Found | None:
    """The plan's set as the exact search knows it; the search does not know sets that are illegal."""
    if found is None:
        return None
    return next((one for one in sets if set(one.blocks) == set(found.blocks)), None)


def compare(kind: str, policy: Policy, search: Callable[[Case], tuple[Found | None, list[Found]]]) -> Tally:
    tally = Tally(kind)
    number = cases = 0
    while cases < CASES:
        case = tiny_case(kind, number)
        number += 1
        if not worth_a_search(kind, case):
            continue
        cases += 1
        best, sets = search(case)
        plan = planned(case, schedule(case.snapshot, policy))
        known = judged(sets, plan)
        if plan is not None and known is None:
            tally.problems.append(f"case {number - 1} is illegal")
        else:
            tally.note(number - 1, best, known)
    return tally


def worth_a_search(kind: str, case: Case) -> bool:
    """Whether the job does not simply fit; and for moves, which free nothing in all, whether enough is free."""
    if any(isinstance(action, Bind) for action in schedule(case.snapshot, ALLOCATE).actions):
        return False
    free = sum(map(sum, free_devices(case.snapshot, ())))
    return kind != "consolidate" or free >= sum(piece.total for piece in pieces(case.job.tasks))


ALLOCATE: Final = replace(DEFAULT, steps=(Step.ALLOCATE,))


def reclaims(case: Case) -> tuple[Found | None, list[Found]]:
    fair = {name: shares[GPU] for name, shares in fair_shares(case.snapshot, DEFAULT.usage_weight_milli).items()}
    ordered, sets = reclaim_sets(case.snapshot, case.job, fair)
    return best_allowed(ordered, sets), sets


def preempts(case: Case) -> tuple[Found | None, list[Found]]:
    ordered, sets = preempt_sets(case.snapshot, case.job)
    return best_allowed(ordered, sets), sets


def consolidates(case: Case) -> tuple[Found | None, list[Found]]:
    sets = move_sets(case.snapshot, case.job)
    return min(sets, key=lambda one: one.price, default=None), sets


SEARCHES: Final[dict[str, tuple[Step, Callable[[Case], tuple[Found | None, list[Found]]]]]] = {
    "reclaim": (Step.RECLAIM, reclaims),
    "preempt": (Step.PREEMPT, preempts),
    "consolidate": (Step.CONSOLIDATE, consolidates),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEARCHES)
def test_no_feasible_plan_is_missed_and_those_found_cost_little_more_than_the_best(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    step, search = SEARCHES[kind]
    tally = compare(kind, replace(DEFAULT, steps=(Step.ALLOCATE, step), reclaim_moves=False), search)
    with capsys.disabled():
        print(f"\n{tally}")
    assert not tally.problems, str(tally)
    assert tally.gap_percent <= MAX_GAP_PERCENT, str(tally)
    assert 100 * tally.shorter <= MAX_SHORTER_PERCENT * CASES, str(tally)
    assert 5 * tally.solved >= CASES, f"too few cases to tell: {tally}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reclaim", "preempt"])
def test_hardly_anything_is_missed_where_those_who_give_way_may_move(kind: str) -> None:
    """Where one of a set finds another place, what it holds still counts: the taker's side may then come above its
    fair share at a sibling's cost, and the set is refused though it might have been stopped (one case in 2000)."""
    step, search = SEARCHES[kind]
    missed = []
    for number in range(CASES):
        case = tiny_case(kind, number)
        if worth_a_search(kind, case) and search(case)[0] is not None:
            plan = schedule(case.snapshot, replace(DEFAULT, steps=(Step.ALLOCATE, step)))
            if planned(case, plan) is None:
                missed.append(number)
    assert 1000 * len(missed) <= MAX_MISSED_PER_THOUSAND * CASES, missed


@pytest.mark.parametrize("number", [485, 665])
def test_whoever_would_take_the_place_back_keeps_it(number: int) -> None:
    """The one who would have to go is served first, and the only place it fits is its own."""
    case = tiny_case("reclaim", number)
    policy = replace(DEFAULT, steps=(Step.ALLOCATE, Step.RECLAIM), reclaim_moves=False)
    assert schedule(case.snapshot, policy).actions == ()


def test_the_exact_search_takes_the_cheapest_of_those_that_rank_alike() -> None:
    """Two jobs of one queue and priority: the order names the younger first, but both rank alike."""
    case = tiny_case("preempt", 0)
    request = request_of(1, MILLI)
    draw = random.Random(0)
    old, young = (a_running_job(draw, id, "a", request, [("n0", (at,))], 1) for at, id in enumerate(("old", "young")))
    jobs = replace(old, priority=10), replace(young, priority=10), replace(case.job, tasks=(Task("w-0", request),))
    snapshot = replace(case.snapshot, jobs=jobs, nodes=(Node("n0", (Device("gpu", GPU_MIB),) * 2),))
    ordered, sets = preempt_sets(snapshot, replace(jobs[2], priority=50, group=TaskGroup()))
    best = best_allowed(ordered, sets)
    assert best is not None
    assert best.work == min(work_lost(snapshot, [Block(job, job.tasks, 0, False)]) for job in jobs[:2])
