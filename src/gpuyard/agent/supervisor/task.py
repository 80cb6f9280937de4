"""One attempt, from the claim to its ending: the supervisor itself.

Place in the flow: guard ─fork─▶ **task** ─fork─▶ the command. What happens on the way is written down for the agent.
Invariant: an ending is written only when nothing of the task is alive.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import select
import signal
import sys
import time

from gpuyard.agent.supervisor.cell import cell_of
from gpuyard.agent.supervisor.files import LOCK, ORDERS, STARTED, STATE, STOP, Spec, knock, read_record, write_file
from gpuyard.agent.supervisor.lease import Lease, boot_ms, wall_ms
from gpuyard.agent.supervisor.log import Log
from gpuyard.agent.supervisor.processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    SIGKILL,
    Seen,
    all_processes,
    descendants,
    kill_everything,
    libc,
    prctl,
    proportional_bytes,
    set_oom_score,
)
from gpuyard.agent.supervisor.view import begin_namespace, enter_namespace, leave_keyring

TICK_MS = 1_000
"""How often the lease is looked at, and memory where it is bounded."""
SCAN_MS = 5_000
"""How often the processes of a task are counted where nothing depends on it."""
OUTPUT_PAUSE_MS = 10
CHUNK_BYTES = 64 << 10
MESSAGE_BYTES = 1_000
RESTORED_SIGNALS = (1, 2, 3, 13, 15, 17, 25)
"""Python or whoever started the agent may ignore these; a task begins with none ignored."""

STARTING, RUNNING, STOPPING, ENDED = "starting", "running", "stopping", "ended"
EXITED, STOPPED, LEASE_EXPIRED, RUN_LIMIT = "exited", "stopped", "lease-expired", "run-limit"
OUT_OF_MEMORY, NOT_STARTED = "out-of-memory", "not-started"

TYPE_CHECKING = False
if TYPE_CHECKING:  # They start too slowly for what they are needed for.
    from collections.abc import Callable, Iterator
    from types import FrameType


class Supervisor:
    """One attempt, from the claim to its ending."""

    def __init__(self, spec: Spec, lock: int) -> None:
        self.spec = spec
        self.lock = lock
        """Held as long as we live; that is how the agent knows that we do."""
        self.cell = cell_of(spec)
        self.log = Log(spec)
        self.poll = select.poll()
        self.endings: set[int] = set()
        """Handles that become readable when a process of ours ends."""
        self.init = 0
        """The first process of the task's PID namespace; 0: it has none."""
        self.pid = 0
        self.hook = 0
        self.status: int | None = None
        self.phase = STARTING
        self.ending = ""
        self.message = ""
        self.started_at_ms = 0
        self.checkpoint_at_ms = 0
        self.memory_bytes = 0
        self.began_ms = boot_ms()
        self.noticed_ms = 0
        self.kill_ms = 0
        self.next_scan_ms = 0
        self.asked_to_end = False
        self.says_little = False
        self.output, self._output_end = os.pipe()
        os.set_blocking(self.output, False)  # Also of a command that is never started: there is nothing to wait for.
        self.outcome = -1
        """Tells whether the command could be run: closed without a word if it could."""
        self.orders = os.open(ORDERS, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    # ------------------------------------------------------------------------------------------------------- its life

    def run(self) -> None:
        self._launch()
        handle_termination(self)
        while not self._over():
            self._wait()
            self._look()
        self._finish()

    def _launch(self) -> None:
        if boot_ms() >= Lease(self.spec.lease).kill_ms():
            self.ending, self.message = LEASE_EXPIRED, "the lease was over before the command could be started"
            return
        try:
            self.cell.make()
        except OSError as error:
            self.ending, self.message = NOT_STARTED, f"its cgroup: {error.filename}: {error.strerror}"
            return
        try:
            self.init = begin_namespace() if self.spec.isolated else 0
        except OSError as error:
            self.ending, self.message = NOT_STARTED, f"a PID namespace of its own: {error.strerror}"
            return
        self.outcome, outcome_end = os.pipe()
        self.pid = self._fork(self.spec.command, outcome_end)
        os.close(outcome_end)
        self.poll.register(self.output, select.POLLIN)
        self.poll.register(self.orders, select.POLLIN)
        self.poll.register(self.outcome, select.POLLIN)
        self._await_end_of(self.pid)

    def _await_end_of(self, pid: int) -> None:
        handle = os.pidfd_open(pid)
        self.endings.add(handle)
        self.poll.register(handle, select.POLLIN)

    def _wait(self) -> None:
        now = boot_ms()
        until = min([now + TICK_MS, *(due for due in self._dues() if due > now)])
        for handle, _ in self._poll(until - now):
            if handle in self.endings:  # It would stay readable for ever.
                self.endings.remove(handle)
                self.poll.unregister(handle)
                os.close(handle)

    def _poll(self, timeout_ms: int) -> list[tuple[int, int]]:
        """A task that says little at a time, but often, is not listened to for a moment: that saves waking for it."""
        if not self.says_little:
            return self.poll.poll(timeout_ms)
        self.poll.modify(self.output, 0)
        ready = self.poll.poll(min(timeout_ms, OUTPUT_PAUSE_MS))
        self.poll.modify(self.output, select.POLLIN)
        return ready

    def _dues(self) -> list[int]:
        lease = Lease(self.spec.lease)
        dues = [lease.notice_ms(self.spec.grace_ms), lease.kill_ms()]
        if self.kill_ms:
            dues.append(self.kill_ms)
        if self.spec.run_limit_ms:
            dues.append(self.began_ms + self.spec.run_limit_ms)
        return dues

    def _over(self) -> bool:
        """The command is gone and its hook with it, or there is no time left for them."""
        if self.ending in (OUT_OF_MEMORY, NOT_STARTED) or not self.pid:
            return True
        if self.kill_ms and boot_ms() >= self.kill_ms:
            return True
        return self.status is not None and not self.hook

    # --------------------------------------------------------------------------------------------------- looking around

    def _look(self) -> None:
        now = boot_ms()
        self._copy_output()
        self._hear_outcome()
        self._reap()
        if self._over():
            return
        self._obey(now)
        self._keep_bounds(now)
        if now >= self.next_scan_ms:
            self._count_processes(now)

    def _copy_output(self) -> bool:
        try:
            data = os.read(self.output, CHUNK_BYTES)
        except BlockingIOError:
            self.says_little = False
            return False
        self.says_little = len(data) < CHUNK_BYTES
        self.log.write(data)
        return bool(data)

    def _hear_outcome(self) -> None:
        if self.outcome < 0 or not _readable(self.outcome):
            return
        self.poll.unregister(self.outcome)
        words = os.read(self.outcome, MESSAGE_BYTES)
        os.close(self.outcome)
        self.outcome = -1
        if words:
            self.ending, self.message = NOT_STARTED, words.decode("utf-8", "replace")
            return
        self.started_at_ms = wall_ms()
        self._say(RUNNING if not self.noticed_ms else STOPPING)

    def _reap(self) -> None:
        """Also what others have left behind: whoever lost its parent is our child now."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._reaped(pid, status)

    def _reaped(self, pid: int, status: int) -> None:
        if pid == self.pid:
            self.status = status
        elif pid == self.hook:
            self._hook_ended(status)
        elif pid == self.init:
            self.init = 0  # And the kernel ends whatever else is in its namespace.

    def _hook_ended(self, status: int) -> None:
        self.hook = 0
        if status == 0:
            self.checkpoint_at_ms = wall_ms()

    def _count_processes(self, now: int) -> None:
        self.next_scan_ms = now + (TICK_MS if self.spec.memory_bytes else SCAN_MS)
        ours = descendants(os.getpid(), all_processes())
        self._weigh([process for process in ours if process.pid != self.init])
        self._hear_of_oom()

    def _hear_of_oom(self) -> None:
        """Where one process of a task was ended by the kernel the task ends, as it does where we look ourselves."""
        if not self.ending and self.cell.oom_kills():
            bound = f"{self.spec.memory_bytes >> 20} MiB"
            self.ending = OUT_OF_MEMORY
            self.message = f"the kernel ended it: it asked for {bound} of the machine's memory and needed more"

    def _weigh(self, ours: list[Seen]) -> None:
        bound = 0 if self.cell.bounds_memory else self.spec.memory_bytes
        held = sum(process.resident_bytes for process in ours)
        if bound and held > bound:
            # Processes that share pages are each charged for all of them there; look again, exactly.
            held = sum(proportional_bytes(process) for process in ours)
        if bound and held > bound:
            self.ending = OUT_OF_MEMORY
            self.message = f"held {held >> 20} MiB of the machine's memory, asked for {bound >> 20} MiB"
        changed = abs(held - self.memory_bytes) > self.memory_bytes // 20
        self.memory_bytes = held
        if changed:
            self._save()

    # --------------------------------------------------------------------------------------------------------- stopping

    def _obey(self, now: int) -> None:
        """Do what the agent has written down; knocks only say that there may be something."""
        try:  # noqa: SIM105
            os.read(self.orders, CHUNK_BYTES)
        except BlockingIOError:
            pass
        if self.asked_to_end:
            self._notice(now, STOPPED, "Terminated", "its supervisor was told to end", self.spec.grace_ms)
        try:
            stop = read_record(STOP)
        except FileNotFoundError:
            return
        grace_ms = int(stop["grace_ms"][0])
        self._notice(now, STOPPED, stop["reason"][0], stop["why"][0], grace_ms)
        # A second word may shorten the grace, never lengthen it.
        self.kill_ms = min(self.kill_ms, max(now, self.noticed_ms + grace_ms))

    def _keep_bounds(self, now: int) -> None:
        limit_ms = self.spec.run_limit_ms
        if limit_ms and now >= self.began_ms + limit_ms:
            why = f"its run limit of {limit_ms / 1000:g} s is over"
            self._notice(now, RUN_LIMIT, "RunLimit", why, self.spec.grace_ms)
        lease = Lease(self.spec.lease)
        if now >= lease.notice_ms(self.spec.grace_ms):
            why = "this machine has not heard from the manager for too long"
            self._notice(now, LEASE_EXPIRED, "LeaseExpired", why, max(lease.kill_ms() - now, 0))
        # Whatever grace was promised, the lease is the last word.
        if self.kill_ms:
            self.kill_ms = min(self.kill_ms, max(now, lease.kill_ms()))

    def _notice(self, now: int, ending: str, reason: str, why: str, grace_ms: int) -> None:
        if self.noticed_ms:
            return
        self.noticed_ms, self.kill_ms = now, now + grace_ms
        self.ending, self.message = ending, why
        if grace_ms > 0:
            self._write_notice(reason, why, grace_ms)
            self._signal_command()
            if self.spec.hook:
                self.hook = self._fork(self.spec.hook, -1)
                self._await_end_of(self.hook)
        self._say(STOPPING)

    def _signal_command(self) -> None:
        try:  # noqa: SIM105
            os.killpg(self.pid, self.spec.notice_signal)
        except OSError:
            pass  # It has ended by itself meanwhile.

    def _write_notice(self, reason: str, why: str, grace_ms: int) -> None:
        deadline_ms = wall_ms() + grace_ms
        deadline = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(deadline_ms // 1000))
        notice = {"reason": reason, "why": why, "deadline": deadline, "deadline_ms": deadline_ms, "grace_ms": grace_ms}
        group = self.spec.notice_group if self.spec.as_user else -1
        try:
            write_file(self.spec.notice, json.dumps(notice).encode() + b"\n", mode=0o640, group=group)
        except OSError as error:
            print(f"the notice cannot be written: {error}", file=sys.stderr, flush=True)

    # ----------------------------------------------------------------------------------------------------------- ending

    def _finish(self) -> None:
        if self.phase != STOPPING and self.status is None and self.pid:
            self._say(STOPPING)
        self._end_namespace()
        kill_everything(os.fsencode(self.spec.mark), self.cell, self._tidy)
        self._hear_of_oom()
        self.cell.remove()
        while self._copy_output():
            pass
        self.phase = ENDED
        self.ending = self.ending or EXITED
        self._save(ended_at_ms=wall_ms(), keep=True)

    def _end_namespace(self) -> None:
        """With its init everything in it ends; that in turn ends once we have reaped the command and its hook."""
        if self.init:
            os.kill(self.init, SIGKILL)
        while self.init:
            self._reaped(*os.waitpid(-1, 0))

    def _tidy(self) -> None:
        self._reap()
        self._copy_output()

    # ------------------------------------------------------------------------------------------------------- the record

    def _say(self, phase: str) -> None:
        self.phase = phase
        self._save()

    def _save(self, *, ended_at_ms: int = 0, keep: bool = False) -> None:
        exit_code = ""
        if self.status is not None and self.ending != NOT_STARTED:
            code = os.waitstatus_to_exitcode(self.status)
            exit_code = str(code if code >= 0 else 128 - code)
        fields = {
            "phase": self.phase,
            "pid": self.pid,
            "started_at_ms": self.started_at_ms,
            "ended_at_ms": ended_at_ms,
            "ending": self.ending if self.phase == ENDED else "",
            "exit_code": exit_code,
            "message": self.message,
            "checkpoint_at_ms": self.checkpoint_at_ms,
            "memory_bytes": self.memory_bytes,
        }
        content = "".join(f"{name}={value}\0" for name, value in fields.items())
        while True:
            try:
                write_file(STATE, os.fsencode(content), keep=keep)
                break
            except FileNotFoundError:
                break  # The folder itself is gone, and with it whoever would read this.
            except OSError as error:
                # A full disk: the ending must be written, whenever that may be; all else is said again later.
                print(f"the state cannot be written: {error}", file=sys.stderr, flush=True)
                if self.phase != ENDED:
                    break
                select.poll().poll(TICK_MS)
        knock(self.spec.wake)

    # ---------------------------------------------------------------------------------------------------- the processes

    def _fork(self, command: list[str], outcome: int) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        step = ""
        try:
            for name, prepare in self._steps(parent):
                step = name
                prepare()
            step = command[0]
            execute(command, self.spec.env)
        except OSError as error:
            # Of a hook the task's log tells it.
            os.write(outcome if outcome >= 0 else 1, f"{step}: {error.strerror}".encode()[:MESSAGE_BYTES])
        finally:
            os._exit(127)

    def _steps(self, parent: int) -> Iterator[tuple[str, Callable[[], object]]]:
        spec = self.spec
        # While we are root, and before anything is charged to it.
        yield "its cgroup", self.cell.enter
        if spec.isolated:
            yield "a view of its own processes", enter_namespace
        yield "a session of its own", os.setsid
        yield "its input and output", self._redirect
        yield "its limits", self._set_limits
        if spec.as_user:
            yield f"the groups of user {spec.uid}", lambda: os.setgroups(spec.groups)
            yield f"group {spec.gid}", lambda: os.setresgid(spec.gid, spec.gid, spec.gid)
            yield f"user {spec.uid}", lambda: os.setresuid(spec.uid, spec.uid, spec.uid)
            yield "a keyring of its own", leave_keyring
        yield "no new privileges", lambda: prctl(PR_SET_NO_NEW_PRIVS, 1)
        # After the change of user, which would undo it.
        yield "dying with its supervisor", lambda: prctl(PR_SET_PDEATHSIG, SIGKILL)
        if not spec.isolated and os.getppid() != parent:
            os._exit(127)  # In a namespace its init has ended, too, and us with it.
        yield f"working directory {spec.workdir}", lambda: os.chdir(spec.workdir)

    def _redirect(self) -> None:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(self._output_end, 1)
        os.dup2(self._output_end, 2)

    def _set_limits(self) -> None:
        os.umask(self.spec.umask)
        if os.geteuid() == 0:
            set_oom_score(0)
        for number in RESTORED_SIGNALS:
            libc.signal(number, None)
        for name, value in self.spec.limits:
            number, asked = getattr(resource, f"RLIMIT_{name}"), int(value)
            _, hard = resource.getrlimit(number)
            bound = asked if hard == resource.RLIM_INFINITY else min(asked, hard)
            resource.setrlimit(number, (bound, bound))


def _readable(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def execute(command: list[str], env: dict[str, str]) -> None:
    """Be that command, which is looked for where the task's own PATH says."""
    program = command[0]
    folders = env.get("PATH", os.defpath).split(":") if "/" not in program else [""]
    failure: OSError = FileNotFoundError(2, "no such program")
    for folder in folders:
        path = f"{folder}/{program}" if folder else program
        try:
            os.execve(path, command, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            # A folder of PATH that may not be looked into says nothing of the program.
            if "/" in program or os.path.lexists(path):
                failure = error
    raise failure


def handle_termination(supervisor: Supervisor) -> None:
    """SIGTERM ends the task politely, as when the machine is shut down."""

    def asked(number: int, frame: FrameType | None) -> None:
        supervisor.asked_to_end = True
        knock(ORDERS)

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def claim(folder: str) -> int | None:
    """The lock, if this attempt is ours to start; None if it was ever started before, or is just being."""
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        started = os.open(STARTED, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    os.fsync(started)
    os.close(started)
    if not is_here(folder):
        return None
    for at in (".", ".."):
        handle = os.open(at, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fsync(handle)
        os.close(handle)
    return lock


def is_here(folder: str) -> bool:
    """Whether the folder we are in still has its name. One that is being dropped has lost it before its files go."""
    try:
        return os.path.samestat(os.stat("."), os.stat(folder))  # noqa: PTH116
    except OSError:
        return False


def supervise(spec: Spec, folder: str) -> None:
    """Be the supervisor of the attempt of that folder, in which we are, unless it has or had one."""
    lock = claim(folder)
    if lock is None:
        return
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    Supervisor(spec, lock).run()
