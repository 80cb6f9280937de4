"""How a manager is started: where it keeps things, where it listens, what it accepts."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.errors import InputError, ServiceError
from gpuyard.files.durations import duration_ms
from gpuyard.model.quantities import memory_bytes
from gpuyard.platform.home import kept_database
from gpuyard.service.limits import LEAST_JOB_BYTES, MAX_JOB_BYTES, MAX_WATCHERS, MOST_JOB_BYTES, STREAMS_PER_TOKEN
from gpuyard.wire.agents import DEFAULT_LEASE_MS
from gpuyard.worlds.standalone.uids import UidRange

DEFAULT_LISTEN: Final = "127.0.0.1:7400"
AGENTS_PORT_STEP: Final = 1
"""Agents are listened for on the next port, unless said otherwise."""
MIN_LEASE_MS: Final = 2_000


class Address(msgspec.Struct, frozen=True):
    """Where to listen. Port 0: any that is free."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def everywhere(self) -> bool:
        return self.host in ("0.0.0.0", "::", "")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def read_address(text: str, option: str = "--listen") -> Address:
    """`127.0.0.1:7400`, `[::1]:7400`, `:7400` (all addresses)."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise InputError(f'{option} "{text}" is no address', fix="write HOST:PORT, e.g. 127.0.0.1:7400")
    return Address(host or "0.0.0.0", int(port))


class Settings(msgspec.Struct, frozen=True):
    """Everything that can be chosen at the start."""

    home: Path
    listen: Address
    agents_listen: Address
    database: str = ""
    """A URL or a path; empty: as at the last start in this home, and at first SQLite in it."""
    names: tuple[str, ...] = ()
    """Under which the manager is reached, besides where it listens."""
    insecure: bool = False
    """Plain HTTP on an address that others can reach."""
    with_agent: bool = True
    node: str = ""
    """The name of this machine; empty: its host name."""
    fake_gpus: int | None = None
    """None: as many as usual where there are no real ones."""
    product: str = ""
    accept_shared_user: bool = False
    lease_ms: int = DEFAULT_LEASE_MS
    uids: UidRange | None = None
    """Where users get the numbers from that their jobs run as; None: as before, and at first the usual ones."""
    streams_per_token: int = STREAMS_PER_TOKEN
    max_job_bytes: int = MAX_JOB_BYTES
    """Of the body of a job or schedule."""

    @property
    def tls(self) -> bool:
        return not self.listen.loopback and not self.insecure

    @property
    def hosts(self) -> tuple[str, ...]:
        """Where it listens, as far as that is one address."""
        return tuple(one.host for one in (self.listen, self.agents_listen) if not one.everywhere)

    @property
    def store_address(self) -> str:
        return self.database or kept_database(self.home)

    @property
    def authority_folder(self) -> Path:
        return self.home / "ca"

    @property
    def agent_home(self) -> Path:
        return self.home / "agent"


def next_port(listen: Address) -> Address:
    """Where agents are listened for, next to people; any free port where people have any."""
    return Address(listen.host, listen.port + AGENTS_PORT_STEP if listen.port else 0)


def read_streams_per_token(number: int) -> int:
    if not 1 <= number <= MAX_WATCHERS:
        what = f"--streams-per-token {number} is not from 1 to {MAX_WATCHERS}, which is the most of all tokens together"
        raise InputError(what, fix=f"{STREAMS_PER_TOKEN} unless given")
    return number


def read_lease(text: str) -> int:
    lease_ms = duration_ms(text, "--lease")
    if lease_ms < MIN_LEASE_MS:
        raise ServiceError(
            f"--lease {text} is too short: agents report every few seconds",
            fix=f"at least {MIN_LEASE_MS // 1000}s; 60s outlives a restart of the manager",
        )
    return lease_ms


def read_job_body(text: str) -> int:
    """The bytes that the body of a job may have: `1Mi`, `512Ki`."""
    size = memory_bytes(text, "--max-job-body")
    if not LEAST_JOB_BYTES <= size <= MOST_JOB_BYTES:
        least, most = f"{LEAST_JOB_BYTES >> 10}Ki", f"{MOST_JOB_BYTES >> 20}Mi"
        raise InputError(f"--max-job-body {text} is out of range", fix=f"from {least} to {most}; 1Mi unless given")
    return size
