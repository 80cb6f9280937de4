"""Who is who in a testbed: its authority, its certificates, its tokens, a kubeconfig for each.

Place in the flow: up ─▶ **credentials** ─files─▶ API server, kubelets and everybody who asks them. They are made anew
with every testbed and go with it. Nothing is anonymous: what works here works under the rules of a real cluster.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.platform.files import write_private
from gpuyard.service.certificates import Authority
from gpuyard.testbed.record import Record

API_NAMES: Final = (
    *("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"),
)
KUBELET_CLIENT: Final = "kube-apiserver"
"""As whom the API server asks a kubelet for logs; `objects.py` allows it to."""
CONTEXT: Final = "gpuyard-testbed"


class Identity(msgspec.Struct, frozen=True):
    """A user the API server knows by a token."""

    user: str
    groups: tuple[str, ...] = ()


ADMIN: Final = Identity("admin", ("system:masters",))
CONTROLLER_MANAGER: Final = Identity("system:kube-controller-manager")
SCHEDULER: Final = Identity("system:kube-scheduler")


def node_identity(node: str) -> Identity:
    return Identity(f"system:node:{node}", ("system:nodes",))


def make(record: Record) -> None:
    """Every key, certificate, token and kubeconfig of a testbed, in its folder."""
    pki = pki_folder(record)
    authority = Authority.in_folder(pki, f"testbed {record.name}")
    addresses = record.addresses
    server = authority.server((*API_NAMES, str(addresses.api), str(addresses.control)))
    client = authority.machine_with_key(KUBELET_CLIENT)
    accounts = authority.machine_with_key("service-accounts")
    for name, content in (
        ("apiserver.pem", server.certificate),
        ("apiserver.key", server.key),
        ("kubelet-client.pem", client.certificate),
        ("kubelet-client.key", client.key),
        # The API server reads the public part of the key from a certificate.
        ("service-accounts.pem", accounts.certificate),
        ("service-accounts.key", accounts.key),
    ):
        write_private(pki / name, content, keep=False)
    _make_kubeconfigs(record, authority.pem.decode())


def _make_kubeconfigs(record: Record, authority: str) -> None:
    places = {
        record.kubeconfig: ADMIN,
        record.machine_folder("control") / "controller-manager.kubeconfig": CONTROLLER_MANAGER,
        record.machine_folder("control") / "scheduler.kubeconfig": SCHEDULER,
    }
    for node in record.node_names():
        places[record.machine_folder(node) / "kubeconfig"] = node_identity(node)
    lines = []
    for path, identity in places.items():
        token = secrets.token_hex(20)
        lines.append(token_line(token, identity))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, kubeconfig(server_url(record), authority, identity, token).encode(), keep=False)
        if identity == ADMIN:
            write_private(pki_folder(record) / "admin.token", token.encode(), keep=False)
    write_private(pki_folder(record) / "tokens.csv", "".join(lines).encode(), keep=False)


def pki_folder(record: Record) -> Path:
    return record.folder / "pki"


def server_url(record: Record) -> str:
    return f"https://{record.addresses.api}"


def token_line(token: str, identity: Identity) -> str:
    groups = f',"{",".join(identity.groups)}"' if identity.groups else ""
    return f"{token},{identity.user},{identity.user}{groups}\n"


def kubeconfig(url: str, authority: str, identity: Identity, token: str) -> str:
    """As JSON, which is YAML too."""
    from base64 import b64encode

    cluster = {"server": url, "certificate-authority-data": b64encode(authority.encode()).decode()}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": cluster}],
        "users": [{"name": identity.user, "user": {"token": token}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": identity.user}}],
        "current-context": CONTEXT,
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"
