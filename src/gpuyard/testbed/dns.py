"""Names of services and pods, by CoreDNS fed from the API server.

Place in the flow: up ─▶ **dns** ─▶ the address that every kubelet gives its pods as their name server.
"""

from __future__ import annotations

from typing import Any, Final

import httpx2

from gpuyard.testbed.api import Api
from gpuyard.testbed.control_plane import Component, added_program
from gpuyard.testbed.machine import wait_for_component
from gpuyard.testbed.record import CONTROL, Record

NAME: Final = "coredns"
FILE: Final = "Corefile"
READY_PORT: Final = 8181
READY_MS: Final = 60_000
ANSWER_S: Final = 5.0


def component(record: Record) -> Component:
    return Component(NAME, (str(added_program(record, NAME)), "-conf", str(record.machine_folder(CONTROL) / FILE)))


def corefile(record: Record) -> str:
    """Only names of the cluster: there is no way out of a testbed."""
    return f"""\
.:53 {{
    errors
    ready {record.addresses.control}:{READY_PORT}
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {record.kubeconfig}
        pods insecure
        ttl 1
    }}
}}
"""


def introduce(api: Api, record: Record) -> None:
    """The service under which a cluster knows its name server."""
    api.apply("/api/v1/namespaces/kube-system/services/kube-dns", service(str(record.addresses.dns)))
    ready = f"http://{record.addresses.control}:{READY_PORT}/ready"
    wait_for_component(record, NAME, lambda: answers(ready), READY_MS)


def answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=ANSWER_S, trust_env=False).is_success
    except httpx2.HTTPError:
        return False


def service(address: str) -> dict[str, Any]:
    ports = [{"name": f"dns-{kind.lower()}", "port": 53, "protocol": kind} for kind in ("UDP", "TCP")]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
        "spec": {"clusterIP": address, "ports": ports},
    }
