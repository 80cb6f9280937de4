"""The clusters that are measured: eight GPUs a node, four teams in two departments, each owed a quarter.

A shape can be built with its nodes or its waiting jobs doubled, to see how the time grows. A cluster that is full
stays full: with the nodes doubled, what runs on them is doubled too.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from gpuyard.model.jobs import DeviceShare, Job, Request, Task, TaskGroup, TaskState
from gpuyard.model.nodes import Device, Node
from gpuyard.model.quantities import GPU, MILLI
from gpuyard.model.queues import Queue, QueueShare
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import DEFAULT, Consolidation, Policy, Step

GPUS_PER_NODE: Final = 8
GPU_MIB: Final = 81_920
CORES_PER_NODE: Final = 128
GIB: Final = 1 << 30
DEPARTMENTS: Final = ("research", "products")
TEAMS: Final = ("vision", "speech", "search", "ads")
NODES: Final = 5_000
NOW_MS: Final = 2_000_000
"""Later than every job was submitted: one from the future may not disturb others yet."""
ONE_GPU: Final = Request(devices=1, cpu_milli=MILLI, memory_bytes=8 * GIB)


OWED_TEAM: Final = "speech"
LENT_TEAM: Final = "ads"
"""The two teams of the shapes that reclaim: one is owed what the other has borrowed."""
WHOLE_NODE: Final = Request(devices=8, cpu_milli=8 * MILLI, memory_bytes=64 * GIB)
VICTIM_GANG: Final = 4
STRIDES: Final = (7, 37, 101, 173, 241, 313, 389, 467)
"""One for each device of a node; primes that divide no number of nodes used here, so that each visits every node."""
MOVES_PER_NODE: Final = 7
FEW_MOVES: Final = 16


class Subject(enum.StrEnum):
    """What of a shape is measured."""

    CYCLE = "cycle"
    """Building the structures from the snapshot, and a whole cycle."""
    ARRIVAL = "arrival"
    """One new job on a kept ledger."""
    EXPLANATION = "explanation"
    """Why the last of the waiting jobs waits, on a kept ledger."""


class Counts(msgspec.Struct, frozen=True):
    """How many actions of each kind a plan has."""

    binds: int = 0
    promises: int = 0
    evicts: int = 0
    moves: int = 0


class Expected(msgspec.Struct, frozen=True):
    """What a plan must do, so that a benchmark of the wrong thing fails."""

    fewest: Counts
    most: Counts

    def met_by(self, seen: Counts) -> bool:
        low, high, actual = (msgspec.structs.astuple(counts) for counts in (self.fewest, self.most, seen))
        return all(least <= count <= most for least, count, most in zip(low, actual, high, strict=True))

    def text(self) -> str:
        return str(self.fewest) if self.fewest == self.most else f"{self.fewest} to {self.most}"


class Shape(msgspec.Struct, frozen=True):
    """One cluster to measure, and what it may cost."""

    name: str
    build: Callable[[int, int], Snapshot]
    """From the number of nodes and of waiting jobs; where one gang waits, its tasks are counted instead."""
    nodes: int
    jobs: int
    target_ms: float
    expect: Callable[[int, int], Expected]
    """From the same two numbers."""
    target_mb: float | None = None
    subject: Subject = Subject.CYCLE
    policy: Callable[[int], Policy] = lambda _: ALLOCATE_ONLY
    """From the number of waiting jobs, because a budget that stays the same would hide how the work grows."""
    control: tuple[Callable[[int, int], Snapshot], Callable[[int, int], Expected]] | None = None
    """Where nothing must happen: nearly the same cluster in which something must, else a core that can do nothing at
    all would shine here."""


# ------------------------------------------------------------------------------------------------------- policies

ALLOCATE_ONLY: Final[Policy] = msgspec.structs.replace(DEFAULT, steps=(Step.ALLOCATE,))


def all_steps(jobs: int) -> Policy:
    return DEFAULT


def enough_moves(jobs: int) -> Policy:
    """As many moves as it takes to empty one node for each waiting job."""
    return at_most_moves(MOVES_PER_NODE * jobs)


def few_moves(jobs: int) -> Policy:
    return at_most_moves(FEW_MOVES)


def at_most_moves(count: int) -> Policy:
    return msgspec.structs.replace(DEFAULT, consolidation=Consolidation(max_moves_per_cycle=count))


# ------------------------------------------------------------------------------------------------- work that is placed


def empty_cluster(nodes: int, jobs: int) -> Snapshot:
    return cluster(nodes, pending(jobs))


def gangs_of_four(nodes: int, jobs: int) -> Snapshot:
    return cluster(nodes, pending(jobs, tasks=4))


def busy_cluster(nodes: int, jobs: int) -> Snapshot:
    """Six of the eight GPUs of every one of the 5 000 nodes are in use; nodes that come on top are empty."""
    return cluster(nodes, [*running(min(nodes, NODES), 6), *pending(jobs)])


def full_cluster(nodes: int, jobs: int) -> Snapshot:
    return cluster(nodes, [*running(nodes, GPUS_PER_NODE), *pending(jobs)])


def half_out_of_cpu(nodes: int, jobs: int) -> Snapshot:
    """Every second node looks best (seven GPUs left, so the fullest) and has no core left."""
    hog = Request(devices=1, cpu_milli=CORES_PER_NODE * MILLI)
    hogs = [running_job(f"hog-{at:05}", at, (0,), hog) for at in range(0, nodes, 2)]
    return cluster(nodes, [*hogs, *pending(jobs)])


def many_request_shapes(nodes: int, jobs: int) -> Snapshot:
    """400 different requests: twenty amounts of CPU, each with twenty of memory."""
    requests = [
        Request(devices=1, cpu_milli=100 * cores, memory_bytes=gib * GIB)
        for cores in range(1, 21)
        for gib in range(1, 21)
    ]
    waiting = [waiting_job(at, requests[at % len(requests)], 1) for at in range(jobs)]
    return cluster(nodes, [*running(min(nodes, NODES), 6), *waiting])


def mixed_cluster(nodes: int, jobs: int) -> Snapshot:
    """Five jobs run on every two nodes; with the nodes doubled twice as many run."""
    return cluster(nodes, [*running_evenly(nodes, 5 * nodes // 2), *pending(jobs)])


# ------------------------------------------------------------------------------------- work that moves others, or not


def nearly_full_cluster(nodes: int, jobs: int) -> Snapshot:
    """One GPU is free on every node, and each waiting job asks for a whole one: seven moves make room for one job.

    Nodes doubled: as much to move, twice the places to choose from. Jobs doubled: twice the moves, and allowed.
    """
    return cluster(nodes, [*running(nodes, MOVES_PER_NODE), *pending(jobs, request=WHOLE_NODE)])


def thinly_used_cluster(nodes: int, jobs: int) -> Snapshot:
    """Two GPUs of every node are in use, and many more jobs wait for a whole node than the moves allowed can help.

    Doubled nodes or jobs are more to look at; what is done stays the same, because the budget does.
    """
    return cluster(nodes, [*running_evenly(nodes, 2 * nodes), *pending(jobs, request=WHOLE_NODE)])


# ----------------------------------------------------------------------------------------------- work that takes back


def lent_cluster(nodes: int, tasks: int) -> Snapshot:
    """All is lent to a team that is owed nothing, as jobs of one GPU, when a gang of the team owed everything comes.

    Nodes doubled: the same gang, twice the victims to choose from. Jobs doubled: a gang of twice as many tasks.
    """
    return two_teams(nodes, nodes * GPUS_PER_NODE, 0, [*running(nodes, GPUS_PER_NODE, LENT_TEAM), gang(tasks)])


def scattered_gangs(nodes: int, tasks: int) -> Snapshot:
    """As above, but the victims are gangs of four, each on four nodes far apart: a node taken breaks eight of them."""
    return two_teams(nodes, nodes * GPUS_PER_NODE, 0, [*scattered(nodes), gang(tasks)])


def just_too_little(nodes: int, tasks: int) -> Snapshot:
    """The gang is owed all it asks, but the other team may lose one GPU too few before it is down to what it is owed.

    The quotas add up to one GPU more than there is: only what the victims may lose forbids the gang, so that nobody
    can tell without looking at them. Nodes doubled: twice the victims. Jobs doubled: a gang of twice as many tasks.
    """
    return may_lose(nodes, tasks, tasks * GPUS_PER_NODE - 1)


def just_enough(nodes: int, tasks: int) -> Snapshot:
    return may_lose(nodes, tasks, tasks * GPUS_PER_NODE)


def owed_too_little(nodes: int, tasks: int) -> Snapshot:
    """The quotas add up, and the gang asks one GPU more than its team is owed: refused without looking at victims."""
    owed = tasks * GPUS_PER_NODE - 1
    kept = nodes * GPUS_PER_NODE - owed
    return two_teams(nodes, owed, kept, [*running(nodes, GPUS_PER_NODE, LENT_TEAM), gang(tasks)])


def may_lose(nodes: int, tasks: int, borrowed: int) -> Snapshot:
    """A gang, and a team that holds every GPU and has borrowed so many of them."""
    kept = nodes * GPUS_PER_NODE - borrowed
    return two_teams(nodes, tasks * GPUS_PER_NODE, kept, [*running(nodes, GPUS_PER_NODE, LENT_TEAM), gang(tasks)])


def one_team_over(nodes: int, jobs: int) -> Snapshot:
    """Every GPU is in use, and each team holds what it is owed, but for one GPU that the last has of the first."""
    first, *others = running(nodes, GPUS_PER_NODE)
    taken = msgspec.structs.replace(first, queue=TEAMS[-1])
    return cluster(nodes, [taken, *others, *pending(jobs)])


# ----------------------------------------------------------------------------------------------- what must come out


def exactly(binds: int = 0, promises: int = 0, evicts: int = 0, moves: int = 0) -> Expected:
    counts = Counts(binds, promises, evicts, moves)
    return Expected(counts, counts)


def no_action(nodes: int, jobs: int) -> Expected:
    return exactly()


def one_start(nodes: int, jobs: int) -> Expected:
    return exactly(binds=1)


def one_taken_back(nodes: int, jobs: int) -> Expected:
    return exactly(evicts=1, promises=1)


def starts(free: Callable[[int], int], tasks: int = 1) -> Callable[[int, int], Expected]:
    """As many jobs as fit into what is free, which hangs on the number of nodes."""
    return lambda nodes, jobs: exactly(binds=tasks * min(jobs, free(nodes) // tasks))


def all_helped_by_moves(nodes: int, jobs: int) -> Expected:
    return exactly(promises=jobs, moves=MOVES_PER_NODE * jobs)


def some_helped_by_moves(nodes: int, jobs: int) -> Expected:
    """Two moves empty a node."""
    return exactly(promises=min(jobs, FEW_MOVES // 2), moves=min(2 * jobs, FEW_MOVES))


def nodes_taken_back(nodes: int, tasks: int) -> Expected:
    return exactly(promises=tasks, evicts=tasks * GPUS_PER_NODE)


def nodes_taken_from_gangs(nodes: int, tasks: int) -> Expected:
    """Nobody but the gang's own places must be lost; how much more breaks with them is the planner's skill."""
    taken = tasks * GPUS_PER_NODE
    held = nodes * GPUS_PER_NODE
    return Expected(Counts(promises=tasks, evicts=taken), Counts(promises=tasks, evicts=held, moves=held - taken))


# ------------------------------------------------------------------------------------------------------- the shapes


def every_gpu(nodes: int) -> int:
    return nodes * GPUS_PER_NODE


def beside_six(nodes: int) -> int:
    return every_gpu(nodes) - 6 * min(nodes, NODES)


def beside_mixed(nodes: int) -> int:
    return every_gpu(nodes) - 5 * nodes // 2


def on_half_the_nodes(nodes: int) -> int:
    return every_gpu(nodes) // 2


def unsatisfiable(name: str, nodes: int, target_ms: float) -> Shape:
    control = (just_enough, nodes_taken_back)
    return Shape(name, just_too_little, nodes, 10, target_ms, no_action, policy=all_steps, control=control)


PLACING: Final = (
    Shape("500 jobs on 100 empty nodes", empty_cluster, 100, 500, 15, starts(every_gpu)),
    Shape("100 gangs of 4 on 50 nodes", gangs_of_four, 50, 100, 7, starts(every_gpu, tasks=4)),
    Shape("10000 jobs, 30000 running on 5000 nodes", busy_cluster, NODES, 10_000, 700, starts(beside_six), 200),
    Shape("10000 jobs that fit nowhere, 5000 full nodes", full_cluster, NODES, 10_000, 500, no_action),
    Shape("one new job, 30000 running", busy_cluster, NODES, 0, 8, one_start, subject=Subject.ARRIVAL),
    Shape("one new job, full, 10000 waiting", full_cluster, NODES, 10_000, 8, one_start, subject=Subject.ARRIVAL),
    Shape("8000 jobs, half of 5000 nodes out of CPU", half_out_of_cpu, NODES, 8_000, 700, starts(on_half_the_nodes)),
    Shape("8000 jobs of 400 request shapes", many_request_shapes, NODES, 8_000, 700, starts(beside_six)),
)
MOVING: Final = (
    Shape("all steps, 250 running, 250 jobs", mixed_cluster, 100, 250, 10, starts(beside_mixed), policy=all_steps),
    Shape("21 moves for 3 whole nodes", nearly_full_cluster, 50, 3, 30, all_helped_by_moves, policy=enough_moves),
    Shape("16 moves for 100 jobs", thinly_used_cluster, 50, 100, 10, some_helped_by_moves, policy=few_moves),
)
RECLAIMING: Final = (
    Shape("reclaim 500 of 1000 nodes", lent_cluster, 1_000, 500, 120, nodes_taken_back, policy=all_steps),
    Shape(
        "reclaim 500 of 1000 nodes from scattered gangs",
        scattered_gangs,
        1_000,
        500,
        250,
        nodes_taken_from_gangs,
        policy=all_steps,
    ),
    unsatisfiable("79 of 80 GPUs to reclaim, 100 nodes", nodes=100, target_ms=6),
    unsatisfiable("79 of 80 GPUs to reclaim, 1000 nodes", nodes=1_000, target_ms=45),
    Shape(
        "one new job reclaims one of 40000",
        one_team_over,
        NODES,
        0,
        25,
        one_taken_back,
        subject=Subject.ARRIVAL,
        policy=all_steps,
    ),
)
EXPLAINING: Final = (
    Shape(
        "explain one of 10000 waiting, 5000 full nodes",
        full_cluster,
        NODES,
        10_000,
        50,
        no_action,
        subject=Subject.EXPLANATION,
        policy=all_steps,
    ),
)
SHAPES: Final = PLACING + MOVING + RECLAIMING + EXPLAINING


# --------------------------------------------------------------------------------------------------------- parts


def cluster(nodes: int, jobs: Iterable[Job]) -> Snapshot:
    return observed(nodes, queues(nodes), jobs)


def observed(nodes: int, tree: tuple[Queue, ...], jobs: Iterable[Job]) -> Snapshot:
    return Snapshot(tuple(node(at) for at in range(nodes)), tree, tuple(jobs), now_ms=NOW_MS)


def node(at: int, gpus: int = GPUS_PER_NODE) -> Node:
    return Node(
        f"node-{at:05}",
        devices=tuple(Device("H100", GPU_MIB, id=f"GPU-{at:05}-{index}") for index in range(gpus)),
        cpu_milli=CORES_PER_NODE * MILLI,
        memory_bytes=1024 * GIB,
    )


def queues(nodes: int) -> tuple[Queue, ...]:
    quarter = nodes * GPUS_PER_NODE * MILLI // 4
    departments = (
        Queue(name, shares=(QueueShare(GPU, quota=2 * quarter),), order=at) for at, name in enumerate(DEPARTMENTS)
    )
    teams = (
        Queue(name, DEPARTMENTS[at // 2], (QueueShare(GPU, quota=quarter),), order=at) for at, name in enumerate(TEAMS)
    )
    return (*departments, *teams)


def two_teams(nodes: int, owed: int, kept: int, jobs: Iterable[Job]) -> Snapshot:
    """One department, and how many GPUs each of its two teams is owed."""
    department = Queue(DEPARTMENTS[0], shares=(gpu_quota(nodes * GPUS_PER_NODE),), overcommit=True)
    teams = (
        Queue(name, department.name, (gpu_quota(gpus),), order=at)
        for at, (name, gpus) in enumerate(((OWED_TEAM, owed), (LENT_TEAM, kept)))
    )
    return observed(nodes, (department, *teams), jobs)


def gpu_quota(gpus: int) -> QueueShare:
    return QueueShare(GPU, quota=gpus * MILLI)


def pending(count: int, tasks: int = 1, request: Request = ONE_GPU) -> Iterator[Job]:
    return (waiting_job(at, request, tasks) for at in range(count))


def gang(tasks: int) -> Job:
    """Each task takes a whole node."""
    members = tuple(Task(f"gang-{index:04}", WHOLE_NODE) for index in range(tasks))
    return Job("gang", OWED_TEAM, members, TaskGroup(min_tasks=tasks), submitted_at_ms=100_000)


def waiting_job(at: int, request: Request, tasks: int) -> Job:
    return Job(
        f"waiting-{at:05}",
        TEAMS[at % len(TEAMS)],
        tuple(Task(f"waiting-{at:05}-{index}", request) for index in range(tasks)),
        TaskGroup(min_tasks=tasks),
        submitted_at_ms=100_000 + at,
    )


def running(nodes: int, per_node: int, team: str = "") -> Iterator[Job]:
    for at in range(nodes):
        for device in range(per_node):
            yield running_job(f"running-{at:05}-{device}", at, (device,), ONE_GPU, team)


def running_evenly(nodes: int, count: int) -> Iterator[Job]:
    """So many jobs of one GPU, as evenly over the nodes as they go."""
    for index in range(count):
        at, device = index % nodes, index // nodes
        yield running_job(f"running-{at:05}-{device}", at, (device,), ONE_GPU)


def scattered(nodes: int) -> Iterator[Job]:
    """Gangs of four that fill the cluster; the gangs on one device share no pattern with those on another."""
    for device, stride in enumerate(STRIDES):
        for first in range(0, nodes, VICTIM_GANG):
            places = [(first + step) * stride % nodes for step in range(VICTIM_GANG)]
            yield running_gang(f"running-{device}-{first:05}", places, device)


def running_gang(id: str, places: list[int], device: int) -> Job:
    tasks = tuple(running_task(f"{id}-{index}", at, (device,), ONE_GPU) for index, at in enumerate(places))
    return Job(id, LENT_TEAM, tasks, TaskGroup(min_tasks=len(tasks)), submitted_at_ms=places[0])


def running_job(id: str, at: int, devices: tuple[int, ...], request: Request, team: str = "") -> Job:
    task = running_task(f"{id}-0", at, devices, request)
    return Job(id, team or TEAMS[(at + sum(devices)) % len(TEAMS)], (task,), submitted_at_ms=at)


def running_task(id: str, at: int, devices: tuple[int, ...], request: Request) -> Task:
    shares = tuple(DeviceShare(device, MILLI, GPU_MIB) for device in devices)
    return Task(id, request, state=TaskState.RUNNING, node=f"node-{at:05}", shares=shares)
