"""The process that keeps fake GPUs alive: steps the model, publishes it, serves the exporter, obeys the commands.

Place in the flow: `gpuyard fake up` ─▶ **daemon** ─▶ yard. The only part of the fake GPUs that waits and reads the
clock. Invariant: there is one daemon in a home; whatever a client or a file does, the model keeps stepping.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from gpuyard.errors import GpuyardError
from gpuyard.fakegpu.config import read_fleet
from gpuyard.fakegpu.control import (
    LOG,
    MACHINES,
    MAX_LINE_BYTES,
    SOCKET,
    Request,
    Shutdown,
    encode_outcome,
    encode_problem,
    prepare_home,
)
from gpuyard.fakegpu.exporter import CONTENT_TYPE, HOSTNAME_LABELS, exposition
from gpuyard.fakegpu.fleet import Fleet, a_fleet, reduced
from gpuyard.fakegpu.publish import Publisher
from gpuyard.fakegpu.reload import FleetFile, Loaded, Refused
from gpuyard.fakegpu.yard import MAX_SHOWN, Yard
from gpuyard.platform.clock import monotonic_ms, wall_ms, wall_text
from gpuyard.platform.web import Page, WebServer

STEP_MS: Final = 250
PORT: Final = 9400
HOST: Final = "127.0.0.1"
FAILED: Final = 2


class Settings(msgspec.Struct, frozen=True):
    """What a daemon is started with: a fleet file, or so many machines of one kind."""

    home: Path
    config: Path | None = None
    product: str = "A100"
    gpus: int = 8
    machines: int = 1
    host: str = HOST
    port: int = PORT
    hostname_label: str = HOSTNAME_LABELS[0]
    seed: int = 0
    only: str | None = None
    """The one machine of the file that is modelled here; all of them, if none is named."""
    max_shown: int = MAX_SHOWN
    """Machines of a fleet of at most so many have a state directory from the start."""

    def fleet(self) -> Fleet:
        if self.config is not None:
            return reduced(read_fleet(self.config), self.only)
        return a_fleet(self.product, self.gpus, [f"node-{number}" for number in range(1, self.machines + 1)])


class Companion(Protocol):
    """Something that lives beside the model and drives it, as a cluster does whose pods hold the GPUs."""

    async def run(self, yard: Yard, now_ms: Callable[[], int]) -> None:
        """For ever: whatever can go wrong outside is its own affair. Before it changes anything it lets time pass."""
        ...


class Daemon:
    """One yard with its sockets."""

    def __init__(self, settings: Settings, fleet: Fleet | None = None, companions: Sequence[Companion] = ()) -> None:
        self._settings = settings
        self._companions = companions
        self._began_wall_ms, self._began_ms = wall_ms(), monotonic_ms()
        self._file = FleetFile(settings.config, settings.only) if settings.config else None
        if fleet is None:
            fleet = self._file.fleet if self._file else settings.fleet()
        # A machine that is only known by its name yet comes back under running programs, too.
        names = {settings.only, *(machine.name for machine in fleet.machines)}
        publisher = _publisher(settings.home, names)
        self._yard = Yard(fleet, publisher, self._now_ms(), settings.seed, settings.max_shown)
        self._yard.config = str(settings.config) if settings.config else None
        self._web = WebServer(self._page)
        self._ended = asyncio.Event()
        self._trouble = ""

    def _now_ms(self) -> int:
        """The world's time at our start, and what has passed since: it never jumps."""
        return self._began_wall_ms + monotonic_ms() - self._began_ms

    async def run(self) -> None:
        """Until somebody ends it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ended.set)
        settings = self._settings
        try:
            port = await self._web.start(settings.host, settings.port)
            self._yard.exporter = f"http://{_address(settings.host)}:{port}/metrics"
            self._yard.step(self._now_ms())
            control = await self._listen()
            try:
                say(f"up: {len(self._yard.engine.machines)} machines, {self._yard.exporter}")
                await self._live()
            finally:
                control.close()
        finally:
            await self._web.close()
            self._yard.close()
            (settings.home / SOCKET).unlink(missing_ok=True)
        say("down")

    async def _live(self) -> None:
        """Until somebody ends it; a companion that breaks ends it too, so that all is started anew."""
        beside = [asyncio.create_task(companion.run(self._yard, self._now_ms)) for companion in self._companions]
        for task in beside:
            task.add_done_callback(lambda _: self._ended.set())
        try:
            await self._step_until_ended()
            for task in [task for task in beside if task.done()]:
                task.result()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _step_until_ended(self) -> None:
        while not self._ended.is_set():
            await self._follow_file()
            self._step()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), STEP_MS / 1000)

    def _step(self) -> None:
        """A disk that refuses, or a directory somebody took away, is told once; the next step tries again."""
        try:
            self._yard.step(self._now_ms())
        except GpuyardError as error:
            if str(error) != self._trouble:
                say(f"the state directories are behind: {error}")
            self._trouble = str(error)
        else:
            self._trouble = ""

    # ------------------------------------------------------------------------------------------------- a hot change

    async def _follow_file(self) -> None:
        """A good change is taken; a bad one is told, and nothing changes. The file is read beside the model's steps."""
        if self._file is None:
            return
        match await asyncio.to_thread(self._file.poll):
            case Loaded(fleet):
                self._yard.change(fleet)
                say(f"the fleet was changed: {len(fleet.machines)} machines")
            case Refused() as refused:
                say(f"the fleet file cannot be used: {refused}")
        self._yard.config_error = str(self._file.error) if self._file.error else None

    # ------------------------------------------------------------------------------------------------- the exporter

    def _page(self, path: str, asked: Mapping[str, str]) -> Page:
        match path:
            case "/metrics":
                return self._metrics(asked.get("node"))
            case "/health":
                return Page(["OK\n"])
            case "/":
                return Page(["gpuyard fake GPUs\n/metrics\n/metrics?node=NAME\n/health\n"])
        return Page(["there are /metrics, /metrics?node=NAME and /health\n"], 404)

    def _metrics(self, node: str | None) -> Page:
        self._yard.engine.advance(self._now_ms())
        try:
            readings = self._yard.readings(node)
        except GpuyardError as error:
            return Page([f"{error}\n"], 404)
        return Page(exposition(readings, self._settings.hostname_label), content_type=CONTENT_TYPE)

    # ------------------------------------------------------------------------------------------------- the commands

    async def _listen(self) -> asyncio.Server:
        path = self._settings.home / SOCKET
        path.unlink(missing_ok=True)  # Whoever made it is gone: we hold the lock of the home.
        mask = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(self._converse, path, limit=MAX_LINE_BYTES)
        finally:
            os.umask(mask)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Whoever is still connected at the end is cancelled, which is nothing to tell.
        with suppress(OSError, ValueError, asyncio.CancelledError):
            while line := await reader.readline():
                writer.write(self._outcome(line))
                await writer.drain()
        writer.close()

    def _outcome(self, line: bytes) -> bytes:
        try:
            request = msgspec.json.decode(line, type=Request)
            if isinstance(request, Shutdown):
                self._ended.set()
                return encode_outcome(os.getpid())
            self._yard.engine.advance(self._now_ms())
            return encode_outcome(self._yard.answer(request))
        except msgspec.DecodeError as error:
            return encode_problem(f"not a request of this daemon: {error}")
        except GpuyardError as error:
            return encode_problem(str(error))
        except Exception as error:
            say(f"this is a bug: {''.join(traceback.format_exception(error))}")
            fix = f"please report it with the end of {self._settings.home / LOG}"
            return encode_problem(f"this is a bug in gpuyard ({type(error).__name__}: {error})\n  {fix}")


def _publisher(home: Path, names: Collection[str | None]) -> Publisher:
    """What a daemon that was killed has left goes away, but for machines that come back under running programs."""
    root = home / MACHINES
    publisher = Publisher(root)
    for left in root.iterdir():
        if left.name not in names:
            publisher.remove(left.name)
    return publisher


def _address(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)


def say(text: str) -> None:
    """One entry of the log."""
    print(f"{wall_text()} {text}", flush=True)


def run(settings: Settings, fleet: Fleet | None = None, companions: Sequence[Companion] = ()) -> None:
    """Be the daemon, until it is ended."""
    prepare_home(settings.home)

    async def live() -> None:
        await Daemon(settings, fleet, companions).run()

    asyncio.run(live())


def encode_settings(settings: Settings) -> str:
    """For a process that may stand in another folder."""
    config = settings.config and settings.config.absolute()
    return msgspec.json.encode(msgspec.structs.replace(settings, config=config), enc_hook=str).decode()


def main(arguments: list[str]) -> int:
    try:
        run(msgspec.json.decode(arguments[0], type=Settings, dec_hook=lambda kind, text: kind(text)))
    except GpuyardError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
