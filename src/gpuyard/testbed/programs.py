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
JOBSET_VERSION: Final = "v0.10.1"
LWS_VERSION: Final = "v0.7.0"
MPI_OPERATOR_VERSION: Final = "v0.6.0"
KUBERAY_VERSION: Final = "v1.5.1"

_VERSION: Final = "k8s.io/component-base/version"
_TRAINING_OPERATOR: Final = "github.com/kubeflow/training-operator"
_MPI_OPERATOR: Final = "github.com/kubeflow/mpi-operator"
_KUBERAY: Final = "github.com/ray-project/kuberay/ray-operator"

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
    kept=(Kept("training-operator-installation", _TRAINING_OPERATOR, "manifests"),),
    minutes=3,
)
JOBSET: Final = GoModule(
    name="jobset",
    version=JOBSET_VERSION,
    folder=MODULES / "jobset",
    programs=(Program("jobset", "sigs.k8s.io/jobset"),),
    kept=(Kept("jobset-installation", "sigs.k8s.io/jobset", "config"),),
    minutes=3,
)
LWS: Final = GoModule(
    name="lws",
    version=LWS_VERSION,
    folder=MODULES / "lws",
    programs=(Program("lws", "sigs.k8s.io/lws/cmd"),),
    kept=(Kept("lws-installation", "sigs.k8s.io/lws", "config"),),
    minutes=3,
)
MPI_OPERATOR: Final = GoModule(
    name="mpi-operator",
    version=MPI_OPERATOR_VERSION,
    folder=MODULES / "mpi-operator",
    programs=(Program("mpi-operator", f"{_MPI_OPERATOR}/cmd/mpi-operator"),),
    kept=(Kept("mpi-operator-installation", _MPI_OPERATOR, "manifests"),),
    minutes=3,
)
KUBERAY: Final = GoModule(
    name="kuberay",
    version=KUBERAY_VERSION,
    folder=MODULES / "kuberay",
    programs=(Program("kuberay", _KUBERAY),),
    kept=(Kept("kuberay-installation", _KUBERAY, "config"),),
    minutes=3,
)
OPERATORS: Final = {module.name: module for module in (JOBSET, LWS, MPI_OPERATOR, KUBERAY)}
"""Those that are asked for by name."""


def modules_for(extras: Extras) -> list[GoModule]:
    """What is built for a testbed with these extras, quickest first."""
    asked = {KWOK: bool(extras.kwok), COREDNS: extras.dns, TRAINING_OPERATOR: extras.training_operator}
    asked |= {module: name in extras.operators for name, module in OPERATORS.items()}
    return [ETCD, *(module for module, wanted in asked.items() if wanted), KUBERNETES]


def built_programs(modules: Iterable[GoModule], tell: Tell) -> dict[str, str]:
    """Where each of their programs lies."""
    found = [item for module in modules for item in programs_of(module, tell).items()]
    return {name: str(path) for name, path in found}
