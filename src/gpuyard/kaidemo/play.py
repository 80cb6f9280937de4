"""The demo from its beginning to its end: the files are applied, and what the scheduler decides is told as it happens.

Place in the flow: cli ─Show─▶ **play** ─▶ stage, files, lines. The initial state is followed by the new workloads, once
for each way of consolidating. Invariant: nothing that is told is known before the scheduler has decided it; after each
act nothing of it is left in the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuyard.errors import KubeTestbedError
from gpuyard.kaidemo import files
from gpuyard.kaidemo.files import AFTER, INITIAL, NEW, QUEUES, Workload, workloads
from gpuyard.kaidemo.lines import Line, Paragraphs, Telling, allocations
from gpuyard.kaidemo.map import Held, map_lines
from gpuyard.kaidemo.stage import GPU, Scheduler, Size, Stage, Tell, stage
from gpuyard.platform.clock import monotonic_ms, sleep_ms
from gpuyard.testbed.api import holds_now

POLL_MS: Final = 100
PAUSE_MS: Final = 400
"""A cycle of which nothing more has come for so long is complete."""
QUIET_MS: Final = 8_000
"""Where not everybody has a place by then, nobody else will get one."""
SETTLE_MS: Final = 120_000

Say = Callable[[str], None]

MODES: Final = {
    "keep-whole-nodes-free": "An empty node is opened only where no cheap move does instead",
    "on-demand": "Jobs are moved only where a job fits nowhere",
}


class Show(msgspec.Struct, frozen=True):
    """What is played."""

    folder: Path
    modes: tuple[str, ...] = tuple(MODES)
    name: str = "kai-demo"
    size: Size = Size()
    keep: bool = False
    """Stay at the end of the last act, until somebody ends it."""


def play(show: Show, say: Say, tell: Tell) -> None:
    """`say` is the demo itself, `tell` what is going on around it."""
    files.check(show.folder)
    with stage(show.name, show.size, tell) as made:
        for at, mode in enumerate(show.modes):
            say(f"Act {at + 1}. {MODES[mode]} (--consolidation {mode})\n")
            with made.scheduler(mode) as scheduler:
                act = Act(made, scheduler, show.folder, say)
                act.initial_state()
                act.new_workloads()
                if show.keep and mode == show.modes[-1]:
                    stay(made, say)
                act.clean_up()


def stay(made: Stage, say: Say) -> None:
    see = f"gpuyard kube testbed kubectl --name {made.bed.record.name} get pods -A -o wide"
    say(f"The cluster stays until Ctrl-C. To look around:  {see}")
    try:
        while True:
            sleep_ms(60_000)
    except KeyboardInterrupt:
        say("")


class Act:
    """The three files, with one scheduler."""

    def __init__(self, made: Stage, scheduler: Scheduler, folder: Path, say: Say) -> None:
        self._stage = made
        self._scheduler = scheduler
        self._folder = folder
        self._say = say
        self._telling = Telling()
        self._heard_at_ms = monotonic_ms()

    def initial_state(self) -> None:
        self._kubectl("apply", QUEUES)
        self._kubectl("apply", INITIAL)
        self._until_settled(workloads(self._folder / INITIAL), allocations)
        self._map()

    def new_workloads(self) -> None:
        self._kubectl("apply", NEW)
        everybody = (*workloads(self._folder / INITIAL), *workloads(self._folder / NEW))
        paragraphs = Paragraphs()
        self._until_settled(everybody, lambda lines: list(paragraphs.of(lines)))
        self._map()

    def clean_up(self) -> None:
        for file in (NEW, INITIAL, QUEUES):
            self._kubectl("delete", file)
        left = [self._stage.kubectl("get", "--ignore-not-found", "-o", "name", "-f", str(self._folder / QUEUES))]
        # The namespaces are among those, and whatever was in them is gone with them.
        if any(left):
            raise KubeTestbedError(f"the demo leaves {' '.join(''.join(left).split())}")
        self._say("Nothing is left.\n")

    # ---------------------------------------------------------------------------------------------------------- waiting

    def _until_settled(self, wanted: Sequence[Workload], view: Callable[[Sequence[Line]], list[str]]) -> None:
        """Tell what is decided, until all have their places, or those that have none will not get one."""
        self._heard_at_ms = monotonic_ms()
        until_ms = self._heard_at_ms + SETTLE_MS
        while not holds_now(lambda: self._settled(wanted)):
            if monotonic_ms() > until_ms:
                raise KubeTestbedError(f"the cluster has not settled within {SETTLE_MS // 1000} s")
            sleep_ms(POLL_MS)
            self._tell(view)

    def _settled(self, wanted: Sequence[Workload]) -> bool:
        pods = self._pods(wanted)
        self._open_gates(wanted, pods)
        quiet_ms = monotonic_ms() - self._heard_at_ms
        if all(runs(work, pods) for work in wanted):
            return quiet_ms > 2 * PAUSE_MS
        return quiet_ms > QUIET_MS and self._rests(wanted, pods)

    def _rests(self, wanted: Sequence[Workload], pods: Sequence[dict[str, Any]]) -> bool:
        """Whether nothing is under way: nobody leaves, nobody has a place to come to, and all pods are there."""
        under_way = self._telling.under_way or any(gates(pod) or leaves(pod) for pod in pods)
        return not under_way and all(len(of(work, pods)) >= work.pods for work in wanted)

    def _tell(self, view: Callable[[Sequence[Line]], list[str]]) -> None:
        lines: list[Line] = []
        for decision in self._scheduler.news():
            self._heard_at_ms = monotonic_ms()
            lines += self._telling.hear(decision)
        if monotonic_ms() - self._heard_at_ms > PAUSE_MS:
            lines += self._telling.rest()
        for line in view(lines):
            self._say(line)

    def _open_gates(self, wanted: Sequence[Workload], pods: Sequence[dict[str, Any]]) -> None:
        """Let those in who waited for workloads that have their places now."""
        there = {work.name for work in wanted if has_place(work, pods)}
        for pod in pods:
            shut = [gate for gate in gates(pod) if gate.removeprefix(AFTER) not in there or not gate.startswith(AFTER)]
            if len(shut) < len(gates(pod)):
                patch = {"spec": {"schedulingGates": [{"name": gate} for gate in shut]}}
                about = pod["metadata"]
                words = ("patch", "pod", about["name"], "-n", about["namespace"], "--type", "merge", "-p")
                self._stage.kubectl(*words, msgspec.json.encode(patch).decode())

    def _pods(self, wanted: Sequence[Workload]) -> list[dict[str, Any]]:
        spaces = dict.fromkeys(work.namespace for work in wanted)
        return [pod for space in spaces for pod in self._stage.api.get(f"/api/v1/namespaces/{space}/pods")["items"]]

    # ---------------------------------------------------------------------------------------------------------- showing

    def _kubectl(self, verb: str, file: str) -> None:
        self._say(f"$ kubectl {verb} -f {file}")
        self._stage.kubectl(verb, "-f", str(self._folder / file))

    def _map(self) -> None:
        everywhere = self._stage.api.get("/api/v1/pods")["items"]
        held = [
            Held(pod["spec"]["nodeName"], owner(pod), asked(pod))
            for pod in everywhere
            if pod["spec"].get("nodeName") and asked(pod) and pod["status"].get("phase") in ("Pending", "Running")
        ]
        self._say("")
        for line in map_lines(self._stage.nodes, self._stage.size.gpus, held):
            self._say(line)
        self._say("")


# ----------------------------------------------------------------------------------------------------------------- pods


def gates(pod: dict[str, Any]) -> list[str]:
    return [str(gate["name"]) for gate in pod["spec"].get("schedulingGates", ())]


def leaves(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def owner(pod: dict[str, Any]) -> str:
    """What made it; a pod of its own is called as it is."""
    owners = pod["metadata"].get("ownerReferences", ())
    return str(owners[0]["name"] if owners else pod["metadata"]["name"])


def asked(pod: dict[str, Any]) -> int:
    return sum(int(each.get("resources", {}).get("limits", {}).get(GPU, 0)) for each in pod["spec"]["containers"])


def of(work: Workload, pods: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Its pods that are not leaving."""
    return [
        pod
        for pod in pods
        if (pod["metadata"]["namespace"], owner(pod)) == (work.namespace, work.name) and not leaves(pod)
    ]


def has_place(work: Workload, pods: Sequence[dict[str, Any]]) -> bool:
    return sum(1 for pod in of(work, pods) if pod["spec"].get("nodeName")) >= work.pods


def runs(work: Workload, pods: Sequence[dict[str, Any]]) -> bool:
    return sum(1 for pod in of(work, pods) if pod["status"].get("phase") == "Running") >= work.pods
