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
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import msgspec
import numpy as np

from gpuyard.errors import InputError
from gpuyard.fakegpu.devices import HEALTHS, Devices
from gpuyard.fakegpu.faults import Fault, FaultKind
from gpuyard.fakegpu.fleet import MIB, FaultScript, Fleet, GpuSpec, MachineSpec, TaskScript
from gpuyard.fakegpu.load import WHOLE_SHARE, Load, Needs, Start
from gpuyard.fakegpu.physics import Ints
from gpuyard.fakegpu.profile import (
    BUSY,
    DEFAULT_MEMORY_MILLI_PERCENT,
    FULL_MILLI_PERCENT,
    Profile,
    steady,
)
from gpuyard.fakegpu.reading import DeviceReading, Health, Holder, MachineReading
from gpuyard.fakegpu.render import (
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


class Placing(msgspec.Struct, frozen=True):
    """A task and where it goes."""

    gpu: int
    task: Task
    profile: Profile
    memory_bytes: int | None


Due: TypeAlias = Begin | EndTask | EndFault


class Engine:
    """A fleet and all that happens on it."""

    def __init__(self, fleet: Fleet, seed: int = 0, at_ms: int = 0) -> None:
        self.now_ms = at_ms
        self.began_ms: Final = at_ms
        self._load = Load(seed)
        self._faults: dict[int, ActiveFault] = {}
        self._scripted: dict[FaultScript, int] = {}
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
        self._on: list[OnGpu] = [OnGpu([], []) for _ in self._identity]

    # ------------------------------------------------------------------------------------------------------ time

    def advance(self, to_ms: int) -> None:
        """Let time pass, and all that is due happen in its order."""
        if to_ms < self.now_ms:
            raise InputError(f"time cannot go back from {self.now_ms} to {to_ms} ms", fix="advance to a later instant")
        while self._due and self._due[0][0] <= to_ms:
            self._run(self._due[0][0])
            self._happen_now()
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

    def _settle(self, gpus: Iterable[int]) -> None:
        """Something about these GPUs has changed now."""
        changed = np.unique(np.fromiter(gpus, np.int64))
        rows = [row for gpu in changed.tolist() for row in self._on[gpu].rows]
        self._devices.settle(changed, np.full(len(changed), self.now_ms), self._load, np.array(rows, np.int64))

    def _happen_now(self) -> None:
        """All that is due at this instant, in the order in which it was put down; tasks begin together."""
        begun: list[TaskScript] = []
        while self._due and self._due[0][0] <= self.now_ms:
            due = heapq.heappop(self._due)[2]
            if isinstance(due, Begin) and isinstance(due.script, TaskScript):
                begun.append(due.script)
                continue
            self._begin_tasks(begun)
            begun = []
            self._happen(due)
        self._begin_tasks(begun)

    def _happen(self, due: Due) -> None:
        match due:
            case Begin(FaultScript() as script):
                self._begin_fault(script)
            case EndTask(script):
                self._end_task(self._gpu(script.machine, script.gpu), script.task)
            case EndFault(number):
                self._end_fault(number)

    def _schedule(self, scripts: Iterable[TaskScript | FaultScript]) -> None:
        """Scripts that are not over yet; what should have begun begins now."""
        for script in scripts:
            end_ms = self._end_ms(script)
            if end_ms is None or end_ms > self.now_ms:
                self._push(max(self.now_ms, self.began_ms + script.at_ms), Begin(script))

    def _end_ms(self, script: TaskScript | FaultScript) -> int | None:
        return None if script.for_ms is None else self.began_ms + script.at_ms + script.for_ms

    def _push(self, at_ms: int, due: Due) -> None:
        self._number += 1
        heapq.heappush(self._due, (at_ms, self._number, due))

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
        index = at - self._first[machine]
        where = f"GPU {index} of {machine}"
        if any(other.task == task for other in self._on[at].tasks):
            raise InputError(f'task "{task}" runs on {where} already', fix="stop it first, or give it another name")
        if pid is not None and not 1 <= pid <= MAX_PID:
            raise InputError(f"{pid} is not a process id", fix=f"from 1 to {MAX_PID}")
        self._check_mig(self._devices.specs[at], mig, where)
        free = self._free(at, mig)
        if memory_bytes is not None and not 0 <= memory_bytes <= free:
            what = f"{where} has {free // MIB} MiB free, not {memory_bytes // MIB} MiB"
            raise InputError(what, fix=f"ask for at most {free // MIB} MiB")
        new = Task(task, index, pid, name, kind, holder, mig, self.now_ms)
        self._put([Placing(at, new, profile, memory_bytes)])

    def _put(self, placings: list[Placing]) -> None:
        """Tasks that may start do so, all at once."""
        for placing in placings:
            self._drop_given(placing.gpu)
        starts = [
            Start(
                placing.gpu,
                _key(self._identity[placing.gpu].uuid, placing.task.task),
                placing.profile,
                self._needs(placing.gpu, placing.memory_bytes, placing.task.mig),
            )
            for placing in placings
        ]
        rows = self._load.add(starts, self.now_ms)
        for placing, row in zip(placings, rows.tolist(), strict=True):
            self._on[placing.gpu].tasks.append(placing.task)
            self._on[placing.gpu].rows.append(row)
        self._settle(placing.gpu for placing in placings)

    def _drop_given(self, gpu: int) -> None:
        """A state that was written down goes, because something else is known now."""
        on = self._on[gpu]
        if on.tasks and on.tasks[0].task == GIVEN:
            on.tasks.pop(0)
            self._load.remove(on.rows.pop(0))

    def stop(self, machine: str, task: str, gpu: int | str | None = None) -> None:
        """A task ends on one GPU, or on all GPUs of the machine."""
        first = self._first_gpu(machine)
        chosen = range(first, first + len(self._machine[machine].gpus)) if gpu is None else [self._gpu(machine, gpu)]
        running = [at for at in chosen if any(on.task == task for on in self._on[at].tasks)]
        if not running:
            known = sorted({on.task for at in chosen for on in self._on[at].tasks if on.task != GIVEN})
            fix = f"running there: {', '.join(known)}" if known else "nothing runs there"
            raise InputError(f'no task "{task}" runs on {machine}{did_you_mean(task, known)}', fix=fix)
        for at in running:
            self._end_task(at, task)

    def _end_task(self, gpu: int, task: str) -> None:
        """One task of a GPU ends, if it is still there."""
        on = self._on[gpu]
        for place, other in enumerate(on.tasks):
            if other.task == task:
                on.tasks.pop(place)
                self._load.remove(on.rows.pop(place))
                self._settle([gpu])
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
        return tuple(task for at in gpus for task in self._on[at].tasks if task.task != GIVEN)

    def _begin_tasks(self, scripts: list[TaskScript]) -> None:
        """Scripted tasks get what memory is left, and yield to a task of the same name that is there."""
        placings = [self._placing(script) for script in scripts]
        free = [placing for placing in placings if placing.task.task not in self._names(placing.gpu)]
        if free:
            self._put(free)
        for script in scripts:
            end_ms = self._end_ms(script)
            if end_ms is not None:
                self._push(end_ms, EndTask(script))

    def _placing(self, script: TaskScript) -> Placing:
        gpu = self._gpu(script.machine, script.gpu)
        task = Task(script.task, script.gpu, script.pid, script.name, "C", script.holder, script.mig, self.now_ms)
        return Placing(gpu, task, script.profile, script.memory_bytes)

    def _names(self, gpu: int) -> list[str]:
        return [task.task for task in self._on[gpu].tasks]

    def _begin_given(self, gpus: Iterable[int]) -> None:
        """Starting states that are written down, as warm as if they had lasted."""
        specs = self._devices.specs
        given = [(gpu, specs[gpu].given) for gpu in gpus]
        placings = [
            Placing(gpu, Task(GIVEN, 0, None, "", "C", state.holder, None, self.now_ms),
                    steady(state.gpu_percent), state.memory_used_bytes)
            for gpu, state in given
            if state is not None
        ]  # fmt: skip
        if placings:
            self._put(placings)
            self._devices.warm_up(np.array([placing.gpu for placing in placings]))

    def _check_mig(self, spec: GpuSpec, mig: int | None, where: str) -> None:
        count = len(spec.mig)
        if mig is None and count:
            raise InputError(f"{where} is cut into MIG instances", fix=f"say which: 0 to {count - 1}")
        if mig is not None and not 0 <= mig < count:
            fix = f"instances there: 0 to {count - 1}" if count else "it is not cut; leave the instance out"
            raise InputError(f"{where} has no MIG instance {mig}", fix=fix)

    def _needs(self, gpu: int, memory_bytes: int | None, mig: int | None) -> Needs:
        """What a task there can have; nine tenths of it where it does not say."""
        spec = self._devices.specs[gpu]
        if mig is None or mig >= len(spec.mig):
            whole, share, room = spec.memory_bytes, WHOLE_SHARE, spec.memory_bytes - spec.reserved_bytes
        else:
            whole = room = spec.mig[mig].memory_mib * MIB
            share = spec.mig[mig].slices
        usual = whole * DEFAULT_MEMORY_MILLI_PERCENT // FULL_MILLI_PERCENT // MIB * MIB
        return Needs(usual if memory_bytes is None else memory_bytes, whole, room, share)

    def _free(self, gpu: int, mig: int | None) -> int:
        """Bytes another task could have there now."""
        if mig is None:
            room = int(self._devices.room_bytes(np.array([gpu]))[0])
        else:
            room = self._devices.specs[gpu].mig[mig].memory_mib * MIB
        on = self._on[gpu]
        held = sum(
            int(self._load.memory[row])
            for task, row in zip(on.tasks, on.rows, strict=True)
            if task.mig == mig and task.task != GIVEN
        )
        return max(0, room - held)

    # ---------------------------------------------------------------------------------------------------- faults

    def fault(self, machine: str, gpu: int | str, fault: Fault, *, for_ms: int | None = None) -> int:
        """A fault begins; its number."""
        at = self._gpu(machine, gpu)
        self._number += 1
        number = self._number
        until = None if for_ms is None else self.now_ms + for_ms
        self._faults[number] = ActiveFault(number, at, fault, self.now_ms, until)
        self._count(at, fault)
        self._show_faults(at)
        if until is not None:
            self._push(until, EndFault(number))
        return number

    def _begin_fault(self, script: FaultScript) -> None:
        end_ms = self._end_ms(script)
        for_ms = None if end_ms is None else end_ms - self.now_ms
        self._scripted[script] = self.fault(script.machine, script.gpu, script.fault, for_ms=for_ms)

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
        devices.lost_bytes[gpu] = sum(fault.lost_of(devices.specs[gpu].memory_bytes) for fault in faults)
        devices.last_xid[gpu] = next((fault.xid for fault in reversed(faults) if fault.xid), 0)
        self._settle([gpu])

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
            return device_reading(index, at - offset, spec, self._identity[at], shown, self._on[at], self._load)

        return machine_reading(machine, self.now_ms, (device(*entry) for entry in enumerate(machine.gpus)))

    # ------------------------------------------------------------------------------------------------ hot change

    def replace(self, fleet: Fleet) -> None:
        """Another fleet from now on: a GPU that is still there (same machine, same id) keeps all it has and does."""
        old_on, old_devices, old_fleet, old_place = self._on, self._devices, self.fleet, self._places()
        self._drop_scripts(fleet)
        self._take(fleet)
        moved = {old: new for key, new in self._places().items() if (old := old_place.get(key)) is not None}
        self._devices.carry(old_devices, _array(moved.keys()), _array(moved.values()))
        for old, on in enumerate(old_on):
            self._move(on, moved.get(old))
        self._move_faults(moved)
        everyone = range(len(self._devices))
        self._settle(everyone)
        self._renew_given(old_devices, moved)
        fresh = set(everyone) - set(moved.values())
        known = {*old_fleet.tasks, *old_fleet.faults}
        scripts: list[TaskScript | FaultScript] = [*fleet.tasks, *fleet.faults]
        self._schedule(each for each in scripts if each not in known or self._gpu(each.machine, each.gpu) in fresh)
        self.advance(self.now_ms)

    def _places(self) -> dict[tuple[str, str], int]:
        """Where each GPU is in the columns, by its machine and id."""
        return {
            (machine.name, gpu.uuid): self._first[machine.name] + index
            for machine in self.fleet.machines
            for index, gpu in enumerate(machine.gpus)
        }

    def _drop_scripts(self, fleet: Fleet) -> None:
        """What the new file no longer says ends, or does not begin."""
        kept = {*fleet.tasks, *fleet.faults}
        for task in self.fleet.tasks:
            if task not in kept:
                self._end_task(self._gpu(task.machine, task.gpu), task.task)
        for fault in [fault for fault in self._scripted if fault not in kept]:
            self._end_fault(self._scripted.pop(fault))
        self._due = [entry for entry in self._due if isinstance(entry[2], EndFault) or entry[2].script in kept]
        heapq.heapify(self._due)

    def _move(self, on: OnGpu, gpu: int | None) -> None:
        """The tasks of a GPU to its new place, but for those that have none there any more."""
        for task, row in zip(on.tasks, on.rows, strict=True):
            if gpu is None or not _fits(task, self._devices.specs[gpu]):
                self._load.remove(row)
                continue
            self._load.gpu[row] = gpu
            self._load.give([self._needs(gpu, int(self._load.own_memory[row]), task.mig)], np.array([row]))
            self._on[gpu].tasks.append(task)
            self._on[gpu].rows.append(row)

    def _move_faults(self, moved: dict[int, int]) -> None:
        self._faults = {
            number: msgspec.structs.replace(active, gpu=moved[active.gpu])
            for number, active in self._faults.items()
            if active.gpu in moved
        }

    def _renew_given(self, old: Devices, moved: dict[int, int]) -> None:
        """States written down for new GPUs, and those written anew where nothing else has been observed."""
        unchanged = {new for before, new in moved.items() if old.specs[before].given == self._devices.specs[new].given}
        for gpu in range(len(self._devices)):
            if gpu not in unchanged and self._names(gpu) in ([], [GIVEN]):
                self._end_task(gpu, GIVEN)
                self._begin_given([gpu])

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


def _fits(task: Task, spec: GpuSpec) -> bool:
    """Whether what a task ran on is still there: the whole GPU, or an instance of that number."""
    return not spec.mig if task.mig is None else task.mig < len(spec.mig)


def _array(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, np.int64)
