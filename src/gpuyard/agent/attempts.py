"""One attempt as its folder shows it, and what the agent may read and do there.

Place in the flow: process_runtime ─▶ **attempts** ─files─▶ supervisor. Invariant: an attempt has ended only when an
ending is written down, or when its supervisor, its guard and all that carries its mark or is in its cell are gone.
"""

from __future__ import annotations

import enum
import os
import shutil
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.agent import records
from gpuyard.agent.records import Record, record
from gpuyard.agent.supervisor.cell import Cell
from gpuyard.agent.supervisor.files import GUARD_LOCK, LOCK, ORDERS, OWN_LOG, SPEC, STARTED, STATE, STOP, knock
from gpuyard.model.jobs import DeviceShare
from gpuyard.platform.clock import boot_ms, wall_ms
from gpuyard.platform.locks import holder
from gpuyard.platform.processes import kill_process, marked_processes
from gpuyard.wire.agents import AttemptId, AttemptReport, Ending, Phase, Stop

START_MS: Final = 20_000
"""So long a supervisor may take until it has made its claim; a machine may be very busy."""
SECRETS: Final = frozenset({"env", "arg", "hook"})
SHOWN_BYTES: Final = 500
NEW: Final = ".new-"
"""In front of the name of a folder that is not yet, or no longer, that of an attempt."""


class Claim(enum.Enum):
    """Who may start an attempt: whoever makes the file `started` first, for good."""

    OURS = enum.auto()
    TAKEN = enum.auto()


class Holding(msgspec.Struct, frozen=True):
    """What of the machine an attempt has in its hands."""

    id: AttemptId
    pid: int
    devices: tuple[str, ...]
    shares: tuple[DeviceShare, ...]
    checkpoint_file: str
    fake_profile: str = ""
    """How busy it keeps fake GPUs; empty: as far as they are its own."""


class Attempt:
    """One folder. `look` reads what is new in it; everything else is what was seen then."""

    def __init__(self, folder: Path, spec: Record, start_until_ms: int = 0) -> None:
        self.folder = folder
        self.id = AttemptId(spec.text("job"), spec.number("task"), spec.number("attempt"))
        self.mark = spec.text("mark")
        self.cell = Cell(list(spec.all("cgroup")))
        self.devices = spec.all("device")
        self.shares = tuple(msgspec.json.decode(share, type=DeviceShare) for share in spec.all("share"))
        self.checkpoint_file = spec.text("checkpoint_file")
        self.fake_profile = spec.text("fake_profile")
        self.notice_folder = Path(spec.text("notice")).parent if spec.text("notice") else None
        self.report = AttemptReport(self.id, Phase.STARTING)
        self._start_until_ms = start_until_ms
        self._seen: tuple[int, int] = (0, 0)
        self._stop: Record | None = None

    @property
    def ended(self) -> bool:
        return self.report.phase is Phase.ENDED

    @property
    def holding(self) -> Holding:
        return Holding(self.id, self.report.pid, self.devices, self.shares, self.checkpoint_file, self.fake_profile)

    # -------------------------------------------------------------------------------------------------------- looking

    def look(self) -> None:
        """See how far it is. What ended without a word is cleared up, and only then lost."""
        if self.ended:
            return
        alive = self._is_supervised()
        self._read_state()
        if alive or self.report.phase is Phase.ENDED:
            return
        if not (self.folder / STARTED).exists():
            self._fail_to_start()
        elif self._cleared():
            self.end(Ending.LOST, "its supervisor is gone; how the task ended is not known", self.report)

    def _is_supervised(self) -> bool:
        """If not, whatever is written now is all that ever will be: a supervisor writes its ending before it goes."""
        if holder(self.folder / LOCK) is not None:
            return True
        if boot_ms() < self._start_until_ms and not (self.folder / STARTED).exists():
            return True  # It is on its way.
        # Between the two questions it may have come.
        return holder(self.folder / LOCK) is not None

    def _read_state(self) -> None:
        path = self.folder / STATE
        try:
            facts = path.stat()
        except FileNotFoundError:
            return
        seen = (facts.st_ino, facts.st_mtime_ns)
        if seen == self._seen:
            return
        state = records.read(path)
        if state is not None:
            self._seen = seen
            self.report = _report(self.id, state)

    def _cleared(self) -> bool:
        """Kill whatever is left of the task; whether nothing is."""
        left = marked_processes(self.mark)
        for process in left:
            kill_process(process)
        if self.cell.kill() or left:
            self.report = msgspec.structs.replace(self.report, phase=Phase.STOPPING)
            return False
        if holder(self.folder / GUARD_LOCK) is not None:
            return False
        self.cell.remove()
        return True

    def _fail_to_start(self) -> None:
        if self.claim() is Claim.OURS:
            self.end(Ending.NOT_STARTED, f"its supervisor could not be started: {self._last_words()}")

    def _last_words(self) -> str:
        path = self.folder / OWN_LOG
        words = path.read_bytes()[-SHOWN_BYTES:] if path.exists() else b""
        lines = words.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a word"

    # --------------------------------------------------------------------------------------------------------- acting

    def claim(self) -> Claim:
        """From here on nobody but us can start it."""
        return claim(self.folder)

    def end(self, ending: Ending, message: str, before: AttemptReport | None = None) -> None:
        """Write down an ending that no supervisor writes."""
        former = before or AttemptReport(self.id, Phase.STARTING)
        fields: dict[str, str | int] = {
            "phase": Phase.ENDED.value,
            "pid": former.pid,
            "started_at_ms": former.started_at_ms,
            "ended_at_ms": wall_ms(),
            "ending": ending.value,
            "message": message,
            "checkpoint_at_ms": former.checkpoint_at_ms,
        }
        records.write(self.folder / STATE, record(fields))
        self._read_state()

    def order_stop(self, stop: Stop) -> None:
        """Write the order down, and knock; the same order again is not worth a knock."""
        wanted = record({"reason": stop.reason, "why": stop.why, "grace_ms": stop.grace_ms})
        if wanted != self._stop:
            records.write(self.folder / STOP, wanted)
            self._stop = wanted
            knock(os.fspath(self.folder / ORDERS))

    def forget_secrets(self) -> None:
        """Of what has ended only the name and the log are kept: variables and arguments may hold passwords."""
        spec = records.read(self.folder / SPEC)
        if spec is not None:
            kept = tuple(entry for entry in spec.entries if entry[0] not in SECRETS)
            records.write(self.folder / SPEC, Record(kept))

    def move(self, to: Path) -> None:
        self.folder.rename(to)
        self.folder = to

    def remove_notice(self) -> None:
        if self.notice_folder is not None:
            shutil.rmtree(self.notice_folder, ignore_errors=True)


def claim(folder: Path) -> Claim:
    try:
        handle = os.open(folder / STARTED, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return Claim.TAKEN
    os.fsync(handle)
    os.close(handle)
    return Claim.OURS


def drop_unstarted(attempt: Attempt) -> bool:
    """Whether it was never started, and now never will be from this folder: if still wanted, it gets another.

    A supervisor may be on its way to it: once our claim goes with the folder it could make its own, so the folder loses
    its name first, by which the supervisor knows that it is late.
    """
    if attempt.claim() is Claim.TAKEN:
        return False
    attempt.remove_notice()
    remove(attempt.folder, attempt.folder.parent)
    return True


def remove(folder: Path, attempts_folder: Path) -> None:
    """Out of sight in one step, so that nobody finds half of it; what is left of it goes when the agent is started."""
    gone = attempts_folder / f"{NEW}{folder.name}"
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def found(folder: Path) -> Attempt | None:
    """The attempt of a folder; None if it never had one, as where the machine lost power while it was made."""
    spec = records.read(folder / SPEC)
    return None if spec is None or not spec.text("mark") else Attempt(folder, spec)


def _report(id: AttemptId, state: Record) -> AttemptReport:
    code = state.text("exit_code")
    return AttemptReport(
        id=id,
        phase=Phase(state.text("phase")),
        pid=state.number("pid"),
        started_at_ms=state.number("started_at_ms"),
        ended_at_ms=state.number("ended_at_ms"),
        ending=Ending(state.text("ending")) if state.text("ending") else None,
        exit_code=int(code) if code else None,
        message=state.text("message"),
        checkpoint_at_ms=state.number("checkpoint_at_ms"),
        memory_bytes=state.number("memory_bytes"),
    )
