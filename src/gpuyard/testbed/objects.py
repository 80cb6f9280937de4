"""What the API server is told before anyone else may ask it.

Place in the flow: up ─▶ **objects** ─▶ the API server.
"""

from __future__ import annotations

from typing import Any, Final

from gpuyard.testbed.api import Api
from gpuyard.testbed.credentials import KUBELET_CLIENT

RBAC: Final = "rbac.authorization.k8s.io"


def make(api: Api) -> None:
    """The API server may ask kubelets for logs, and run commands in containers."""
    name = "gpuyard-testbed-kubelet-client"
    api.apply(f"/apis/{RBAC}/v1/clusterrolebindings/{name}", kubelet_access(name))


def kubelet_access(name: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "system:kubelet-api-admin"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": KUBELET_CLIENT}],
    }


def accounts_are_there(api: Api) -> bool:
    """Before that, no pod of the namespace `default` can be made."""
    needed = ("serviceaccounts/default", "configmaps/kube-root-ca.crt")
    return all(api.answers(f"/api/v1/namespaces/default/{path}") for path in needed)
