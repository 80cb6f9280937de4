"""What `gpuyard kube node --once` shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuyard.cli.main import cli
from gpuyard.kube import node_process
from gpuyard.worlds.kubernetes.devices import Held, NodeDevices, PublishedDevice

KUBECONFIG = """
clusters: [{name: c, cluster: {server: "http://localhost:1"}}]
contexts: [{name: x, context: {cluster: c}}]
current-context: x
"""
SEEN = NodeDevices(
    "node-1",
    (PublishedDevice("GPU-0", model="Tesla-T4", memory_mib=15_360, numa=1), PublishedDevice("GPU-1", healthy=False)),
    (Held("a", "p", "init", ("GPU-0",)), Held("a", "p", "main", ("GPU-0",))),
)


def test_a_line_for_every_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(node_process, "published_now", lambda settings, access: SEEN)
    (tmp_path / "config").write_text(KUBECONFIG)
    given = ["kube", "node", "--node", "node-1", "--once", "--kubeconfig", str(tmp_path / "config")]
    shown = [line.split() for line in CliRunner().invoke(cli, given).output.splitlines()]
    assert shown == [
        ["DEVICE", "RESOURCE", "MODEL", "MEMORY", "(MiB)", "NUMA", "HEALTH", "HELD", "BY"],
        ["GPU-0", "nvidia.com/gpu", "Tesla-T4", "15360", "1", "ok", "a/p/init,", "a/p/main"],
        ["GPU-1", "nvidia.com/gpu", "·", "·", "0", "ill", "·"],
    ]


def test_an_address_that_is_none_is_said_so(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["kube", "node", "--node", "node-1", "--listen", "nowhere"])
    assert done.exit_code != 0
