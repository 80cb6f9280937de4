"""What a manager and the agent of a machine say to each other, over one stream.

The manager says what should run, the agent what does: each message is the whole truth of its sender, so a lost, late
or repeated one does no harm. An attempt is named by job, task and number, and is started at most once, ever.

The lease: an agent stamps every `Report` with its own monotonic clock (`sent_ms`), the manager sends the newest stamp
back (`Desired.echo_ms`), and the lease runs for `lease_ms` from that stamp: it ends at the agent before the manager,
which counts from the moment the report arrived, believes it over.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from gpuyard.model.jobs import DeviceShare
from gpuyard.model.nodes import Device

PROTOCOL: Final = 1
"""Counted up when an older agent could no longer be understood."""

SERVICE: Final = "gpuyard.v1.Agents"
SESSION: Final = f"/{SERVICE}/Session"
"""The one call: a stream of `AgentMessage` up and of `ManagerMessage` down, each encoded as MessagePack."""

MAX_MESSAGE_BYTES: Final = 16 << 20
"""Of what the manager says: commands and variables of everything that is new to a node."""
MAX_AGENT_MESSAGE_BYTES: Final = 4 << 20
"""Of what an agent says: some thousand attempts with a sentence each, or a piece of a log."""
MAX_LOG_PIECE_BYTES: Final = 256 << 10
MAX_PARCEL_BYTES: Final = 8 << 20
"""Of what a job brings along."""
PARCEL_PIECE_BYTES: Final = 1 << 20
DEFAULT_LEASE_MS: Final = 60_000
DEFAULT_GRACE_MS: Final = 30_000


class AttemptId(msgspec.Struct, frozen=True, order=True, gc=False, array_like=True):
    """One run of one task: its job, its place in the job (from 0), and which try it is (from 1)."""

    job: str
    task: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.job}.{self.task}.{self.attempt}"


class Phase(enum.StrEnum):
    """How far an attempt is, as its machine sees it."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class Ending(enum.StrEnum):
    """How an attempt ended."""

    EXITED = "exited"
    """By itself; `exit_code` says how (128 + signal where a signal ended it)."""
    STOPPED = "stopped"
    """Because it was asked to, by the manager."""
    LEASE_EXPIRED = "lease-expired"
    """Its machine heard nothing from the manager for too long."""
    RUN_LIMIT = "run-limit"
    OUT_OF_MEMORY = "out-of-memory"
    """It held more host memory than it asked for."""
    NOT_STARTED = "not-started"
    """The command could not be run at all; `message` says why."""
    LOST = "lost"
    """Its supervisor is gone, and how it ended is not known."""


class RunAs(msgspec.Struct, frozen=True, gc=False):
    """The user a task runs as, where the agent is root: an account of the node by name, else a bare number.

    The number is the submitting user's own either way: files that only their tasks may read belong to that group.
    """

    name: str = ""
    uid: int = 0


class Stop(msgspec.Struct, frozen=True, gc=False):
    """This attempt is to end: notice first, then after `grace_ms` for good."""

    why: str
    """A sentence for the notice file."""
    reason: str = ""
    """A reason token, e.g. Reclaimed; or Cancelled, Suspended, Requeued, GangBroken."""
    grace_ms: int = DEFAULT_GRACE_MS


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """What should run: everything an agent must know to start one attempt.

    Of one that it has reported in this session it is told no more than the name, and whether it must stop.
    """

    id: AttemptId
    job_name: str
    team: str
    user: str
    command: tuple[str, ...]
    env: dict[str, str] = {}
    """All variables but those that name devices, which the agent adds from `shares`."""
    workdir: str = ""
    """Empty: the private directory of the job."""
    shares: tuple[DeviceShare, ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0
    """Of the host; 0: no bound."""
    run_as: RunAs | None = None
    run_limit_ms: int = 0
    """0: none. Kept by the machine itself, so that it holds while the manager is away."""
    grace_ms: int = DEFAULT_GRACE_MS
    """From notice to the end, where the machine itself must stop it (lease, run limit)."""
    notice_signal: str = "TERM"
    checkpoint: tuple[str, ...] = ()
    """A command that is run at notice, as the same user and with the same variables; it must end within the grace."""
    parcel: str = ""
    """The SHA-256 of an archive to fetch first; the task finds it where GPUYARD_PARCEL says. Empty: none."""
    stop: Stop | None = None


class AttemptReport(msgspec.Struct, frozen=True, gc=False):
    """What is known of one attempt on its machine."""

    id: AttemptId
    phase: Phase
    pid: int = 0
    started_at_ms: int = 0
    """Wall clock; 0: not yet."""
    ended_at_ms: int = 0
    ending: Ending | None = None
    exit_code: int | None = None
    message: str = ""
    checkpoint_at_ms: int = 0
    """When it last saved its work: the time of the file named by GPUYARD_CHECKPOINT_FILE, or of a successful hook."""
    gpu_percent: int | None = None
    """Mean use of its GPUs since the last report; None: not known."""
    memory_bytes: int = 0


class Isolation(enum.StrEnum):
    """What keeps the jobs of one machine apart."""

    NONE = "none"
    """They all run as the agent's own user."""
    USERS = "users"
    """A user per submitter."""


class Keeping(enum.StrEnum):
    """How a machine keeps what a task asked for as its bound."""

    BOOKED = "booked"
    """Not at all: it is only counted by the scheduler."""
    POLLED = "polled"
    """The supervisor looks every second, and ends a task that is above it."""
    ENFORCED = "enforced"
    """By the kernel, at every moment."""


class ProcessView(enum.StrEnum):
    """Which processes of its machine a task sees."""

    SHARED = "shared"
    """All, with their command lines."""
    ISOLATED = "isolated"
    """Its own: it has a PID namespace with a fresh /proc."""


class MachineFacts(msgspec.Struct, frozen=True, gc=False):
    """What a machine has to give. Sent whole whenever any of it changes."""

    devices: tuple[Device, ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0
    labels: dict[str, str] = {}
    fake: bool = False
    """Its GPUs are made up."""
    driver: str = ""
    isolation: Isolation = Isolation.NONE
    address: str = ""
    """Where its tasks can be reached by those of other machines."""
    trouble: tuple[str, ...] = ()
    """What is wrong with it, in sentences: NVML missing, disk full."""
    cores_kept: Keeping = Keeping.BOOKED
    memory_kept: Keeping = Keeping.POLLED
    limits_note: str = ""
    """Why the kernel does not keep both; empty where it does, and of agents that do not know."""
    manager_address: str = ""
    """Where it reaches the manager's machine, which knows itself only by loopback; empty of agents that do not say."""
    process_view: ProcessView = ProcessView.SHARED
    process_note: str = ""
    """Why tasks see each other's processes, and what to do; empty where they do not."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message of an agent."""

    node: str
    incarnation: str
    """Made once per home of an agent: another one knows nothing of what the former started."""
    boot_id: str
    version: str
    facts: MachineFacts
    protocol: int = PROTOCOL
    unreadable: str = ""
    """Why its facts could not be read; only the reader of the message says so."""


class Report(msgspec.Struct, frozen=True, tag="report"):
    """Everything that runs or has ended and is not acknowledged. Sent on every change and every few seconds."""

    sent_ms: int
    attempts: tuple[AttemptReport, ...] = ()
    facts: MachineFacts | None = None
    """None: as last said."""
    unreadable: str = ""
    """Why its facts could not be read; only the reader of the message says so."""
    unreadable_attempts: str = ""
    """Why some of its attempts could not be read, so that nobody knows which: only the reader says so."""


class LogPiece(msgspec.Struct, frozen=True, tag="log-piece"):
    """A part of a log. `size` is how long the log is now; `ended` that nothing more will come.

    `request` is that of the `ReadLog` it answers: a number nobody can guess, which counts in this session only, once.
    """

    request: int
    offset: int = 0
    data: bytes = b""
    size: int = 0
    ended: bool = False
    problem: str = ""


class ReadParcel(msgspec.Struct, frozen=True, tag="read-parcel"):
    """Asks for a part of what a job on this machine brings along."""

    digest: str
    offset: int = 0


AgentMessage = Hello | Report | LogPiece | ReadParcel


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The manager knows this machine."""

    manager: str
    version: str
    lease_ms: int = DEFAULT_LEASE_MS


class Desired(msgspec.Struct, frozen=True, tag="desired"):
    """Everything that should run on the machine. What runs and is not in it is stopped."""

    echo_ms: int
    """The newest `Report.sent_ms` that has arrived: the lease counts from there."""
    assignments: tuple[Assignment, ...] = ()
    recorded: tuple[AttemptId, ...] = ()
    """Endings that are safely recorded: the agent may forget them (their logs it keeps for a while)."""


class ReadLog(msgspec.Struct, frozen=True, tag="read-log"):
    """Asks for a part of a log; where nothing is there yet the answer may wait."""

    request: int
    id: AttemptId
    offset: int = 0
    """Negative: so many bytes before its end."""
    limit: int = MAX_LOG_PIECE_BYTES
    wait_ms: int = 0
    since_ms: int = 0
    """By the machine's clock: from what was said then on, instead of from `offset`."""


class ParcelPiece(msgspec.Struct, frozen=True, tag="parcel-piece"):
    """A part of a parcel, which has `size` bytes in all."""

    digest: str
    offset: int = 0
    data: bytes = b""
    size: int = 0
    problem: str = ""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The session ends: another protocol, a removed node, a second agent of the same name."""

    why: str
    again: bool = True
    """False: coming back is of no use."""


ManagerMessage = Welcome | Desired | ReadLog | ParcelPiece | Refused


def encode(message: AgentMessage | ManagerMessage) -> bytes:
    return msgspec.msgpack.encode(message)


_AGENT: Final[msgspec.msgpack.Decoder[AgentMessage]] = msgspec.msgpack.Decoder(AgentMessage)
_MANAGER: Final[msgspec.msgpack.Decoder[ManagerMessage]] = msgspec.msgpack.Decoder(ManagerMessage)


def decode_agent(data: bytes) -> AgentMessage:
    """A message of an agent; msgspec.ValidationError or DecodeError for anything else."""
    return _AGENT.decode(data)


def decode_manager(data: bytes) -> ManagerMessage:
    return _MANAGER.decode(data)
