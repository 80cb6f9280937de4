"""Which programs a testbed is made of, at which versions: one table.

Place in the flow: **programs** ─GoModule─▶ golang ─▶ the cache. The folders under `modules/` hold what pins them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gpuyard.testbed.golang import GoModule, Kept, Program, Tell, programs_of
from gpuyard.testbed.record import Extras

MODULES: Final = Path(__file__).with_name("modules")

KUBERNETES_VERSION: Final = "v1.34.2"
ETCD_VERSION: Final = "v3.6.5"
KWOK_VERSION: Final = "v0.7.0"
COREDNS_VERSION: Final = "v1.12.4"
TRAINING_OPERATOR_VERSION: Final = "v1.9.3"

_VERSION: Final = "k8s.io/component-base/version"
_TRAINING_OPERATOR: Final = "github.com/kubeflow/training-operator"

KUBERNETES: Final = GoModule(
    name="kubernetes",
    version=KUBERNETES_VERSION,
    folder=MODULES / "kubernetes",
    programs=tuple(
        Program(name, f"k8s.io/kubernetes/cmd/{name}")
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
    ),
    values=(
        (f"{_VERSION}.gitVersion", KUBERNETES_VERSION),
        (f"{_VERSION}.gitMajor", "1"),
        (f"{_VERSION}.gitMinor", "34"),
    ),
    minutes=12,
)
ETCD: Final = GoModule(
    name="etcd",
    version=ETCD_VERSION,
    folder=MODULES / "etcd",
    programs=(Program("etcd", "go.etcd.io/etcd/server/v3"),),
)
KWOK: Final = GoModule(
    name="kwok",
    version=KWOK_VERSION,
    folder=MODULES / "kwok",
    programs=(Program("kwok", "sigs.k8s.io/kwok/cmd/kwok"),),
    minutes=3,
)
COREDNS: Final = GoModule(
    name="coredns",
    version=COREDNS_VERSION,
    folder=MODULES / "coredns",
    programs=(Program("coredns", "gpuyard/testbed/coredns"),),
    minutes=2,
)
TRAINING_OPERATOR: Final = GoModule(
    name="training-operator",
    version=TRAINING_OPERATOR_VERSION,
    folder=MODULES / "training-operator",
    programs=(Program("training-operator", f"{_TRAINING_OPERATOR}/cmd/training-operator.v1"),),
    kept=(Kept("training-operator-crds", _TRAINING_OPERATOR, "manifests/base/crds"),),
    minutes=3,
)


def modules_for(extras: Extras) -> list[GoModule]:
    """What is built for a testbed with these extras, quickest first."""
    asked = {KWOK: bool(extras.kwok), COREDNS: extras.dns, TRAINING_OPERATOR: extras.training_operator}
    return [ETCD, *(module for module, wanted in asked.items() if wanted), KUBERNETES]


def built_programs(modules: Iterable[GoModule], tell: Tell) -> dict[str, str]:
    """Where each of their programs lies."""
    found = [item for module in modules for item in programs_of(module, tell).items()]
    return {name: str(path) for name, path in found}
