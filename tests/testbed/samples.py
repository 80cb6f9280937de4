"""Records of testbeds that do not exist."""

from __future__ import annotations

from typing import Any

from gpuyard.testbed.record import Extras, Record

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")


def a_record(**changes: Any) -> Record:
    usual: dict[str, Any] = {
        "name": "sample",
        "slot": 2,
        "mark": "feed",
        "nodes": 2,
        "extras": Extras(),
        "programs": {name: f"/programs/{name}" for name in PROGRAMS},
        "snapshotter": "native",
        "began_at_ms": 0,
    }
    return Record(**{**usual, **changes})
