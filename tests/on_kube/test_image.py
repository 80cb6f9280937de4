"""deploy/scheduler as users have it: the image its Containerfile builds, and its manifests word for word."""

from __future__ import annotations

import pytest

from gpuyard.testbed.bed import Bed
from tests.fakegpu.kubernetes.image import SCHEDULER, built_archive
from tests.kube import a_namespace, a_pod, eventually
from tests.on_kube.deployed import MANIFESTS, READY_S, are_ready, deployed, forget

pytestmark = pytest.mark.long


def test_the_image_of_the_manifests_schedules_pods_and_publishes_devices(testbed: Bed) -> None:
    testbed.import_archive(built_archive(SCHEDULER))
    nodes = testbed.record.nodes
    with testbed.api() as api:
        forget(api)
        with deployed(testbed, api, MANIFESTS), a_namespace(api, "image") as path:
            eventually(lambda: are_ready(api, "scheduler", 2), "two ready schedulers", READY_S)
            eventually(lambda: are_ready(api, "node", nodes), "a part on every node", READY_S)
            eventually(lambda: api.answers("/apis/scheduling.run.ai/v2/queues/default-queue"), "the default queue")
            api.create(path, a_pod("first", schedulerName="gpuyard"))
            eventually(lambda: api.get(f"{path}/first")["status"].get("phase") == "Running", "the pod")
