"""Schedulers under test: in a thread of this process, or as the command people start, which can be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

import msgspec

from gpuyard.kube.decisions import DecisionLog, lines_of
from gpuyard.kube.scheduler import Options, Scheduler
from gpuyard.kubeapi.access import Access
from gpuyard.kubeapi.client import KubeClient
from gpuyard.platform.clock import wall_ms
from gpuyard.policies.policy import DEFAULT, Policy
from gpuyard.worlds.kubernetes.settings import Settings

SECONDS = 60.0


class Inside:
    """In a thread of its own; ends as on SIGTERM."""

    def __init__(self, access: Access, namespace: str, policy: Policy = DEFAULT) -> None:
        self._access = access
        settings = Settings(namespace=namespace)
        self._options = Options(settings=settings, policy=policy, elect=False, per_second=1_000, burst=1_000)
        self.said: list[str] = []
        self.decisions: list[str] = []
        self.scheduler: Scheduler | None = None
        self.failure: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._live())
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self.failure = error
        finally:
            self._loop.close()

    async def _live(self) -> None:
        client = KubeClient(self._access, tries=1)
        log = DecisionLog(self.decisions.append, wall_ms)
        self.scheduler = Scheduler(client, self._options, self.said.append, log)
        try:
            await self.scheduler.run()
        finally:
            await client.close()

    @property
    def leads(self) -> bool:
        return self.scheduler is not None and self.scheduler.loop is not None

    def ready(self) -> None:
        """Wait until it plans."""
        until = monotonic() + SECONDS
        while not self.leads:
            assert self.failure is None, self.failure
            assert monotonic() < until, f"it does not lead: {self.said}"
            sleep(0.01)

    def lines(self, event: str) -> list[dict[str, object]]:
        return [line for line in lines_of("\n".join(self.decisions)) if line["event"] == event]

    def stop(self) -> None:
        if self._thread.is_alive() and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        assert self.failure is None, self.failure


class Times(msgspec.Struct, frozen=True):
    """How long a lease lasts in a test, in milliseconds; people wait longer for safety."""

    duration: int = 2_000
    renew: int = 1_500
    retry: int = 200


PROGRAM = """
import sys
from gpuyard.kube import lease
lease.DURATION_MS, lease.RENEW_MS, lease.RETRY_MS = {duration}, {renew}, {retry}
from gpuyard.cli.main import main
main()
"""


class Outside:
    """`gpuyard kube scheduler`, as a process."""

    def __init__(self, url: str, namespace: str, folder: Path, name: str, options: Sequence[str] = ()) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.file = folder / f"{name}.jsonl"
        kubeconfig = folder / f"{name}.kubeconfig"
        kubeconfig.write_text(_kubeconfig(url))
        program = PROGRAM.format(**msgspec.structs.asdict(Times()))
        words = ["kube", "scheduler", "--kubeconfig", str(kubeconfig), "--namespace", namespace, "--no-pages"]
        words += ["--identity", name, "--decisions", str(self.file), "--qps", "1000", "--burst", "1000", *options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, *words],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "KUBECONFIG": str(kubeconfig)},
            )

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def lines(self, event: str) -> list[dict[str, object]]:
        return [line for line in lines_of(self.file.read_text(encoding="utf-8")) if line["event"] == event]

    def kill(self) -> None:
        """At once, without a word."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(SECONDS)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        assert self.process.wait(SECONDS) in (0, -signal.SIGKILL), self.said()


def _kubeconfig(url: str) -> str:
    return f"""
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
users: [{{name: u, user: {{token: none}}}}]
"""
