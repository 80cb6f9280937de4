"""A group of pods as the scheduler sees it: one job with its tasks.

Place in the flow: picture, intents ─**jobs**─Job─▶ world ─▶ ledger. Pure. What was decided counts as if it were so: a
pod that is being bound runs, one that was told to go is going. Of a moved pod the place is kept by a task that cannot
start, until the pod that is made in its stead takes it over; that one waits until its predecessor has gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from gpuyard.kubeapi.moments import ms_of
from gpuyard.model.jobs import DeviceShare, Job, Task, TaskGroup, TaskState
from gpuyard.model.quantities import MILLI
from gpuyard.worlds.kubernetes.devices import NodeDevices, indices_held
from gpuyard.worlds.kubernetes.grouping import Grouping, widest
from gpuyard.worlds.kubernetes.intents import Backoff, Intents, Memory, Place
from gpuyard.worlds.kubernetes.podrecord import PodRecord

STUCK_MS: Final = 120_000
"""Beyond its grace: a pod that has still not gone is not counted on."""
LOST_WORK_MS: Final = 30 * 24 * 3_600_000
"""What it costs to stop a pod that nobody makes anew: more than any work that is only done again."""
NEVER_MS: Final = 1 << 50
NOBODYS: Final = ""
HEIR: Final = "~heir"
ALONE: Final = "pod"
"""How jobs of one pod are called."""


class JobReader:
    """Reads jobs off a picture and what was decided about it."""

    def __init__(self, intents: Intents, devices: Mapping[str, NodeDevices], pods: Mapping[str, PodRecord]) -> None:
        self._intents = intents
        self._devices = devices
        self._pods = pods

    def job(
        self,
        id: str,
        records: Iterable[PodRecord],
        closed: bool,
        protected: bool,
        left: Mapping[str, int],
        now_ms: int,
    ) -> Job | None:
        """None where nothing of it could run or wait any more. `closed`: it may not use its queue."""
        pods = sorted(records, key=_age)
        tasks = self._tasks(id, pods, closed, now_ms)
        if not any(task.state not in (TaskState.SUCCEEDED, TaskState.FAILED) for task in tasks):
            return None
        forms = (place.form for place in self._intents.places_of(id))
        grouping = next((pod.grouping for pod in pods if pod.grouping is not None), None) or next(forms, None)
        if grouping is None:
            return Job(id, NOBODYS, tasks, submitted_at_ms=pods[0].created_ms if pods else 0)
        return self._job(id, grouping, tasks, pods, protected, left)

    def _job(
        self,
        id: str,
        grouping: Grouping,
        tasks: tuple[Task, ...],
        pods: list[PodRecord],
        protected: bool,
        left: Mapping[str, int],
    ) -> Job:
        memory = self._intents.memory.get(id, Memory())
        group = widest([pod.grouping.group for pod in pods if pod.grouping is not None] or [grouping.group])
        recreated = all(pod.grouping is None or pod.grouping.recreated for pod in pods)
        safely = all(pod.grouping is None or pod.grouping.moves_safely for pod in pods)
        return Job(
            id=id,
            queue=grouping.queue,
            tasks=tasks,
            group=group if grouping.waves else _what_is_left(group, tasks, left),
            priority=grouping.priority,
            preemptible=grouping.preemptible,
            protected=protected,
            submitted_at_ms=ms_of(grouping.created) or min((pod.created_ms for pod in pods), default=0),
            restart_ms=LOST_WORK_MS if any(pod.grouping is not None and pod.grouping.costs_work for pod in pods) else 0,
            preemption_delay_ms=NEVER_MS if _never_preempts(pods) else grouping.preemption_delay_ms,
            staleness_grace_ms=grouping.staleness_grace_ms,
            stale_since_ms=memory.stale_since_ms,
            last_evicted_at_ms=memory.last_evicted_at_ms,
            last_eviction=memory.last_eviction,
            disruption_budget=grouping.evictions_left,
            movable=recreated and safely,
        )

    # ---------------------------------------------------------------------------------------------------------- tasks

    def _tasks(self, id: str, pods: list[PodRecord], closed: bool, now_ms: int) -> tuple[Task, ...]:
        places = self._intents.places_of(id)
        heirs = heirs_of(id, pods, self._intents)
        held_back = closed or backoff_of(id, pods, self._intents, now_ms) is not None
        tasks = []
        for pod in pods:
            place = heirs.get(pod.uid)
            if place is None:
                task = self._task(pod, held_back, now_ms)
            else:
                task = self._shaped(
                    pod, TaskState.PROMISED, place.node, leaving=leaver_of(place, self._pods) is not None
                )
            if task is not None:
                tasks.append(task)
        kept = [place for place in places if place not in heirs.values()]
        return (*tasks, *(_placeholder(place) for place in kept))

    def _task(self, pod: PodRecord, held_back: bool, now_ms: int) -> Task | None:
        """None for one that goes before it was anywhere."""
        state = self._state(pod, held_back, now_ms)
        if state is None:
            return None
        node = pod.node or self._node_meant(pod, state)
        shaped = self._shaped(pod, state, node)
        return replace(shaped, shares=self._shares(pod), started_at_ms=self._since(pod)) if node else shaped

    def _shaped(self, pod: PodRecord, state: TaskState, node: str = "", *, leaving: bool = False) -> Task:
        grouping = pod.grouping
        return Task(
            id=pod.pod.metadata.name,
            request=pod.request,
            group=grouping.leaf if grouping else "",
            state=state,
            node=node,
            priority=grouping.task_priority if grouping else 0,
            labels=pod.labels,
            leaving=leaving,
        )

    def _state(self, pod: PodRecord, held_back: bool, now_ms: int) -> TaskState | None:
        if pod.over:
            # One that was told to go and ended in good order has not done its work: its owner makes it anew.
            done = pod.pod.status.phase == "Succeeded" and not pod.leaving
            return TaskState.SUCCEEDED if done else TaskState.FAILED
        if pod.node:
            return self._state_on_node(pod, now_ms)
        if pod.leaving:
            return None
        if pod.uid in self._intents.binding:
            return TaskState.RUNNING
        if pod.gated or pod.grouping is None or pod.grouping.waits or pod.held is not None or held_back:
            return TaskState.GATED
        return TaskState.PROMISED if pod.uid in self._intents.promised else TaskState.PENDING

    def _state_on_node(self, pod: PodRecord, now_ms: int) -> TaskState:
        if pod.leaving:
            return TaskState.STUCK if now_ms - pod.deleted_ms > STUCK_MS else TaskState.FREEING
        return TaskState.FREEING if pod.uid in self._intents.evicting else TaskState.RUNNING

    def _node_meant(self, pod: PodRecord, state: TaskState) -> str:
        if state is TaskState.RUNNING:
            return self._intents.binding[pod.uid].node
        return self._intents.promised[pod.uid] if state is TaskState.PROMISED else ""

    def _since(self, pod: PodRecord) -> int:
        binding = self._intents.binding.get(pod.uid)
        return binding.since_ms if binding else pod.since_ms

    def _shares(self, pod: PodRecord) -> tuple[DeviceShare, ...]:
        """The devices the kubelet gave it, where they are known and are all it asks for."""
        devices = self._devices.get(pod.node)
        if devices is None or not pod.request.whole:
            return ()
        indices = indices_held(devices, pod.pod.metadata.namespace, pod.pod.metadata.name)
        if len(indices) != pod.request.devices:
            return ()
        return tuple(DeviceShare(index, MILLI) for index in indices)


def kin_of(id: str, pods: Iterable[PodRecord]) -> str:
    """What a job is known by over the lives of its pods: where each of them is a job of its own, their owner."""
    if id.split("/", 2)[1] != ALONE:
        return id
    keys = (pod.grouping.successor_key for pod in pods if pod.grouping is not None and pod.grouping.recreated)
    return next(keys, "") or id


def backoff_of(id: str, pods: Iterable[PodRecord], intents: Intents, now_ms: int) -> Backoff | None:
    """What holds a job back: that it could not be started, or that those before it could not."""
    if not intents.backoff:
        return None
    return intents.holds_back(id, now_ms) or intents.holds_back(kin_of(id, pods), now_ms)


def heirs_of(job: str, pods: Iterable[PodRecord], intents: Intents) -> dict[str, Place]:
    """Which pod takes over which place, oldest first; a pod that has or was given another place takes none."""
    places = intents.places_of(job)
    if not places:
        return {}
    pods = sorted(pods, key=_age)
    left = {place.left for place in places}
    taken: dict[str, Place] = {}
    for place in places:
        for pod in pods:
            grouping = pod.grouping
            if grouping is None or grouping.successor_key != place.heir or pod.uid in taken or pod.uid in left:
                continue
            if _may_inherit(pod) and pod.uid not in intents.binding:
                taken[pod.uid] = place
                break
    return taken


def _may_inherit(pod: PodRecord) -> bool:
    """Whether it waits for a place, and nothing else."""
    waits = pod.gated or pod.held is not None or pod.grouping is None or bool(pod.grouping.waits)
    return not pod.node and not pod.leaving and not pod.over and not waits


def leaver_of(place: Place, pods: Mapping[str, PodRecord]) -> PodRecord | None:
    """The pod that was told to go for this place, while it is still there."""
    found = pods.get(f"{place.job.partition('/')[0]}/{place.name}")
    return found if found is not None and found.uid == place.left else None


def _never_preempts(pods: list[PodRecord]) -> bool:
    """Whether its priority class says that it only waits (preemptionPolicy: Never)."""
    return bool(pods) and all(pod.pod.spec.preemption_policy == "Never" for pod in pods)


def _placeholder(place: Place) -> Task:
    return Task(
        id=f"{place.name}{HEIR}",
        request=place.request,
        group=place.leaf,
        state=TaskState.PROMISED,
        node=place.node,
        leaving=True,
    )


def _age(pod: PodRecord) -> tuple[int, int, str]:
    """Oldest first; of equals by the number their names end with."""
    name = pod.pod.metadata.name
    number = name.rpartition("-")[2]
    return pod.created_ms, int(number) if number.isdecimal() else 0, name


def _what_is_left(group: TaskGroup, tasks: Iterable[Task], left: Mapping[str, int]) -> TaskGroup:
    """What is done counts for its gang and needs no place. `left`: how many of a leaf are not done, if known."""
    done = Counter(task.group for task in tasks if task.state is TaskState.SUCCEEDED)
    if not done and not left:
        return group
    if group.leaf:
        # Whoever still waits is at least one.
        return replace(group, min_tasks=max(group.min_tasks - done.total(), min(group.min_tasks, 1)))
    return _without(group, done, left)


def _without(group: TaskGroup, done: Counter[str], left: Mapping[str, int]) -> TaskGroup:
    if group.leaf:
        undone = left.get(group.name, group.min_tasks - done[group.name])
        return replace(group, min_tasks=max(0, min(group.min_tasks, undone)))
    return replace(group, children=tuple(_without(child, done, left) for child in group.children))
