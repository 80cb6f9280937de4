"""What the scheduler does, as Prometheus reads it."""

from __future__ import annotations

import asyncio
import re

from gpuyard.kube.metrics import metrics_text
from gpuyard.kube.scheduler import Options, Scheduler
from gpuyard.kubeapi.access import Access
from gpuyard.kubeapi.client import KubeClient
from tests.worlds.kubernetes.small_cluster import SmallCluster

SAMPLE = re.compile(r"gpuyard_kube_\w+(\{\w+=\"[^\"]*\"(,\w+=\"[^\"]*\")*\})? -?[0-9.e+-]+")


def page(cluster: SmallCluster | None) -> str:
    async def made() -> str:
        client = KubeClient(Access(server="http://127.0.0.1:1"))
        scheduler = Scheduler(client, Options(elect=False), lambda line: None)
        scheduler.counts.update({"bound": 3, "evicted:Preempted": 2, "evicted:Stale": 1})
        if cluster is not None:
            scheduler.loop = cluster.loop
        try:
            return metrics_text(scheduler)
        finally:
            await client.close()

    return asyncio.run(made())


def test_every_line_can_be_read_and_every_metric_is_described_once() -> None:
    cluster = SmallCluster(nodes=1, gpus=4)
    cluster.add_pod("a", 1)
    cluster.add_pod("b", 8)
    cluster.settle()
    lines = page(cluster).splitlines()
    helps = [line.split()[2] for line in lines if line.startswith("# HELP")]
    assert len(helps) == len(set(helps))
    for line in lines:
        assert line.startswith(("# HELP", "# TYPE")) or SAMPLE.fullmatch(line), line
    assert 'gpuyard_kube_evictions_total{reason="Preempted"} 2' in lines
    assert 'gpuyard_kube_queue_gpus_held{queue="team"} 1' in lines
    assert 'gpuyard_kube_queue_gpus_asked{queue="team"} 8' in lines
    assert "gpuyard_kube_jobs_waiting 1" in lines


def test_a_standby_has_a_page_too() -> None:
    assert "gpuyard_kube_binds_total 3" in page(None).splitlines()
