"""Where an agent keeps things: the folders and files of its home.

    HOME/                    passable for the users of jobs where they have users of their own, else closed
      agent.lock agent.pid   one agent at a time
      incarnation            made once: whoever lost it knows nothing of what was started before
      ca.pem cert.pem key.pem joined.json     from joining
      lease                  until when tasks may run: deadline and length in ms since the machine was started
      wake                   a pipe at which supervisors knock when they have news
      attempts/ID/           0700: what runs, and what has ended and is not recorded by the manager yet
      kept/ID/               0700: recorded endings, for the sake of their logs
      parcels/SHA256         0600: what jobs bring along, as it came from the manager
      open/jobs/JOB/         0700, of the job's user: its private directory
      open/notices/ID/       of the agent, readable for the job's group: the notice that it must stop, its parcel
      open/fake/             fake GPUs, where there are no real ones

Invariant: nothing that the agent or a supervisor reads or writes lies below a folder a job may write to.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from gpuyard.errors import AgentError
from gpuyard.platform.chance import token
from gpuyard.platform.files import write_private
from gpuyard.wire.agents import AttemptId, Isolation

MAX_NAME: Final = 150
PASSABLE: Final = 0o001
INCARNATION_BYTES: Final = 12
FALLBACK: Final = Path("/var/lib/gpuyard-open")
"""For what jobs of other users must reach, where they cannot pass the folders above the home."""


class Home(msgspec.Struct, frozen=True):
    """The paths below one home."""

    root: Path
    open: Path
    """What the users of jobs must be able to pass lies here."""

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    @property
    def kept(self) -> Path:
        return self.root / "kept"

    @property
    def parcels(self) -> Path:
        return self.root / "parcels"

    @property
    def jobs(self) -> Path:
        return self.open / "jobs"

    @property
    def notices(self) -> Path:
        return self.open / "notices"

    @property
    def fake(self) -> Path:
        return self.open / "fake"

    @property
    def lease(self) -> Path:
        return self.root / "lease"

    @property
    def wake(self) -> Path:
        return self.root / "wake"

    @property
    def lock(self) -> Path:
        return self.root / "agent.lock"

    @property
    def pid(self) -> Path:
        return self.root / "agent.pid"


def prepare(root: Path, isolation: Isolation) -> Home:
    """Make the folders that are missing; AgentError if this cannot be a home."""
    root = root.absolute()
    passable = isolation is Isolation.USERS
    try:
        root.mkdir(parents=True, exist_ok=True)
        if root.stat().st_uid != os.geteuid():
            raise AgentError(f"the home {root} belongs to another user", fix="choose another one with --home")
        root.chmod(0o711 if passable else 0o700)
        home = Home(root, _open_folder(root) if passable else root / "open")
        if FALLBACK in home.open.parents:
            _folder(FALLBACK, 0o711)
        for folder in (home.attempts, home.kept, home.parcels):
            _folder(folder, 0o700)
        for folder in (home.open, home.jobs, home.notices):
            _folder(folder, 0o711 if passable else 0o700)
        if not home.wake.exists():
            os.mkfifo(home.wake, 0o600)
    except OSError as error:
        raise AgentError(f"the home {root} cannot be used: {error}", fix="choose another one with --home") from None
    return home


def find(root: Path) -> Home | None:
    """The home an agent has made there; None if none has."""
    root = root.absolute()
    try:
        passable = root.stat().st_mode & PASSABLE
        return Home(root, _open_folder(root) if passable else root / "open")
    except OSError:
        return None


def _folder(path: Path, mode: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)


def _open_folder(root: Path) -> Path:
    """Inside the home, unless other users cannot even come as far as the home."""
    if all(folder.stat().st_mode & PASSABLE for folder in root.parents):
        return root / "open"
    return FALLBACK / hashlib.sha256(os.fsencode(root)).hexdigest()[:16]


def incarnation(home: Home) -> str:
    path = home.root / "incarnation"
    if not path.exists():
        write_private(path, token(INCARNATION_BYTES).encode())
    return path.read_text(encoding="ascii")


def folder_name(id: AttemptId) -> str:
    """One folder for one attempt, whatever characters a job's id has."""
    return f"{_quoted(id.job)}.{id.task}.{id.attempt}"


def job_folder_name(job: str) -> str:
    # The front keeps names like ".." from meaning anything.
    return f"job-{_quoted(job)}"


def _quoted(job: str) -> str:
    name = quote(job, safe="")
    return name if 0 < len(name) <= MAX_NAME else f"long-{hashlib.sha256(os.fsencode(job)).hexdigest()}"
