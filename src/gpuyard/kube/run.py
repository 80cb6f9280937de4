"""`gpuyard kube scheduler` as a process: its way to the cluster, its pages, its end.

Place in the flow: cli ─Start─▶ **run** ─▶ scheduler. Invariant: it ends on SIGTERM and SIGINT with its lease given
back, and does not begin to take KAI's pods while KAI's own scheduler leads.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import msgspec

from gpuyard.errors import InputError
from gpuyard.kube.decisions import DecisionLog
from gpuyard.kube.install import ensure_crds
from gpuyard.kube.lease import is_held
from gpuyard.kube.metrics import metrics_text
from gpuyard.kube.scheduler import Options, Scheduler
from gpuyard.kubeapi.access import find_access
from gpuyard.kubeapi.client import KubeClient
from gpuyard.platform.clock import wall_ms
from gpuyard.platform.web import Page, WebServer
from gpuyard.worlds.kubernetes.settings import KAI_SCHEDULER

Say = Callable[[str], None]


class Start(msgspec.Struct, frozen=True):
    """How and where it is started."""

    options: Options
    kubeconfig: Path | None = None
    context: str | None = None
    host: str = "0.0.0.0"
    port: int | None = 8080
    """None: no pages."""
    install: bool = False
    """Whether kinds that the cluster lacks are made first."""


def run_scheduler(start: Start, say: Say, decisions: TextIO | None) -> None:
    """Until it is told to end."""
    asyncio.run(_run(start, say, decisions))


async def _run(start: Start, say: Say, decisions: TextIO | None) -> None:
    access = find_access(start.kubeconfig, start.context)
    await _prepare(KubeClient(access), start, say)
    # A write that the server was too busy for is sent again only by who still leads then.
    client = KubeClient(access, tries=1)
    try:
        log = DecisionLog(lambda line: _write(decisions, line), wall_ms) if decisions is not None else None
        scheduler = Scheduler(client, start.options, say, log)
        web = WebServer(lambda path, query: _page(scheduler, path, query))
        if start.port is not None:
            port = await web.start(start.host, start.port)
            say(f"metrics, health and readiness on http://{start.host}:{port}")
        try:
            await _until_told(scheduler)
        finally:
            await web.close()
    finally:
        await client.close()


async def _prepare(client: KubeClient, start: Start, say: Say) -> None:
    try:
        await _refuse_beside_kai(client, start.options)
        if start.install:
            await ensure_crds(client, say)
    finally:
        await client.close()


async def _refuse_beside_kai(client: KubeClient, options: Options) -> None:
    """Two schedulers that take the same pods would put two of them on one GPU."""
    if KAI_SCHEDULER not in options.settings.schedulers:
        return
    holder = await is_held(client, KAI_SCHEDULER, KAI_SCHEDULER)
    if holder:
        fix = "scale KAI's scheduler to 0 first (kubectl -n kai-scheduler scale deployment --all --replicas 0)"
        raise InputError(f"KAI's own scheduler leads this cluster ({holder}), and takes the same pods", fix=fix)


async def _until_told(scheduler: Scheduler) -> None:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await scheduler.run()


def _write(file: TextIO | None, line: str) -> None:
    assert file is not None
    file.write(line + "\n")
    file.flush()


def _page(scheduler: Scheduler, path: str, query: Mapping[str, str]) -> Page:
    match path:
        case "/healthz" | "/livez":
            return Page(["ok\n"])
        case "/readyz":
            if not scheduler.ready:
                return Page(["not everything has been seen yet\n"], 503)
            pause = scheduler.loop.containment.pause if scheduler.loop is not None else None
            return Page(["ok\n" if pause is None else f"ok, but planning fails: {pause.fault.id} in the log\n"])
        case "/metrics":
            return Page([metrics_text(scheduler)], content_type="text/plain; version=0.0.4; charset=utf-8")
    return Page(["there are /healthz, /readyz and /metrics\n"], 404)
