"""The model of a fleet: what every GPU does follows from what runs on it, in real or virtual time.

Place in the flow: Fleet ─**engine**─▶ MachineReading ─▶ faces. Time is an argument (milliseconds, any origin), the seed
is an argument, nothing here reads a clock. Between changes of load power is constant, so a reading at any instant is
exact however time was stepped: `advance(10)` and ten times `advance(1)` give the same bytes.

    engine = Engine(fleet, seed=0, at_ms=0)
    engine.advance(to_ms)                                       time passes; phases end, scripts of the file happen
    engine.start("node-1", 0, "job-7", profile=BUSY, pid=4711, name="python", memory_bytes=4 << 30,
                 holder=Holder("ns", "pod", "container"), mig=None)
    engine.stop("node-1", "job-7", gpu=None)                    on one GPU, or on all of the machine
    engine.use("node-1", 0, pid=99, memory_bytes=4 << 30)       somebody behind our back; ends by stop(..., "use:99")
    engine.clear("node-1", 0)                                   seen empty: a starting state written in the file ends
    engine.fault("node-1", 0, read_fault("xid:79"), for_ms=300_000)
    engine.heal("node-1", 0, fault=None)                        ends such faults, or all of the GPU
    engine.faults("node-1") -> (ActiveFault(number, gpu, fault, since_ms, until_ms), ...)
    engine.tasks("node-1") -> (Task(...), ...)
    engine.replace(fleet)                                       a hot change: what stays keeps its state
    engine.reading("node-1") -> MachineReading                  one machine
    engine.readings() -> Iterator[MachineReading]               all machines, much faster than one by one
    engine.machines -> names in file order;  engine.now_ms;  engine.fleet

All happens now; for another instant advance first. `gpu` is an index or an id. What cannot be is an InputError.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec
import numpy as np

from gpuyard.errors import InputError
from gpuyard.fakegpu.devices import HEALTHS, Devices
from gpuyard.fakegpu.faults import Fault, FaultKind
from gpuyard.fakegpu.fleet import MIB, FaultScript, Fleet, GpuSpec, MachineSpec, TaskScript
from gpuyard.fakegpu.load import WHOLE_SHARE, Load, Needs
from gpuyard.fakegpu.profile import (
    BUSY,
    DEFAULT_MEMORY_MILLI_PERCENT,
    FULL_MILLI_PERCENT,
    Profile,
    steady,
)
from gpuyard.fakegpu.reading import DeviceReading, Health, Holder, MachineReading
from gpuyard.fakegpu.render import (
    NOTHING,
    ActiveFault,
    Identity,
    Numbers,
    OnGpu,
    Task,
    device_reading,
    identity,
    machine_reading,
    numbers,
)
from gpuyard.files.suggest import did_you_mean

GIVEN: Final = "(given)"
"""The task that stands for a starting state written in the file."""

MAX_PID: Final = (1 << 31) - 1


class Begin(msgspec.Struct, frozen=True):
    """A script of the file begins."""

    script: TaskScript | FaultScript


class EndTask(msgspec.Struct, frozen=True):
    """A scripted task is over."""

    script: TaskScript


class EndFault(msgspec.Struct, frozen=True):
    """The time of a fault is over."""

    number: int


Due: TypeAlias = Begin | EndTask | EndFault


class Engine:
    """A fleet and all that happens on it."""

    def __init__(self, fleet: Fleet, seed: int = 0, at_ms: int = 0) -> None:
        self.now_ms = at_ms
        self.began_ms: Final = at_ms
        self._load = Load(seed)
        self._on: dict[int, tuple[list[Task], list[int]]] = {}
        self._faults: dict[int, ActiveFault] = {}
        self._due: list[tuple[int, int, Due]] = []
        self._number = 0
        self._take(fleet)
        self._begin_given(range(len(self._devices)))
        self._schedule((*fleet.tasks, *fleet.faults))
        self.advance(at_ms)

    def _take(self, fleet: Fleet) -> None:
        """Columns and names for a fleet, all idle."""
        self.fleet = fleet
        self._devices = Devices(fleet, self.now_ms)
        self._first: dict[str, int] = {}
        self._machine: dict[str, MachineSpec] = {}
        self._identity: list[Identity] = []
        for machine in fleet.machines:
            self._first[machine.name] = len(self._identity)
            self._machine[machine.name] = machine
            self._identity.extend(identity(gpu, index) for index, gpu in enumerate(machine.gpus))

    # ------------------------------------------------------------------------------------------------------ time

    def advance(self, to_ms: int) -> None:
        """Let time pass, and all that is due happen in its order."""
        if to_ms < self.now_ms:
            raise InputError(f"time cannot go back from {self.now_ms} to {to_ms} ms", fix="advance to a later instant")
        while self._due and self._due[0][0] <= to_ms:
            at_ms, _, due = heapq.heappop(self._due)
            self._run(at_ms)
            self._happen(due)
        self._run(to_ms)

    def _run(self, to_ms: int) -> None:
        """Changes of phase up to an instant: in each pass every GPU takes its own next one."""
        devices, load = self._devices, self._load
        while len(devices) and devices.next_ms.min() <= to_ms:
            changing = devices.next_ms <= to_ms
            gpus = np.flatnonzero(changing)
            rows = load.rows_of(changing)
            at_ms = devices.next_ms[load.gpu[rows]]
            now = load.next_ms[rows] <= at_ms
            load.change(rows[now], at_ms[now])
            devices.settle(gpus, devices.next_ms[gpus], load, rows)
        self.now_ms = to_ms

    def _settle(self, gpu: int) -> None:
        """Something about one GPU has changed now."""
        rows = self._on[gpu][1] if gpu in self._on else []
        gpus = np.array([gpu])
        self._devices.settle(gpus, np.array([self.now_ms]), self._load, np.array(rows, np.int64))

    def _schedule(self, scripts: tuple[TaskScript | FaultScript, ...]) -> None:
        for script in scripts:
            self._push(self.began_ms + script.at_ms, Begin(script))

    def _push(self, at_ms: int, due: Due) -> None:
        self._number += 1
        heapq.heappush(self._due, (at_ms, self._number, due))

    def _happen(self, due: Due) -> None:
        match due:
            case Begin(TaskScript() as script):
                self._begin_task(script)
            case Begin(FaultScript() as script):
                self.fault(script.machine, script.gpu, script.fault, for_ms=script.for_ms)
            case EndTask(script):
                self._end_task(self._gpu(script.machine, script.gpu), script.task)
            case EndFault(number):
                self._end_fault(number)

    # ----------------------------------------------------------------------------------------------------- tasks

    def start(
        self,
        machine: str,
        gpu: int | str,
        task: str,
        *,
        profile: Profile = BUSY,
        pid: int | None = None,
        name: str = "",
        kind: str = "C",
        memory_bytes: int | None = None,
        holder: Holder | None = None,
        mig: int | None = None,
    ) -> None:
        """A task starts on a GPU, or on an instance of it. A starting state written in the file ends by this."""
        at = self._gpu(machine, gpu)
        spec = self._devices.specs[at]
        tasks, _ = self._on.get(at, ([], []))
        index = at - self._first[machine]
        where = f"GPU {index} of {machine}"
        if any(other.task == task for other in tasks):
            raise InputError(f'task "{task}" runs on {where} already', fix="stop it first, or give it another name")
        if pid is not None and not 1 <= pid <= MAX_PID:
            raise InputError(f"{pid} is not a process id", fix=f"from 1 to {MAX_PID}")
        self._check_mig(spec, mig, where)
        if any(other.task == GIVEN for other in tasks):
            self._end_task(at, GIVEN)
        needs = self._needs(at, memory_bytes, mig, where)
        self._add(at, Task(task, index, pid, name, kind, holder, mig, self.now_ms), profile, needs)

    def _add(self, gpu: int, task: Task, profile: Profile, needs: Needs) -> None:
        row = self._load.add(gpu, _key(self._identity[gpu].uuid, task.task), profile, needs, self.now_ms)
        tasks, rows = self._on.setdefault(gpu, ([], []))
        tasks.append(task)
        rows.append(row)
        self._settle(gpu)

    def stop(self, machine: str, task: str, gpu: int | str | None = None) -> None:
        """A task ends on one GPU, or on all GPUs of the machine."""
        first = self._first_gpu(machine)
        chosen = range(first, first + len(self._machine[machine].gpus)) if gpu is None else [self._gpu(machine, gpu)]
        running = [at for at in chosen if at in self._on and any(on.task == task for on in self._on[at][0])]
        if not running:
            known = [on.task for at in chosen for on in self._on.get(at, ([], []))[0]]
            fix = f"running there: {', '.join(known)}" if known else "nothing runs there"
            raise InputError(f'no task "{task}" runs on {machine}{did_you_mean(task, known)}', fix=fix)
        for at in running:
            self._end_task(at, task)

    def _end_task(self, gpu: int, task: str) -> None:
        tasks, rows = self._on.get(gpu, ([], []))
        for place, other in enumerate(tasks):
            if other.task == task:
                self._load.remove(rows.pop(place))
                tasks.pop(place)
                self._settle(gpu)
                return

    def use(
        self, machine: str, gpu: int | str, *, pid: int, memory_bytes: int, utilization: int = 0, name: str = ""
    ) -> str:
        """Somebody uses a GPU behind our back; the name under which it can be stopped."""
        task = f"use:{pid}"
        self.start(machine, gpu, task, profile=steady(utilization), pid=pid, name=name, memory_bytes=memory_bytes)
        return task

    def clear(self, machine: str, gpu: int | str) -> None:
        """Nothing was observed on a GPU: a starting state written in the file holds no longer."""
        self._end_task(self._gpu(machine, gpu), GIVEN)

    def tasks(self, machine: str) -> tuple[Task, ...]:
        first = self._first_gpu(machine)
        gpus = range(first, first + len(self._machine[machine].gpus))
        return tuple(task for at in gpus for task in self._on.get(at, ([], []))[0] if task.task != GIVEN)

    def _begin_task(self, script: TaskScript) -> None:
        self.start(
            script.machine,
            script.gpu,
            script.task,
            profile=script.profile,
            pid=script.pid,
            name=script.name,
            memory_bytes=script.memory_bytes,
            holder=script.holder,
            mig=script.mig,
        )
        if script.for_ms is not None:
            self._push(self.now_ms + script.for_ms, EndTask(script))

    def _begin_given(self, gpus: range) -> None:
        for gpu in gpus:
            given = self._devices.specs[gpu].given
            if given is not None:
                task = Task(GIVEN, 0, None, "", "C", given.holder, None, self.now_ms)
                room = self._devices.specs[gpu].memory_bytes
                self._add(gpu, task, steady(given.gpu_percent), Needs(given.memory_used_bytes, room, room, WHOLE_SHARE))

    def _check_mig(self, spec: GpuSpec, mig: int | None, where: str) -> None:
        count = len(spec.mig)
        if mig is None and count:
            raise InputError(f"{where} is cut into MIG instances", fix=f"say which: 0 to {count - 1}")
        if mig is not None and not 0 <= mig < count:
            fix = f"instances there: 0 to {count - 1}" if count else "it is not cut; leave the instance out"
            raise InputError(f"{where} has no MIG instance {mig}", fix=fix)

    def _needs(self, gpu: int, memory_bytes: int | None, mig: int | None, where: str) -> Needs:
        spec = self._devices.specs[gpu]
        one = np.array([gpu])
        room = int(self._devices.room_bytes(one)[0])
        whole, share = spec.memory_bytes, WHOLE_SHARE
        if mig is not None:
            whole = room = spec.mig[mig].memory_mib * MIB
            share = spec.mig[mig].slices
        free = room - self._held(gpu, mig)
        if memory_bytes is None:
            own = whole * DEFAULT_MEMORY_MILLI_PERCENT // FULL_MILLI_PERCENT // MIB * MIB
            return Needs(own, whole, room, share)
        if not 0 <= memory_bytes <= free:
            fix = f"ask for at most {max(free, 0) // MIB} MiB"
            raise InputError(f"{where} has {max(free, 0) // MIB} MiB free, not {memory_bytes // MIB} MiB", fix=fix)
        return Needs(memory_bytes, whole, room, share)

    def _held(self, gpu: int, mig: int | None) -> int:
        tasks, rows = self._on.get(gpu, ([], []))
        return sum(int(self._load.memory[row]) for task, row in zip(tasks, rows, strict=True) if task.mig == mig)

    # ---------------------------------------------------------------------------------------------------- faults

    def fault(self, machine: str, gpu: int | str, fault: Fault, *, for_ms: int | None = None) -> int:
        """A fault begins; its number."""
        at = self._gpu(machine, gpu)
        if fault.kind is FaultKind.MEMORY_LOSS:
            fault = self._sized(fault, at)
        self._number += 1
        number = self._number
        until = None if for_ms is None else self.now_ms + for_ms
        self._faults[number] = ActiveFault(number, at, fault, self.now_ms, until)
        self._count(at, fault)
        self._show_faults(at)
        if until is not None:
            self._push(until, EndFault(number))
        return number

    def heal(self, machine: str, gpu: int | str, fault: Fault | None = None) -> int:
        """Faults of a GPU end: these, or all; how many there were."""
        at = self._gpu(machine, gpu)
        ended = [
            active.number for active in self._faults.values() if active.gpu == at and fault in (None, active.fault)
        ]
        for number in ended:
            self._end_fault(number)
        return len(ended)

    def faults(self, machine: str) -> tuple[ActiveFault, ...]:
        """What lasts on a machine, oldest first, with GPUs counted in it."""
        first = self._first_gpu(machine)
        own = range(first, first + len(self._machine[machine].gpus))
        active = [fault for fault in self._faults.values() if fault.gpu in own]
        return tuple(msgspec.structs.replace(fault, gpu=fault.gpu - first) for fault in active)

    def _sized(self, fault: Fault, gpu: int) -> Fault:
        installed = self._devices.specs[gpu].memory_bytes
        return msgspec.structs.replace(fault, lost_bytes=fault.lost_bytes or installed // 2)

    def _count(self, gpu: int, fault: Fault) -> None:
        """What a fault leaves in the counters."""
        devices = self._devices
        devices.xid_count[gpu] += fault.xid != 0
        for counted in (devices.ecc_volatile, devices.ecc_aggregate):
            counted[gpu] += (fault.corrected, fault.uncorrected)

    def _end_fault(self, number: int) -> None:
        active = self._faults.pop(number, None)
        if active is None:
            return
        if active.fault.health is not Health.OK:
            self._devices.ecc_volatile[active.gpu] = 0
        self._show_faults(active.gpu)

    def _show_faults(self, gpu: int) -> None:
        """All faults that last, together: the worst health, the newest Xid, the sum of what is lost."""
        faults = [active.fault for active in self._faults.values() if active.gpu == gpu]
        devices = self._devices
        devices.health[gpu] = max((HEALTHS.index(fault.health) for fault in faults), default=0)
        devices.throttled[gpu] = any(fault.kind is FaultKind.THROTTLE for fault in faults)
        devices.lost_bytes[gpu] = sum(fault.lost_bytes for fault in faults)
        devices.last_xid[gpu] = next((fault.xid for fault in reversed(faults) if fault.xid), 0)
        self._settle(gpu)

    # -------------------------------------------------------------------------------------------------- readings

    @property
    def machines(self) -> tuple[str, ...]:
        return tuple(self._first)

    def reading(self, machine: str) -> MachineReading:
        """All of one machine now."""
        first = self._first_gpu(machine)
        spec = self._machine[machine]
        shown = numbers(self._devices, slice(first, first + len(spec.gpus)), self.now_ms)
        return self._reading(spec, first, shown, first)

    def readings(self) -> Iterator[MachineReading]:
        """All machines now, in file order."""
        shown = numbers(self._devices, slice(0, len(self._devices)), self.now_ms)
        for machine in self.fleet.machines:
            yield self._reading(machine, self._first[machine.name], shown, 0)

    def _reading(self, machine: MachineSpec, first: int, shown: Numbers, offset: int) -> MachineReading:
        def device(index: int, spec: GpuSpec) -> DeviceReading:
            at = first + index
            on = self._on.get(at)
            here = NOTHING if on is None else OnGpu(*on)
            return device_reading(index, at - offset, spec, self._identity[at], shown, here, self._load)

        return machine_reading(machine, self.now_ms, (device(*entry) for entry in enumerate(machine.gpus)))

    # ------------------------------------------------------------------------------------------------ hot change

    def replace(self, fleet: Fleet) -> None:
        """Another fleet from now on."""
        raise NotImplementedError

    # ----------------------------------------------------------------------------------------------------- names

    def _first_gpu(self, machine: str) -> int:
        if machine not in self._first:
            names = list(self._first)
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise InputError(f'no machine "{machine}"{did_you_mean(machine, names)}', fix=f"machines: {shown}")
        return self._first[machine]

    def _gpu(self, machine: str, gpu: int | str) -> int:
        """The place of a GPU in the columns."""
        first = self._first_gpu(machine)
        gpus = self._machine[machine].gpus
        if isinstance(gpu, int):
            if 0 <= gpu < len(gpus):
                return first + gpu
            raise InputError(f"{machine} has no GPU {gpu}", fix=f"it has {len(gpus)}, counted from 0")
        for index, spec in enumerate(gpus):
            if spec.uuid == gpu:
                return first + index
        ids = [spec.uuid for spec in gpus]
        raise InputError(f'{machine} has no GPU "{gpu}"{did_you_mean(gpu, ids)}', fix="name its index or its id")


def _key(uuid: str, task: str) -> int:
    """What tells the draws of one task from those of all others."""
    return int.from_bytes(hashlib.blake2b(f"{uuid}\0{task}".encode(), digest_size=8).digest())
