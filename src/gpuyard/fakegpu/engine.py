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
    engine.tasks("node-1") -> (Task(...), ...);  engine.running("node-1", 0) -> ("job-7", ...)
    engine.replace(fleet)                                       a hot change: what stays keeps its state
    engine.reading("node-1") -> MachineReading                  one machine
    engine.readings() -> Iterator[MachineReading]               all machines, much faster than one by one
    engine.machines -> names in file order;  engine.now_ms;  engine.fleet

All happens now; for another instant advance first. `gpu` is an index or an id. What cannot be is an InputError.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import numpy as np

from gpuyard.errors import InputError
from gpuyard.fakegpu.agenda import Agenda, BeginFault, BeginTask, Due, EndFault, EndTask, Script
from gpuyard.fakegpu.devices import Devices
from gpuyard.fakegpu.faults import Fault
from gpuyard.fakegpu.fleet import MIB, FaultScript, Fleet, GpuSpec, MachineSpec, TaskScript
from gpuyard.fakegpu.load import WHOLE_SHARE, Load, Needs, Start
from gpuyard.fakegpu.physics import Ints
from gpuyard.fakegpu.products import MigProfile
from gpuyard.fakegpu.profile import BUSY, DEFAULT_MEMORY_MILLI_PERCENT, FULL_MILLI_PERCENT, Profile, steady
from gpuyard.fakegpu.reading import Holder, MachineReading
from gpuyard.fakegpu.register import Register
from gpuyard.fakegpu.render import Numbers, OnGpu, Task, device_reading, machine_reading, numbers
from gpuyard.fakegpu.trouble import ActiveFault, Trouble
from gpuyard.files.suggest import did_you_mean

GIVEN: Final = "(given)"
"""The task that stands for a starting state written in the file."""

MAX_PID: Final = (1 << 31) - 1


class Placing(msgspec.Struct, frozen=True):
    """A task and where it goes."""

    gpu: int
    task: Task
    profile: Profile
    memory_bytes: int | None
    elapsed_ms: int = 0


class Engine:
    """A fleet and all that happens on it."""

    def __init__(self, fleet: Fleet, seed: int = 0, at_ms: int = 0) -> None:
        self.now_ms = at_ms
        self.began_ms: Final = at_ms
        self._load = Load(seed)
        self._trouble = Trouble()
        self._scripted: dict[FaultScript, int] = {}
        self._agenda = Agenda()
        self._take(fleet)
        self._begin_given(range(len(self._devices)))
        self._schedule((*fleet.tasks, *fleet.faults))
        self.advance(at_ms)

    def _take(self, fleet: Fleet) -> None:
        """Columns and names for a fleet, all idle."""
        self.fleet = fleet
        self._register = Register(fleet)
        self._devices = Devices(fleet, self.now_ms)
        self._on = [OnGpu([], []) for _ in range(len(self._devices))]

    # ------------------------------------------------------------------------------------------------------ time

    def advance(self, to_ms: int) -> None:
        """Let time pass, and all that is due happen in its order."""
        if to_ms < self.now_ms:
            raise InputError(f"time cannot go back from {self.now_ms} to {to_ms} ms", fix="advance to a later instant")
        while (at_ms := self._agenda.next_ms(to_ms)) is not None:
            self._run(at_ms)
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
        changed = np.unique(_array(gpus))
        rows = _array(row for gpu in changed.tolist() for row in self._on[gpu].rows)
        self._devices.settle(changed, np.full(len(changed), self.now_ms), self._load, rows)

    def _happen_now(self) -> None:
        """All that is due at this instant; tasks that begin one after the other begin together."""
        begun: list[TaskScript] = []
        while self._agenda.next_ms(self.now_ms) is not None:
            due = self._agenda.pop()
            if isinstance(due, BeginTask):
                begun.append(due.script)
                continue
            self._begin_tasks(begun)
            begun = []
            self._happen(due)
        self._begin_tasks(begun)

    def _happen(self, due: Due) -> None:
        match due:
            case BeginTask(script):
                self._begin_tasks([script])
            case EndTask(script):
                self._end_task(self._register.gpu(script.machine, script.gpu), script.task)
            case BeginFault(script):
                self._begin_fault(script)
            case EndFault(number):
                self._end_fault(number)

    def _schedule(self, scripts: Iterable[Script]) -> None:
        """Scripts that are not over yet; what should have begun begins now."""
        for script in scripts:
            end_ms = self._end_ms(script)
            if end_ms is None or end_ms > self.now_ms:
                begin = BeginTask(script) if isinstance(script, TaskScript) else BeginFault(script)
                self._agenda.put(max(self.now_ms, self.began_ms + script.at_ms), begin)

    def _end_ms(self, script: Script) -> int | None:
        return None if script.for_ms is None else self.began_ms + script.at_ms + script.for_ms

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
        since_ms: int | None = None,
    ) -> None:
        """A task starts on a GPU, or on an instance of it. A starting state written in the file ends by this.

        With `since_ms` it has been at its profile since then, though nothing of it was seen before now.
        """
        at = self._register.gpu(machine, gpu)
        index = at - self._register.gpus(machine).start
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
        elapsed_ms = 0 if since_ms is None else max(0, self.now_ms - since_ms)
        self._put([Placing(at, new, profile, memory_bytes, elapsed_ms)])

    def _put(self, placings: list[Placing]) -> None:
        """Tasks that may start do so, all at once."""
        for placing in placings:
            self._drop_given(placing.gpu)
        starts = [
            Start(
                placing.gpu,
                _key(self._register.identities[placing.gpu].uuid, placing.task.task),
                placing.profile,
                self._needs(placing.gpu, placing.memory_bytes, placing.task.mig),
                placing.elapsed_ms,
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
        chosen = self._register.gpus(machine) if gpu is None else [self._register.gpu(machine, gpu)]
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
        self,
        machine: str,
        gpu: int | str,
        *,
        pid: int,
        memory_bytes: int,
        utilization: int = 0,
        name: str = "",
        mig: int | None = None,
    ) -> str:
        """Somebody uses a GPU behind our back; the name under which it can be stopped."""
        task, profile = f"use:{pid}", steady(utilization)
        if task in self._names(self._register.gpu(machine, gpu)):
            fix = "it gives it back when it ends; name another process with --pid"
            raise InputError(f"process {pid} uses GPU {gpu} of {machine} already", fix=fix)
        self.start(machine, gpu, task, profile=profile, pid=pid, name=name, memory_bytes=memory_bytes, mig=mig)
        return task

    def clear(self, machine: str, gpu: int | str) -> None:
        """Nothing was observed on a GPU: a starting state written in the file holds no longer."""
        self._end_task(self._register.gpu(machine, gpu), GIVEN)

    def tasks(self, machine: str) -> tuple[Task, ...]:
        gpus = self._register.gpus(machine)
        return tuple(task for at in gpus for task in self._on[at].tasks if task.task != GIVEN)

    def running(self, machine: str, gpu: int | str) -> tuple[str, ...]:
        """The names of the tasks on one GPU."""
        return tuple(name for name in self._names(self._register.gpu(machine, gpu)) if name != GIVEN)

    def _begin_tasks(self, scripts: list[TaskScript]) -> None:
        """Scripted tasks get what memory is left, and yield to a task of the same name that is there."""
        placings = [self._placing(script) for script in scripts]
        free = [placing for placing in placings if placing.task.task not in self._names(placing.gpu)]
        if free:
            self._put(free)
        for script in scripts:
            end_ms = self._end_ms(script)
            if end_ms is not None:
                self._agenda.put(end_ms, EndTask(script))

    def _placing(self, script: TaskScript) -> Placing:
        gpu = self._register.gpu(script.machine, script.gpu)
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
        said = f"name it (--mig): 0 to {count - 1}" if count else "it has no instance"
        if mig is None and spec.mig_enabled:
            raise InputError(f"{where} is in MIG mode: say on which instance the task runs", fix=said)
        if mig is not None and not 0 <= mig < count:
            raise InputError(f"{where} has no MIG instance {mig}", fix=said)

    def _needs(self, gpu: int, memory_bytes: int | None, mig: int | None) -> Needs:
        """What a task there can have; nine tenths of it where it does not say."""
        spec = self._devices.specs[gpu]
        whole, room, share, unit = spec.memory_bytes, spec.memory_bytes - spec.reserved_bytes, WHOLE_SHARE, 0
        if mig is not None:
            whole = room = spec.mig[mig].memory_mib * MIB
            share, unit = spec.mig[mig].slices, mig + 1
        usual = whole * DEFAULT_MEMORY_MILLI_PERCENT // FULL_MILLI_PERCENT // MIB * MIB
        return Needs(usual if memory_bytes is None else memory_bytes, whole, room, share, unit)

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
        at = self._register.gpu(machine, gpu)
        if for_ms is not None and for_ms < 1:
            raise InputError(f"a fault must last some time, not {for_ms} ms", fix="leave it out for a fault that stays")
        until_ms = None if for_ms is None else self.now_ms + for_ms
        number = self._trouble.begin(at, fault, self.now_ms, until_ms, self._devices)
        self._settle([at])
        if until_ms is not None:
            self._agenda.put(until_ms, EndFault(number))
        return number

    def heal(self, machine: str, gpu: int | str, fault: Fault | None = None) -> int:
        """Faults of a GPU end: those like this one, or all; how many there were."""
        at = self._register.gpu(machine, gpu)
        ended = [active for active in self._trouble.on(range(at, at + 1)) if fault in (None, active.fault)]
        for active in ended:
            self._end_fault(active.number)
        return len(ended)

    def faults(self, machine: str) -> tuple[ActiveFault, ...]:
        """What lasts on a machine, oldest first, with GPUs counted in it."""
        own = self._register.gpus(machine)
        return tuple(msgspec.structs.replace(active, gpu=active.gpu - own.start) for active in self._trouble.on(own))

    def unhealthy(self) -> dict[str, frozenset[str]]:
        """The GPUs something serious is wrong with, by machine; machines without any are left out."""
        ill = np.flatnonzero(self._devices.health).tolist()
        if not ill:
            return {}
        at = set(ill)
        identities = self._register.identities
        found = {
            name: frozenset(identities[gpu].uuid for gpu in self._register.gpus(name) if gpu in at)
            for name in self.machines
        }
        return {name: ids for name, ids in found.items() if ids}

    def _begin_fault(self, script: FaultScript) -> None:
        end_ms = self._end_ms(script)
        for_ms = None if end_ms is None else end_ms - self.now_ms
        self._scripted[script] = self.fault(script.machine, script.gpu, script.fault, for_ms=for_ms)

    def _end_fault(self, number: int) -> None:
        gpu = self._trouble.end(number, self._devices)
        if gpu is not None:
            self._settle([gpu])

    # -------------------------------------------------------------------------------------------------- readings

    @property
    def machines(self) -> tuple[str, ...]:
        return self._register.names

    def reading(self, machine: str) -> MachineReading:
        """All of one machine now."""
        own = self._register.gpus(machine)
        shown = numbers(self._devices, slice(own.start, own.stop), self.now_ms)
        return self._reading(self._register.machine(machine), shown, own.start)

    def readings(self) -> Iterator[MachineReading]:
        """All machines now, in file order."""
        shown = numbers(self._devices, slice(0, len(self._devices)), self.now_ms)
        for machine in self.fleet.machines:
            yield self._reading(machine, shown, 0)

    def _reading(self, machine: MachineSpec, shown: Numbers, offset: int) -> MachineReading:
        """A machine, out of numbers that begin with the GPU at `offset`."""
        own = self._register.gpus(machine.name)
        devices = (
            device_reading(index, at - offset, spec, self._register.identities[at], shown, self._on[at], self._load)
            for index, (at, spec) in enumerate(zip(own, machine.gpus, strict=True))
        )
        return machine_reading(machine, self.now_ms, devices)

    # ------------------------------------------------------------------------------------------------ hot change

    def replace(self, fleet: Fleet) -> None:
        """Another fleet from now on: a GPU that is still there (same machine, same id) keeps all it has and does."""
        self._drop_scripts(fleet)
        before, before_on, before_devices, known = self._register, self._on, self._devices, set(_scripts(self.fleet))
        self._take(fleet)
        places = self._register.places
        moved = {old: places[key] for key, old in before.places.items() if key in places}
        self._devices.carry(before_devices, _array(moved), _array(moved.values()))
        for old, (on, spec) in enumerate(zip(before_on, before_devices.specs, strict=True)):
            if on.rows:
                self._move(on, spec, moved.get(old))
        self._trouble.move(moved, self._devices)
        self._settle(range(len(self._devices)))
        self._renew_given(before_devices, moved)
        fresh = set(range(len(self._devices))).difference(moved.values())
        self._schedule(
            script
            for script in _scripts(fleet)
            if script not in known or self._register.gpu(script.machine, script.gpu) in fresh
        )
        self.advance(self.now_ms)

    def _drop_scripts(self, fleet: Fleet) -> None:
        """What the new file no longer says ends, or does not begin."""
        kept = set(_scripts(fleet))
        for task in self.fleet.tasks:
            if task not in kept:
                self._end_task(self._register.gpu(task.machine, task.gpu), task.task)
        for fault in [fault for fault in self._scripted if fault not in kept]:
            self._end_fault(self._scripted.pop(fault))
        self._agenda.keep(kept)

    def _move(self, on: OnGpu, before: GpuSpec, gpu: int | None) -> None:
        """The tasks of a GPU to its new place, but for those that have none there any more."""
        if gpu is None:
            for row in on.rows:
                self._load.remove(row)
            return
        after = self._devices.specs[gpu]
        for task, row in zip(on.tasks, on.rows, strict=True):
            if not _fits(task, after):
                self._load.remove(row)
                continue
            self._load.gpu[row] = gpu
            if _room(before) != _room(after):
                self._load.give([self._needs(gpu, int(self._load.own_memory[row]), task.mig)], np.array([row]))
            self._on[gpu].tasks.append(task)
            self._on[gpu].rows.append(row)

    def _renew_given(self, before: Devices, moved: dict[int, int]) -> None:
        """States written down for new GPUs, and those written anew where nothing else has been observed."""
        specs = self._devices.specs
        unchanged = {new for old, new in moved.items() if before.specs[old].given == specs[new].given}
        changed = [gpu for gpu in range(len(specs)) if gpu not in unchanged and self._names(gpu) in ([], [GIVEN])]
        for gpu in changed:
            self._end_task(gpu, GIVEN)
        self._begin_given(changed)


def _scripts(fleet: Fleet) -> Iterator[Script]:
    yield from fleet.tasks
    yield from fleet.faults


def _key(uuid: str, task: str) -> int:
    """What tells the draws of one task from those of all others."""
    return int.from_bytes(hashlib.blake2b(f"{uuid}\0{task}".encode(), digest_size=8).digest())


def _fits(task: Task, spec: GpuSpec) -> bool:
    """Whether what a task ran on is still there: the whole GPU, or an instance of that number."""
    return not spec.mig if task.mig is None else task.mig < len(spec.mig)


def _room(spec: GpuSpec) -> tuple[int, int, tuple[MigProfile, ...]]:
    """What decides how much memory a task can have."""
    return spec.memory_bytes, spec.reserved_bytes, spec.mig


def _array(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, np.int64)
