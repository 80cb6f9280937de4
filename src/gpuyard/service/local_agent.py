"""The agent of the manager's own machine: a process of its own that is started, and started again when it ends.

Place in the flow: daemon ─▶ **local agent** ─process─▶ gpuyard.agent. It speaks the same stream as any other and
outlives a manager that crashes: the next one finds it by its lock and leaves it alone, unless it was started for
another address or with other GPUs: then it is replaced, which ends no task. It ends
with a manager that is told to end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpuyard.errors import ServiceError
from gpuyard.platform.clock import monotonic_ms
from gpuyard.platform.files import write_private
from gpuyard.platform.locks import holder
from gpuyard.platform.processes import (
    Background,
    ProcessIdentity,
    command_line,
    find_process,
    is_alive,
    start_in_background,
)
from gpuyard.service.certificates import Authority, expires_soon, name_in
from gpuyard.service.settings import Settings

LOOK_MS: Final = 300
AGAIN_MS: Final = 1_000
LONGEST_AGAIN_MS: Final = 30_000
STOP_MS: Final = 30_000
"""It ends its fake GPUs too."""
LAST_LINES: Final = 8
CERTIFICATE: Final = "cert.pem"
CA: Final = "ca.pem"


def known_as(home: Path) -> str:
    """The name the machine of this agent's home has joined by; empty where it has not."""
    certificate = home / CERTIFICATE
    return name_in(certificate.read_bytes()) if certificate.exists() else ""


class LocalAgent:
    """Sees to it that one runs."""

    def __init__(self, settings: Settings, node: str, manager: str) -> None:
        self._settings = settings
        self._node = node
        self._manager = manager
        self._home = settings.agent_home
        self._started: Background | None = None
        self._exit_code = 0

    def prepare(self, authority: Authority) -> str:
        """Give it a certificate, if it has none of ours that is good; the PEM of it."""
        self._home.mkdir(mode=0o711, parents=True, exist_ok=True)
        certificate = self._home / CERTIFICATE
        if not self._is_of(authority) or expires_soon(certificate.read_bytes()):
            pair = authority.machine_with_key(self._node)
            write_private(self._home / CA, authority.pem)
            write_private(self._home / "key.pem", pair.key)
            write_private(certificate, pair.certificate)
        known = known_as(self._home)
        if known != self._node:
            raise ServiceError(
                f'this machine is known as "{known}" since it was first started in {self._home.parent}',
                fix=f"leave --node out; or have it forgotten: gpuyard node remove {known}, then remove {self._home}",
            )
        return certificate.read_text(encoding="ascii")

    def _is_of(self, authority: Authority) -> bool:
        authority_file = self._home / CA
        return (self._home / CERTIFICATE).exists() and authority_file.read_bytes() == authority.pem

    @property
    def log(self) -> Path:
        return self._home / "agent.log"

    async def keep_running(self, is_heard: Callable[[], bool], trouble: Callable[[str], None]) -> None:
        """Until cancelled. Each time it ends, `trouble` is told why; an empty text once it is heard of.

        It is tried again all the while: what it lacks may come.
        """
        pause_ms = AGAIN_MS
        await self._end_another()
        while True:
            began_ms = monotonic_ms()
            if self.process() is None:
                self._started = self._start()
            await self._until_it_ends(is_heard, trouble)
            trouble(self._why_it_ended())
            lived_ms = monotonic_ms() - began_ms
            pause_ms = AGAIN_MS if lived_ms > LONGEST_AGAIN_MS else min(pause_ms * 2, LONGEST_AGAIN_MS)
            await asyncio.sleep((AGAIN_MS if lived_ms > LONGEST_AGAIN_MS else pause_ms // 4) / 1000)

    async def _end_another(self) -> None:
        """One that was started in another way would never find this manager, or give other GPUs than asked for."""
        process = self.process()
        if process is not None and command_line(process.pid) != tuple(self._command()):
            await self.stop()

    def _start(self) -> Background:
        try:
            return start_in_background(self._command(), self.log)
        except OSError as error:
            raise ServiceError(f"the agent cannot be started in {self._home}: {error}", fix="is it there?") from None

    def _command(self) -> list[str]:
        settings = self._settings
        command = [sys.executable, "-m", "gpuyard.agent", "--home", str(self._home), "--manager", self._manager]
        command += ["--node", self._node]
        if settings.fake_gpus is not None:
            command += ["--fake-gpus", str(settings.fake_gpus)]
        if settings.product:
            command += ["--fake-product", settings.product]
        return command

    async def _until_it_ends(self, is_heard: Callable[[], bool], trouble: Callable[[str], None]) -> None:
        self._exit_code = 0
        while True:
            await asyncio.sleep(LOOK_MS / 1000)
            code = self._started.exit_code() if self._started is not None else None
            if code is not None:
                self._started, self._exit_code = None, code
            if self.process() is None and self._started is None:
                return
            if is_heard():
                trouble("")

    def _why_it_ended(self) -> str:
        """Empty where it was asked to, or is not ours."""
        if self._exit_code < 0:
            return f"it was ended by signal {-self._exit_code}"
        return self.last_words() if self._exit_code else ""

    def process(self) -> ProcessIdentity | None:
        """The process that runs as this agent, ours or one of a manager before us."""
        pid = holder(self._home / "agent.lock")
        return find_process(pid) if pid is not None else None

    def last_words(self) -> str:
        """The error it ended with; anything else it said is shown as it is."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            text = ""
        error = text.rpartition("error: ")[2] if "error: " in text else ""
        return error or "\n".join(text.splitlines()[-LAST_LINES:]) or "it ended without a word"

    async def stop(self) -> bool:
        """Have it end; whether it ran. Its tasks go on for as long as their lease, and are found again by the next."""
        # One that was only just started has no lock yet.
        process = self.process() or (find_process(self._started.pid) if self._started is not None else None)
        if process is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        until_ms = monotonic_ms() + STOP_MS
        while is_alive(process):
            if monotonic_ms() > until_ms:
                raise ServiceError(f"the agent (process {process.pid}) does not end", fix=f"look into {self.log}")
            await asyncio.sleep(LOOK_MS / 1000 / 10)
            if self._started is not None:
                self._started.exit_code()
        return True
