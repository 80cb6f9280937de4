"""Whether a scheduler leads a cluster now, as far as its lease tells.

Place in the flow: lease ─**leading**─▶ why, doctor. Times in a lease are its holder's, and may differ from ours: an
old one is watched for a moment before it is called over.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gpuyard.kube.lease import DURATION_MS, NAME, RETRY_MS, Lease, read_lease
from gpuyard.kubeapi.client import KubeClient
from gpuyard.kubeapi.moments import ms_of
from gpuyard.platform.clock import monotonic_ms

WATCH_MS: Final = 2 * RETRY_MS
"""Whoever leads renews at least so often."""
POLL_S: Final = 0.25


def leads(lease: Lease | None, now_ms: int) -> bool:
    """Whether somebody holds it who has renewed it in time, by the clocks of both."""
    if lease is None or not lease.spec.holder_identity:
        return False
    duration_ms = 1000 * (lease.spec.lease_duration_seconds or DURATION_MS // 1000)
    return abs(now_ms - ms_of(lease.spec.renew_time)) < duration_ms


async def renewed(client: KubeClient, lease: Lease, namespace: str, name: str = NAME) -> bool:
    """Whether somebody renews it while we look, whatever their clock says."""
    until_ms = monotonic_ms() + WATCH_MS
    while monotonic_ms() < until_ms:
        await asyncio.sleep(POLL_S)
        now = await read_lease(client, namespace, name)
        if now is not None and now.spec != lease.spec and now.spec.holder_identity:
            return True
    return False
