"""Bringing the fake GPUs up and down, and what a shell needs to see them.

Place in the flow: cli ─Settings─▶ **launch** ─▶ daemon (a process of its own) ─▶ control. Invariant: `bring_up` comes
back only when everything answers, or with the error that the daemon itself gave.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.errors import FakeGpuError
from gpuyard.fakegpu import build
from gpuyard.fakegpu.control import LOG, DaemonStatus, NotUpError, Show, Shutdown, Status, ask, prepare_home
from gpuyard.fakegpu.daemon import Settings, encode_settings
from gpuyard.platform.clock import monotonic_ms, sleep_ms
from gpuyard.platform.processes import Background, find_process, is_alive, kill_process, start_in_background

START_MS: Final = 60_000
END_MS: Final = 20_000
POLL_MS: Final = 50
LOG_LINES: Final = 12
STATE: Final = "GPUYARD_FAKE_STATE"

Tell = Callable[[str], None]


class Environment(msgspec.Struct, frozen=True):
    """Where a program finds the fake GPUs of one machine."""

    state: str
    library_folder: str
    program_folder: str

    def exports(self) -> str:
        """The lines a shell evaluates. What was there before stays behind it."""
        library, program = shlex.quote(self.library_folder), shlex.quote(self.program_folder)
        return (
            f"export {STATE}={shlex.quote(self.state)}\n"
            f'export LD_LIBRARY_PATH={library}"${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"\n'
            f'export PATH={program}:"$PATH"\n'
        )

    def variables(self, before: dict[str, str]) -> dict[str, str]:
        """The same for a program started from here."""
        library, path = before.get("LD_LIBRARY_PATH"), before.get("PATH", "")
        return {
            STATE: self.state,
            "LD_LIBRARY_PATH": f"{self.library_folder}:{library}" if library else self.library_folder,
            "PATH": f"{self.program_folder}:{path}",
        }


def bring_up(settings: Settings, tell: Tell) -> DaemonStatus:
    """Start a daemon in the background and wait for it; each part is told as it is done."""
    prepare_home(settings.home)
    refuse_second(settings.home)
    settings.fleet()  # A mistake in it is told here, before anything is built or started.
    build_native(tell)
    log = settings.home / LOG
    command = [sys.executable, "-m", "gpuyard.fakegpu.daemon", encode_settings(settings)]
    daemon = start_in_background(command, log)
    process = find_process(daemon.pid)
    try:
        status = _first_status(settings.home, daemon, log)
    except BaseException:
        # Also where we are told to end meanwhile: nobody waits for it any more.
        if process is not None:
            kill_process(process)
        raise
    tell(f"model      {status.size()}")
    tell(f"exporter   {status.exporter}")
    return status


def refuse_second(home: Path) -> None:
    try:
        status = ask(home, Status(limit=0), DaemonStatus)
    except NotUpError:
        return
    fix = "look at them: gpuyard fake status; end them: gpuyard fake down; or start others beside them with --home"
    raise FakeGpuError(f"fake GPUs are already up in {home} (process {status.pid})", fix=fix)


def build_native(tell: Tell) -> None:
    """The library and nvidia-smi; from the second time on they lie in the cache."""
    for name, target in (("NVML", build.THE_LIBRARY), ("nvidia-smi", build.THE_PROGRAM)):
        if not build.place_of(target).exists():
            tell(f"{name:10} is being built, this once; where there is no C compiler, one is fetched first")
        began_ms = monotonic_ms()
        path = build.built(target)
        took_ms = monotonic_ms() - began_ms
        tell(f"{name:10} {path}" + (f" (built in {took_ms / 1000:.1f} s)" if took_ms > 200 else ""))


def _first_status(home: Path, daemon: Background, log: Path) -> DaemonStatus:
    until_ms = monotonic_ms() + START_MS
    while monotonic_ms() < until_ms:
        try:
            return ask(home, Status(limit=0), DaemonStatus)
        except NotUpError:
            if daemon.exit_code() is not None:
                raise FakeGpuError(_last_words(log)) from None
        sleep_ms(POLL_MS)
    raise FakeGpuError(f"the daemon does not answer after {START_MS // 1000} s", fix=f"look into {log}")


def _last_words(log: Path) -> str:
    """The error the daemon ended with; anything else it said is shown as it is."""
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    _, found, error = text.rpartition("error: ")
    if found:
        return error
    last = "\n".join(f"  {line}" for line in text.splitlines()[-LOG_LINES:])
    return f"the daemon ended at once; the end of {log}:\n{last}"


def take_down(home: Path) -> int:
    """End the daemon and wait until it is gone; its number."""
    pid = ask(home, Shutdown(), int)
    process = find_process(pid)
    until_ms = monotonic_ms() + END_MS
    while process is not None and is_alive(process):
        if monotonic_ms() > until_ms:
            raise FakeGpuError(f"process {pid} was asked to end and still runs", fix=f"end it yourself: kill {pid}")
        sleep_ms(POLL_MS)
    return pid


def environment(home: Path, node: str | None) -> Environment:
    """For one machine, or the first."""
    state = ask(home, Show(node), str)
    return Environment(state, str(build.library().parent), str(build.nvidia_smi().parent))
