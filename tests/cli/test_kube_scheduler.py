"""`gpuyard kube scheduler`: what its flags become."""

from typing import Any

import pytest

from gpuyard.kube.run import Start
from gpuyard.policies.policy import ConsolidationMode, NodePlacement
from tests.cli.conftest import run


def test_flags_become_values_the_scheduler_can_reckon_with(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Start] = []
    monkeypatch.setattr("gpuyard.kube.run.run_scheduler", lambda start, *rest: started.append(start))
    flags: list[Any] = ["--also", "kai-scheduler", "--staleness-grace", "90s", "--placement", "spread", "--no-pages"]
    result = run("kube", "scheduler", *flags, "--consolidation", "off", "-n", "sys")
    assert result.exit_code == 0, result.output
    (start,) = started
    assert start.options.policy.staleness_grace_ms == 90_000
    assert start.options.policy.node_placement is NodePlacement.SPREAD
    assert start.options.policy.consolidation.mode is ConsolidationMode.OFF
    assert start.options.settings.schedulers == ("gpuyard", "kai-scheduler")
    assert start.options.settings.namespace == "sys"
    assert start.port is None
