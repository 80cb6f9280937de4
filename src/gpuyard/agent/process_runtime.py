"""Tasks as processes of this machine: the `Runtime` of the agent's core.

Place in the flow: core ─start, stop, forget, renew─▶ **process_runtime** ─folders─▶ supervisors ─states─▶ core. All
that must survive the agent lies in folders, so an agent that starts reads them and goes on: `load`.

Invariant: a folder of an attempt appears whole, with the name of the attempt; while it is there, or kept, that attempt
is never started again.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import msgspec

from gpuyard.agent import attempts, environment, records
from gpuyard.agent.attempts import NEW, START_MS, Attempt, Holding
from gpuyard.agent.cgroups import Cgroups
from gpuyard.agent.home import Home, folder_name, job_folder_name
from gpuyard.agent.nursery import Nursery
from gpuyard.agent.parcels import Parcels
from gpuyard.agent.parcels import prune as prune_parcels
from gpuyard.agent.records import Record, record
from gpuyard.agent.supervisor.files import ORDERS, SPEC
from gpuyard.agent.users import Account, account, own_account
from gpuyard.errors import AgentError
from gpuyard.model.jobs import DeviceShare
from gpuyard.platform.chance import token
from gpuyard.platform.clock import boot_ms, wall_ms
from gpuyard.wire.agents import Assignment, AttemptId, AttemptReport, Ending, Isolation, Phase, ProcessView, Stop

LOG_PIECE_BYTES: Final = 16 << 20
LOG_PIECES: Final = 8
"""So a task keeps its last 112 MiB at least."""
MAX_OPEN_FILES: Final = 65_536
MAX_PROCESSES: Final = 32_768
"""Of one user; only where jobs have users of their own."""
MAX_COMMAND_BYTES: Final = 1 << 20
MARK_BYTES: Final = 16
UMASK: Final = 0o022
PRIVATE_UMASK: Final = 0o077
"""Of a user that is only a number: what its jobs make anywhere, as in /tmp, is for itself alone."""
PARCEL_FILE: Final = "parcel"

KEPT_MS: Final = 7 * 24 * 3_600_000
KEPT_BYTES: Final = 8 << 30
KEPT_COUNT: Final = 20_000
KEPT_AT_LEAST_MS: Final = 600_000
"""However much there is: so long no late message can have an attempt started again."""


class Devices(Protocol):
    """The GPUs of the machine, as far as starting a task needs them."""

    def choose(self, shares: tuple[DeviceShare, ...], taken: frozenset[str]) -> tuple[str, ...]:
        """How the devices of these shares are called; AgentError if one is not there."""

    def variables(self) -> Mapping[str, str]:
        """What a task needs beside, to see fake ones; empty for real ones."""


class Measured(msgspec.Struct, frozen=True):
    """What is found out about an attempt from outside."""

    gpu_percent: int | None = None
    checkpoint_at_ms: int = 0


class ProcessRuntime:
    """All attempts of this machine."""

    def __init__(
        self,
        home: Home,
        devices: Devices,
        isolation: Isolation,
        cgroups: Cgroups,
        view: ProcessView = ProcessView.SHARED,
    ) -> None:
        self._home = home
        self._devices = devices
        self._isolation = isolation
        self._view = view
        self._cgroups = cgroups
        self._nursery = Nursery(home)
        self.parcels = Parcels(home.parcels)
        self._attempts: dict[AttemptId, Attempt] = {}
        self._measured: dict[AttemptId, Measured] = {}
        self.trouble = ""
        """What kept the last change from being made; empty: nothing."""

    # ------------------------------------------------------------------------------------------------ after a restart

    def load(self) -> None:
        """Find again what runs and what has ended."""
        for folder in sorted(self._home.attempts.iterdir()):
            attempt = attempts.found(folder)
            if attempt is None or folder.name.startswith(NEW):
                shutil.rmtree(folder, ignore_errors=True)
            elif not attempts.drop_unstarted(attempt):
                self._attempts[attempt.id] = attempt
        self.refresh()
        self._cgroups.sweep(frozenset(id for id, attempt in self._attempts.items() if not attempt.ended))

    def refresh(self) -> None:
        """See what is new. Called whenever a supervisor knocks, and now and then."""
        for attempt in self._attempts.values():
            try:
                attempt.look()
            except OSError as error:
                # Of one that ended without a word the ending is ours to write: the others must not wait for it.
                self.trouble = _unwritten(error)

    # ---------------------------------------------------------------------------------------------------- the runtime

    def attempts(self) -> tuple[AttemptReport, ...]:
        return tuple(self._report(self._attempts[id]) for id in sorted(self._attempts))

    def _report(self, attempt: Attempt) -> AttemptReport:
        measured = self._measured.get(attempt.id)
        if measured is None or attempt.ended:
            return attempt.report
        return msgspec.structs.replace(
            attempt.report,
            gpu_percent=measured.gpu_percent,
            checkpoint_at_ms=max(measured.checkpoint_at_ms, attempt.report.checkpoint_at_ms),
        )

    def start(self, assignment: Assignment) -> None:
        if self._is_known(assignment.id) or self._lacks_parcel(assignment):
            return
        try:
            spec = self._spec(assignment)
        except (AgentError, OSError) as error:
            with self._or_later():
                self._end_unstarted(assignment.id, Ending.NOT_STARTED, str(error))
            return
        with self._or_later():
            folder = self._make_folder(assignment.id, spec)
            self._attempts[assignment.id] = Attempt(folder, spec, boot_ms() + START_MS)
            self._nursery.supervise(folder)

    def _lacks_parcel(self, assignment: Assignment) -> bool:
        """It is asked to be started again and again: once its parcel is here, it is."""
        if not assignment.parcel or self.parcels.is_here(assignment.parcel):
            return False
        problem = self.parcels.problem(assignment.parcel)
        if problem:
            with self._or_later():
                self._end_unstarted(assignment.id, Ending.NOT_STARTED, problem)
        return True

    def stop(self, id: AttemptId, stop: Stop) -> None:
        with self._or_later():
            if not self._is_known(id):
                self._end_unstarted(id, Ending.STOPPED, "it was stopped before it was started")
            elif not self._attempts[id].ended:
                self._attempts[id].order_stop(stop)

    def forget(self, id: AttemptId) -> None:
        attempt = self._attempts.get(id)
        if attempt is None or not attempt.ended:
            return
        with self._or_later():
            attempt.look()
            attempt.remove_notice()
            attempt.forget_secrets()
            attempt.move(self._home.kept / attempt.folder.name)
            del self._attempts[id]
            self._measured.pop(id, None)

    @contextmanager
    def _or_later(self) -> Iterator[None]:
        """A disk that is full keeps us from doing it now; the core asks again until it is done."""
        try:
            yield
        except OSError as error:
            self.trouble = _unwritten(error)
        else:
            self.trouble = ""

    def renew(self, deadline_ms: int, lease_ms: int) -> None:
        """Written over in place, which a full disk does not prevent; said twice, so that a reader sees it whole."""
        one = f"{deadline_ms:020d} {lease_ms:010d}"
        handle = os.open(self._home.lease, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(handle, f"{one} {one}\n".encode(), 0)
        finally:
            os.close(handle)

    def _is_known(self, id: AttemptId) -> bool:
        """Here, or forgotten: then it is shown again, because the manager still asks for it."""
        if id in self._attempts:
            return True
        kept = self._home.kept / folder_name(id)
        attempt = attempts.found(kept) if kept.exists() else None
        if attempt is None:
            return False
        attempt.move(self._home.attempts / kept.name)
        attempt.look()
        self._attempts[id] = attempt
        return True

    def close(self) -> None:
        """What runs goes on."""
        self._nursery.close()

    # ------------------------------------------------------------------------------------------------- what is beside

    def holdings(self) -> tuple[Holding, ...]:
        """What runs now and what it holds of the machine."""
        running = (Phase.RUNNING, Phase.STOPPING)
        return tuple(attempt.holding for attempt in self._attempts.values() if attempt.report.phase in running)

    def unended(self) -> int:
        """How many attempts run, or are about to."""
        return sum(not attempt.ended for attempt in self._attempts.values())

    def measured(self, id: AttemptId, found: Measured) -> None:
        if id in self._attempts:
            self._measured[id] = found

    def log_folder(self, id: AttemptId) -> Path | None:
        name = folder_name(id)
        return next(
            (parent / name for parent in (self._home.attempts, self._home.kept) if (parent / name).exists()), None
        )

    def has_ended(self, id: AttemptId) -> bool:
        attempt = self._attempts.get(id)
        return attempt is None or attempt.ended

    # ------------------------------------------------------------------------------------------------ making a folder

    def _make_folder(self, id: AttemptId, spec: Record) -> Path:
        """Under another name first: whoever finds it by its own name finds all of it."""
        folder = self._home.attempts / folder_name(id)
        new = folder.with_name(f"{NEW}{folder.name}")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        records.write(new / SPEC, spec, keep=True)
        os.mkfifo(new / ORDERS, 0o600)
        new.rename(folder)
        return folder

    def _end_unstarted(self, id: AttemptId, ending: Ending, message: str) -> None:
        folder = self._make_folder(id, record({**_id_fields(id), "mark": token(MARK_BYTES)}))
        attempt = attempts.found(folder)
        assert attempt is not None
        attempt.claim()
        attempt.end(ending, message)
        self._attempts[id] = attempt

    def _spec(self, assignment: Assignment) -> Record:
        """Everything the supervisor must know; also makes the folders the task is to find."""
        if not assignment.command:
            raise AgentError("there is no command to run")
        if sum(len(word) for word in assignment.command) > MAX_COMMAND_BYTES:
            raise AgentError("its command line is too long", fix=f"{MAX_COMMAND_BYTES} characters at most")
        who = account(assignment.run_as) if self._isolation is Isolation.USERS else own_account()
        devices = self._devices.choose(assignment.shares, self._taken())
        private = self._private_folder(assignment.id.job, who)
        notice = self._notice_folder(assignment.id, who) / "notice.json"
        mark = token(MARK_BYTES)
        given = environment.Given(
            who, mark, str(private), str(notice), devices, assignment.shares, self._devices.variables()
        )
        made = environment.variables(assignment.env, given, os.environ)
        if assignment.parcel:
            parcel = notice.with_name(PARCEL_FILE)
            self.parcels.put(assignment.parcel, parcel, who.own_group)
            made[environment.PARCEL] = str(parcel)
        single: dict[str, str | int] = {
            **_id_fields(assignment.id),
            "mark": f"{environment.MARK}={mark}",
            "lease": str(self._home.lease),
            "wake": str(self._home.wake),
            "notice": str(notice),
            "notice_group": who.own_group,
            "isolated": int(self._view is ProcessView.ISOLATED),
            "umask": UMASK if who.folder or self._isolation is Isolation.NONE else PRIVATE_UMASK,
            "checkpoint_file": made[environment.CHECKPOINT_FILE],
            "fake_profile": made.get(environment.FAKE_PROFILE, ""),
            "workdir": assignment.workdir or str(private),
            "memory_bytes": assignment.memory_bytes,
            "run_limit_ms": assignment.run_limit_ms,
            "grace_ms": assignment.grace_ms,
            "notice_signal": _signal_number(assignment.notice_signal),
            "log_piece_bytes": LOG_PIECE_BYTES,
            "log_pieces": LOG_PIECES,
        }
        several = [
            *(("arg", word) for word in assignment.command),
            *(("hook", word) for word in assignment.checkpoint),
            *(("env", f"{name}={value}") for name, value in made.items()),
            *(("device", device) for device in devices),
            *(("share", msgspec.json.encode(share).decode()) for share in assignment.shares),
            *(("limit", limit) for limit in self._limits()),
            *self._cgroups.entries(assignment.id, assignment.cpu_milli, assignment.memory_bytes),
            *self._user_entries(who),
        ]
        spec = record(single, several)
        records.encode(spec)  # What no program can be given is told now.
        return spec

    def _taken(self) -> frozenset[str]:
        return frozenset(device for one in self._attempts.values() if not one.ended for device in one.devices)

    def _limits(self) -> tuple[str, ...]:
        everywhere = ("CORE:0", f"NOFILE:{MAX_OPEN_FILES}")
        return (*everywhere, f"NPROC:{MAX_PROCESSES}") if self._isolation is Isolation.USERS else everywhere

    def _user_entries(self, who: Account) -> list[tuple[str, str]]:
        if self._isolation is not Isolation.USERS:
            return []
        return [("uid", str(who.uid)), ("gid", str(who.gid)), *(("group", str(group)) for group in who.groups)]

    def _private_folder(self, job: str, who: Account) -> Path:
        """One for all tasks and attempts of a job, so that an attempt finds what the one before it saved."""
        folder = self._home.jobs / job_folder_name(job)
        if not folder.exists():
            # Under another name first: whoever finds it by its own name finds it belonging to its user.
            made = folder.with_name(f"{NEW}{folder.name}")
            made.mkdir(mode=0o700, exist_ok=True)
            if self._isolation is Isolation.USERS:
                os.chown(made, who.uid, who.gid)
            made.rename(folder)
        if folder.stat().st_uid != who.uid:
            raise AgentError(f"the private directory {folder} belongs to another user than {who.name}")
        return folder

    def _notice_folder(self, id: AttemptId, who: Account) -> Path:
        """The job may look into it and nothing else: what the supervisor writes there is not led astray."""
        folder = self._home.notices / folder_name(id)
        folder.mkdir(mode=0o700, exist_ok=True)
        if self._isolation is Isolation.USERS:
            os.chown(folder, -1, who.own_group)
            folder.chmod(0o750)
        return folder


def _id_fields(id: AttemptId) -> dict[str, str | int]:
    return {"job": id.job, "task": id.task, "attempt": id.attempt}


def _unwritten(error: OSError) -> str:
    return f"the agent cannot write its state: {error}"


def _signal_number(name: str) -> int:
    try:
        return signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"].value
    except KeyError:
        raise AgentError(f'there is no signal "{name}"', fix="use a name like TERM, USR1 or INT") from None


# ------------------------------------------------------------------------------------------------------- what is kept


def prune(home: Home) -> None:
    """Drop kept logs that are too old, then the oldest until the rest is small enough; then unused private folders."""
    now_ms = wall_ms()
    kept = sorted((_age_ms(folder, now_ms), folder) for folder in home.kept.iterdir())
    total_bytes = 0
    for place, (age_ms, folder) in enumerate(kept):
        total_bytes += sum(file.stat().st_size for file in folder.iterdir())
        too_much = total_bytes > KEPT_BYTES or place >= KEPT_COUNT
        if age_ms > KEPT_MS or (too_much and age_ms > KEPT_AT_LEAST_MS):
            attempts.remove(folder, home.attempts)
    _prune_private(home, now_ms)
    prune_parcels(home.parcels)


def _prune_private(home: Home, now_ms: int) -> None:
    used = {_job_of(folder) for parent in (home.attempts, home.kept) for folder in parent.iterdir()}
    for folder in home.jobs.iterdir():
        if folder.name not in used and _age_ms(folder, now_ms) > KEPT_MS:
            shutil.rmtree(folder, ignore_errors=True)


def _job_of(folder: Path) -> str:
    spec = records.read(folder / SPEC)
    return job_folder_name(spec.text("job")) if spec is not None else ""


def _age_ms(folder: Path, now_ms: int) -> int:
    return now_ms - folder.stat().st_mtime_ns // 1_000_000
