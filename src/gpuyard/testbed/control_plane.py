"""The components of the control plane, as command lines. Pure.

Place in the flow: record, programs ─**control_plane**─▶ Component ─▶ the script that keeps them running (`boot.py`).
They live in a network of their own, so every port is the usual one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from gpuyard.testbed.credentials import pki_folder
from gpuyard.testbed.record import CONTROL, Record

ETCD: Final = "etcd"
API_SERVER: Final = "kube-apiserver"
CONTROLLER_MANAGER: Final = "kube-controller-manager"
SCHEDULER: Final = "kube-scheduler"

GONE_AFTER_S: Final = 6
"""A node that has been silent this long is NotReady; a real cluster waits for 50 s."""
QUICK_CLIENT: Final = ("--kube-api-qps=1000", "--kube-api-burst=2000")
"""The usual 20 questions a second are for a server that others need too; hundreds of nodes would wait for a minute."""


class Component(msgspec.Struct, frozen=True):
    """One program that is kept running."""

    name: str
    command: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()


def control_components(record: Record) -> list[Component]:
    """What every testbed has, in the order it starts."""
    arguments = {
        ETCD: _etcd(record),
        API_SERVER: _api_server(record),
        CONTROLLER_MANAGER: _controller_manager(record),
        SCHEDULER: _scheduler(record),
    }
    return [Component(name, (str(record.program(name)), *given)) for name, given in arguments.items()]


def added_program(record: Record, name: str) -> Path:
    """Where the script of the control plane finds a program that may be added later."""
    return record.machine_folder(CONTROL) / "programs" / name


def _etcd(record: Record) -> tuple[str, ...]:
    return (
        f"--data-dir={record.machine_folder(CONTROL) / 'etcd'}",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        # Nothing here is to outlive a loss of power, and a disk that many share is slow.
        "--unsafe-no-fsync",
        "--log-level=warn",
    )


def _api_server(record: Record) -> tuple[str, ...]:
    pki = pki_folder(record)
    return (
        "--etcd-servers=http://127.0.0.1:2379",
        "--secure-port=443",
        f"--advertise-address={record.addresses.control}",
        f"--service-cluster-ip-range={record.addresses.services}",
        f"--tls-cert-file={pki / 'apiserver.pem'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.pem'}",
        f"--token-auth-file={pki / 'tokens.csv'}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--anonymous-auth=false",
        "--allow-privileged=true",
        f"--kubelet-client-certificate={pki / 'kubelet-client.pem'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        # Else `kubectl logs` would look for the names of nodes in the machine's DNS.
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki / 'service-accounts.pem'}",
        f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
        "--shutdown-delay-duration=0s",
    )


def _controller_manager(record: Record) -> tuple[str, ...]:
    pki, kubeconfig = pki_folder(record), record.machine_folder(CONTROL) / "controller-manager.kubeconfig"
    return (
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        *QUICK_CLIENT,
        f"--root-ca-file={pki / 'ca.pem'}",
        f"--service-account-private-key-file={pki / 'service-accounts.key'}",
        f"--cluster-signing-cert-file={pki / 'ca.pem'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        "--node-monitor-period=1s",
        f"--node-monitor-grace-period={GONE_AFTER_S}s",
    )


def _scheduler(record: Record) -> tuple[str, ...]:
    kubeconfig = record.machine_folder(CONTROL) / "scheduler.kubeconfig"
    return (f"--kubeconfig={kubeconfig}", "--leader-elect=false", *QUICK_CLIENT)
