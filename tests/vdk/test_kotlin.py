"""The Kotlin client, built with Maven and tested against a running manager."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuyard.wire.access import Scope
from gpuyard.wire.rest import TokenRequest
from tests.vdk.maven import require_maven, verify
from tests.yard import running_yard

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("kotlin")]

CLASSES = {"gpuyard.DecimalTextTest": 2, "gpuyard.RemoteGpuResourceManagerTest": 23}
"""Every class of tests, and how many it has."""


def test_the_kotlin_client_does_what_the_original_interface_says(tmp_path: Path) -> None:
    require_maven()
    with running_yard(tmp_path, "--fake-gpus", "0") as yard:
        with yard.client() as client:
            token = client.create_token(TokenRequest("vdk", scope=Scope.POOL)).secret
        pool = json.loads((yard.home / "server.json").read_bytes())["pool"]
        reports = verify({"GPUYARD_POOL": pool, "GPUYARD_TOKEN": token})
    assert {name: report.tests for name, report in reports.items()} == CLASSES
    assert all(report[1:] == (0, 0, 0) for report in reports.values()), reports
