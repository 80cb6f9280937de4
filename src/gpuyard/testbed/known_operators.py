"""The operators a testbed may have: what each is told, and where it listens. One table.

Place in the flow: **known_operators** ─Operator─▶ extras. Each has ports of its own, because all share one network.
"""

from __future__ import annotations

from typing import Final

from gpuyard.testbed.node_files import BUSYBOX_IMAGE
from gpuyard.testbed.operators import FOLDER, Operator, Webhooks
from gpuyard.testbed.programs import JOBSET, KUBERAY, LWS, MPI_OPERATOR, TRAINING_OPERATOR

_INIT_CONTAINER: Final = f"""\
- name: init-pytorch
  image: {BUSYBOX_IMAGE}
  imagePullPolicy: Never
  command:
  - sh
  - -c
  - |
    domain=$(sed -n 's/^search \\([^ ]*\\).*/\\1/p' /etc/resolv.conf)
    for i in $(seq {{{{.MaxTries}}}}); do
      nslookup -type=a {{{{.MasterAddr}}}}.$domain && exit 0
      sleep 0.5
    done
    exit 1
"""
"""What a worker does before it starts: it waits for the name of its master, as with the operator's own template."""

_CONFIGURATION: Final = """\
apiVersion: {group}/v1alpha1
kind: Configuration
internalCertManagement: {{enable: true}}
leaderElection: {{leaderElect: false}}
metrics: {{bindAddress: "0"}}
health: {{healthProbeBindAddress: ":{probe}"}}
webhook: {{port: {webhook}}}
"""
"""JobSet and LeaderWorkerSet are made alike."""

TRAINING: Final = Operator(
    TRAINING_OPERATOR,
    makes="PyTorchJob",
    installed_by="overlays/standalone",
    probe="8081/readyz",
    words=(
        "--enable-scheme=pytorchjob",
        "--webhook-server-port=9443",
        "--health-probe-bind-address=:8081",
        # Nobody reads them, and others want the port.
        "--metrics-bind-address=0",
        f"--pytorch-init-container-image={BUSYBOX_IMAGE}",
        f"--pytorch-init-container-template-file={FOLDER}/init-container.yaml",
    ),
    files=(("init-container.yaml", _INIT_CONTAINER),),
    webhooks=Webhooks(9443, "kubeflow", "training-operator-webhook-cert"),
    only=("pytorchjobs",),
)
JOB_SET: Final = Operator(
    JOBSET,
    makes="JobSet",
    installed_by="default",
    probe="8082/readyz",
    words=(f"--config={FOLDER}/configuration.yaml",),
    files=(("configuration.yaml", _CONFIGURATION.format(group="config.jobset.x-k8s.io", probe=8082, webhook=9444)),),
    webhooks=Webhooks(9444, "jobset-system", "jobset-webhook-server-cert"),
)
LEADER_WORKER_SET: Final = Operator(
    LWS,
    makes="LeaderWorkerSet",
    installed_by="default",
    probe="8083/readyz",
    words=(f"--config={FOLDER}/configuration.yaml",),
    files=(("configuration.yaml", _CONFIGURATION.format(group="config.lws.x-k8s.io", probe=8083, webhook=9445)),),
    webhooks=Webhooks(9445, "lws-system", "lws-webhook-server-cert"),
)
MPI: Final = Operator(
    MPI_OPERATOR,
    makes="MPIJob (v2beta1)",
    installed_by="overlays/standalone",
    # It has no option for the port.
    probe="8080/healthz",
    words=("--kube-api-qps=100", "--kube-api-burst=200"),
)
RAY: Final = Operator(
    KUBERAY,
    makes="RayCluster, RayJob, RayService",
    installed_by="default",
    probe="8084/readyz",
    words=(
        "--enable-leader-election=false",
        "--health-probe-bind-address=:8084",
        "--metrics-addr=0",
    ),
    # Both would need a Ray that answers.
    variables=(("ENABLE_PROBES_INJECTION", "false"), ("ENABLE_INIT_CONTAINER_INJECTION", "false")),
)
ALL: Final = (TRAINING, JOB_SET, LEADER_WORKER_SET, MPI, RAY)
