"""The scheduler as a process: it ends when it is told to, and begins from what the cluster says."""

from __future__ import annotations

import asyncio

import pytest

from gpuyard.kube.scheduler import Options, Scheduler
from gpuyard.kubeapi.access import Access
from gpuyard.kubeapi.client import KubeClient


def test_the_end_is_not_forgotten_when_something_happens_at_that_very_moment() -> None:
    async def end() -> None:
        client = KubeClient(Access(server="http://127.0.0.1:1"))
        scheduler = Scheduler(client, Options(elect=False), lambda line: None)
        waiting = asyncio.create_task(scheduler._something_new())
        await asyncio.sleep(0.01)
        scheduler._wake.set()
        scheduler.picture.mark("a/pod/p")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await client.close()

    asyncio.run(end())
