"""Kubeflow's training operator, beside the API server instead of in a pod; its webhook works.

Place in the flow: up ─▶ **training** ─▶ the API server: definitions, webhook, then the operator. It writes its
certificate into a Secret, which in a pod would be mounted where it looks for it; here it is written there.
"""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any, Final

import yaml

from gpuyard.platform.files import write_private
from gpuyard.testbed.api import Api
from gpuyard.testbed.control_plane import Component, added_program
from gpuyard.testbed.dns import answers
from gpuyard.testbed.machine import wait_for_component
from gpuyard.testbed.node_files import BUSYBOX_IMAGE
from gpuyard.testbed.record import CONTROL, Record

NAME: Final = "training-operator"
DEFINITIONS: Final = "training-operator-crds"
NAMESPACE: Final = "kubeflow"
SECRET: Final = "training-operator-webhook-cert"
WEBHOOK: Final = "validator.training-operator.kubeflow.org"
WEBHOOK_PORT: Final = 9443
PROBE_PORT: Final = 8081
KIND: Final = "pytorchjob"
CERTIFICATES: Final = "k8s-webhook-server/serving-certs"
"""Below /tmp: the operator has no option for it."""
READY_MS: Final = 120_000

_ALONE: Final = 'mount --bind "$1" "$2" && mount --bind "$3" /tmp && shift 3 && exec "$@"'
INIT_CONTAINER: Final = f"""\
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


def component(record: Record) -> Component:
    """In a mount namespace of its own, because its certificates lie in /tmp."""
    folder = folder_of(record)
    # Bound to another place first: it may itself lie in /tmp, which is hidden then.
    program = folder / NAME
    alone = ("unshare", "--mount", "sh", "-c", _ALONE, "sh")
    command = (
        *(*alone, str(added_program(record, NAME)), str(program), str(folder / "tmp")),
        *(str(program), f"--enable-scheme={KIND}", f"--webhook-server-port={WEBHOOK_PORT}"),
        f"--health-probe-bind-address=:{PROBE_PORT}",
        f"--pytorch-init-container-image={BUSYBOX_IMAGE}",
        f"--pytorch-init-container-template-file={folder / 'init-container.yaml'}",
    )
    return Component(NAME, command, (("KUBECONFIG", str(record.kubeconfig)),))


def folder_of(record: Record) -> Path:
    return record.machine_folder(CONTROL) / NAME


def lay_out(record: Record) -> None:
    """What it finds when it starts."""
    folder = folder_of(record)
    certificates = folder / "tmp" / CERTIFICATES
    certificates.mkdir(parents=True, exist_ok=True)
    (folder / NAME).touch()
    (folder / "init-container.yaml").write_text(INIT_CONTAINER, encoding="utf-8")


def introduce(api: Api, definitions: Path) -> None:
    """What must be there before the operator starts."""
    for definition in sorted(definitions.glob(f"*_{KIND}s.yaml")):
        content = yaml.safe_load(definition.read_text(encoding="utf-8"))
        api.apply(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{content['metadata']['name']}", content)
    api.apply(f"/api/v1/namespaces/{NAMESPACE}", _object("v1", "Namespace", NAMESPACE))
    within = f"/api/v1/namespaces/{NAMESPACE}"
    api.apply(f"{within}/secrets/{SECRET}", _object("v1", "Secret", SECRET, NAMESPACE))
    outside = {"type": "ExternalName", "externalName": "localhost"}
    api.apply(f"{within}/services/{NAME}", {**_object("v1", "Service", NAME, NAMESPACE), "spec": outside})
    api.apply(f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{WEBHOOK}", webhook())


def wait_ready(api: Api, record: Record) -> None:
    """Hand its certificate over, and wait until its webhook answers."""
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET}"
    wait_for_component(record, NAME, lambda: "tls.key" in api.get(path).get("data", {}), READY_MS)
    content = api.get(path)["data"]
    for name in ("tls.key", "tls.crt"):
        write_private(folder_of(record) / "tmp" / CERTIFICATES / name, b64decode(content[name]), keep=False)
    probe = f"http://{record.addresses.control}:{PROBE_PORT}/readyz"
    wait_for_component(record, NAME, lambda: answers(probe), READY_MS)


def webhook() -> dict[str, Any]:
    place = {"name": NAME, "namespace": NAMESPACE, "path": f"/validate-kubeflow-org-v1-{KIND}", "port": WEBHOOK_PORT}
    rule = {
        "apiGroups": ["kubeflow.org"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": [f"{KIND}s"],
    }
    one = {
        "name": f"validator.{KIND}.training-operator.kubeflow.org",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": place},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "rules": [rule],
    }
    kind = "ValidatingWebhookConfiguration"
    return {**_object("admissionregistration.k8s.io/v1", kind, WEBHOOK), "webhooks": [one]}


def _object(version: str, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
    place = {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **place}}
