"""One fleet of fake GPUs, alive: the model, the state directories it is shown through, and who uses it.

Place in the flow: daemon ─time, requests─▶ **yard** ─▶ engine ─readings─▶ publisher, exporter, answers. It is driven
from one thread and never waits. Invariant: after a step every shown machine's directory holds the engine's newest
reading, and nothing runs on a GPU for a process that has ended.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpuyard.errors import FakeGpuError, InputError
from gpuyard.fakegpu.config import read_fleet
from gpuyard.fakegpu.control import (
    ALL,
    Break,
    DaemonStatus,
    FaultStatus,
    Heal,
    Labels,
    MachineStatus,
    Request,
    Show,
    Start,
    Status,
    Stop,
    Use,
)
from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.faults import read_fault
from gpuyard.fakegpu.fleet import Fleet, no_machine, reduced
from gpuyard.fakegpu.labels import labels_of, seed_labels_of
from gpuyard.fakegpu.profile import BUSY
from gpuyard.fakegpu.publish import Publisher
from gpuyard.fakegpu.reading import MachineReading
from gpuyard.platform.clock import wall_ms
from gpuyard.platform.processes import ProcessIdentity, find_process, is_alive

MAX_SHOWN: Final = 64
"""Machines that have a state directory from the start; in a larger fleet only the first, and those asked for."""
MAX_SHOWN_IN_ALL: Final = 512


class Yard:
    """A fleet with its clock in somebody else's hand."""

    def __init__(
        self, fleet: Fleet, publisher: Publisher, at_ms: int, seed: int = 0, max_shown: int = MAX_SHOWN
    ) -> None:
        self.engine = Engine(fleet, seed=seed, at_ms=at_ms)
        self.exporter = ""
        self.config: str | None = None
        self.config_error: str | None = None
        self._publisher = publisher
        self._since_ms = at_ms
        self._max_shown = max_shown
        self._shown = self._shown_at_first()
        self._watched: dict[tuple[str, str], ProcessIdentity] = {}

    # ------------------------------------------------------------------------------------------------- time passes

    def step(self, to_ms: int) -> None:
        """Let time pass, see who has ended, and show the result."""
        self.engine.advance(max(to_ms, self.engine.now_ms))
        self._end_what_lost_its_process()
        self._publish()

    def change(self, fleet: Fleet) -> None:
        """Another fleet from now on; what is in both keeps its state."""
        self.engine.replace(fleet)
        known = set(self.engine.machines)
        for gone in [node for node in self._shown if node not in known]:
            self._publisher.remove(gone)
        self._watched = {key: process for key, process in self._watched.items() if key[0] in known}
        kept = [node for node in self._shown if node in known]
        self._shown = list(dict.fromkeys([*kept, *self._shown_at_first()]))
        self._publish()

    def close(self) -> None:
        """Take the machines away: who looks then finds no driver."""
        for node in self._shown:
            self._publisher.remove(node)
        self._publisher.close()

    def _shown_at_first(self) -> list[str]:
        machines = self.engine.machines
        return list(machines if len(machines) <= self._max_shown else machines[: min(1, self._max_shown)])

    def _end_what_lost_its_process(self) -> None:
        for (node, task), process in list(self._watched.items()):
            if not is_alive(process):
                del self._watched[node, task]
                self._stop(node, task)

    def _publish(self) -> None:
        for reading in self._readings(self._shown):
            self._publisher.write(reading)

    # ---------------------------------------------------------------------------------------------------- readings

    def readings(self, node: str | None = None) -> list[MachineReading]:
        """Of all machines, or of one."""
        return list(self.engine.readings()) if node is None else [self.engine.reading(self._known(node))]

    def _readings(self, nodes: Sequence[str]) -> list[MachineReading]:
        if len(nodes) == len(self.engine.machines):
            return list(self.engine.readings())
        return [self.engine.reading(node) for node in nodes]

    def _known(self, node: str | None) -> str:
        """The machine of that name; nobody's name is the first one."""
        machines = self.engine.machines
        if node is None and machines:
            return machines[0]
        if node is None or node not in machines:
            raise no_machine(str(node), machines)
        return node

    # ----------------------------------------------------------------------------------------------------- answers

    def answer(self, request: Request) -> object:
        """Do what was asked; the value goes back to whoever asked."""
        match request:
            case Status():
                return self._status(request)
            case Show():
                return str(self._show(self._known(request.node)))
            case Labels():
                give = seed_labels_of if request.seed_only else labels_of
                return give(self.engine.reading(self._known(request.node)))
            case _:
                self._act(request)
                self._publish()
                return None

    def _act(self, request: Request) -> None:
        match request:
            case Break(node, gpu, fault, for_ms):
                for one in self._meant(self._known(node), gpu):
                    self.engine.fault(node, one, read_fault(fault), for_ms=for_ms)
            case Heal(node, gpu):
                for one in self._meant(self._known(node), gpu):
                    self.engine.heal(node, one)
            case Use():
                self._use(request)
            case Start():
                self._start(request)
            case Stop(node, task):
                self._watched.pop((node, task), None)
                self.engine.stop(self._known(node), task)
            case _:
                raise FakeGpuError(f"this daemon does not know {type(request).__name__}", fix="start it anew")

    def _meant(self, node: str, gpu: int | str) -> Sequence[int | str]:
        """The GPU of that index or id, or all of the machine."""
        return range(len(self.engine.reading(node).devices)) if gpu == ALL else (gpu,)

    def _use(self, request: Use) -> None:
        process = _living(request.pid)
        task = self.engine.use(
            self._known(request.node),
            request.gpu,
            pid=request.pid,
            memory_bytes=request.memory_bytes,
            utilization=request.utilization,
            name=process.name,
            mig=request.mig,
        )
        self._watched[request.node, task] = process

    def _start(self, request: Start) -> None:
        process = None if request.pid is None else _living(request.pid)
        self.engine.start(
            self._known(request.node),
            request.gpu,
            request.task,
            profile=request.profile or BUSY,
            pid=request.pid,
            name=request.name or (process.name if process else request.task),
            memory_bytes=request.memory_bytes,
            holder=request.holder,
            mig=request.mig,
        )
        if process:
            self._watched[request.node, request.task] = process

    def _stop(self, node: str, task: str) -> None:
        if any(running.task == task for running in self.engine.tasks(node)):
            self.engine.stop(node, task)

    def _show(self, node: str) -> Path:
        if node not in self._shown:
            if len(self._shown) >= MAX_SHOWN_IN_ALL:
                raise FakeGpuError(f"{MAX_SHOWN_IN_ALL} machines have a state directory, and no more may")
            self._shown.append(node)
            self._publisher.write(self.engine.reading(node))
        return self._publisher.directory(node)

    # ------------------------------------------------------------------------------------------------------ status

    def _status(self, request: Status) -> DaemonStatus:
        machines = self.engine.machines
        asked = machines[: request.limit] if request.node is None else [self._known(request.node)]
        return DaemonStatus(
            pid=os.getpid(),
            home=str(self._publisher.directory("x").parent.parent),
            exporter=self.exporter,
            config=self.config,
            config_error=self.config_error,
            up_ms=self.engine.now_ms - self._since_ms,
            machine_count=len(machines),
            gpu_count=sum(len(machine.gpus) for machine in self.engine.fleet.machines),
            machines=tuple(self._machine_status(reading) for reading in self._readings(asked)),
        )

    def _machine_status(self, reading: MachineReading) -> MachineStatus:
        node = reading.machine
        now_ms = self.engine.now_ms
        faults = tuple(
            FaultStatus(fault.gpu, str(fault.fault), None if fault.until_ms is None else fault.until_ms - now_ms)
            for fault in self.engine.faults(node)
        )
        directory = str(self._publisher.directory(node)) if node in self._shown else None
        return MachineStatus(directory, reading, faults)


def _living(pid: int) -> ProcessIdentity:
    process = find_process(pid)
    if process is None:
        raise InputError(f"no process has the number {pid}", fix="name one that runs: --pid, or leave it out")
    return process


def labels_in(config: Path, request: Labels) -> dict[str, str]:
    """The labels of a machine as a fleet file describes it; nothing needs to run for that."""
    machines = reduced(read_fleet(config), request.node).machines
    reading = Engine(Fleet(machines), seed=0, at_ms=wall_ms()).reading(request.node)
    return seed_labels_of(reading) if request.seed_only else labels_of(reading)
