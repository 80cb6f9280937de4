"""Operators of others, beside the API server instead of in pods; their webhooks work.

Place in the flow: extras ─Operator─▶ **operators** ─▶ the API server: what the operator is published with but for its
Deployment, then the operator itself. It writes the certificate of its webhooks into a Secret, which in a pod would be
mounted where it looks for it; here it is written there.
Invariant: nothing is made up: kinds, webhooks and names are those of its own installation.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from gpuyard.errors import KubeTestbedError
from gpuyard.platform.commands import run
from gpuyard.platform.dialling import dial
from gpuyard.platform.files import write_private
from gpuyard.testbed.api import Api, wait_until
from gpuyard.testbed.control_plane import Component, added_program
from gpuyard.testbed.dns import answers
from gpuyard.testbed.golang import GoModule
from gpuyard.testbed.machine import wait_for_component
from gpuyard.testbed.record import CONTROL, Record

CERTIFICATES: Final = "k8s-webhook-server/serving-certs"
"""Below /tmp: some have no option for it."""
READY_MS: Final = 120_000
RENDER_S: Final = 60.0
DIAL_S: Final = 2.0
FOLDER: Final = "{folder}"
"""In what an operator is told: the folder with its files."""

_ALONE: Final = 'mount --bind "$1" "$2" && mount --bind "$3" /tmp && shift 3 && exec "$@"'
_DEFINITION: Final = "CustomResourceDefinition"
_HOOKS: Final = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
_PATHS: Final = {
    "Namespace": "/api/v1/namespaces/{name}",
    _DEFINITION: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}",
    "Secret": "/api/v1/namespaces/{namespace}/secrets/{name}",
    "Service": "/api/v1/namespaces/{namespace}/services/{name}",
    **{kind: f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}s/{{name}}" for kind in _HOOKS},
}
"""What of an installation is used, in the order it is made. Roles are left out: it comes as the admin."""


class Webhooks(msgspec.Struct, frozen=True):
    """Where its webhooks listen, and where it leaves the certificate for them."""

    port: int
    namespace: str
    secret: str


class Operator(msgspec.Struct, frozen=True):
    """One operator. All of them share the network of the control plane, so each has ports of its own."""

    module: GoModule
    makes: str
    """The kinds of objects it is there for."""
    installed_by: str
    """The kustomization it is published with, below the folder that is kept of its module."""
    probe: str
    """Port and path that answer once it works."""
    words: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    """Name and content of what it reads."""
    variables: tuple[tuple[str, str], ...] = ()
    webhooks: Webhooks | None = None
    only: tuple[str, ...] = ()
    """The resources it works on, where its installation has more; none named: all."""

    @property
    def name(self) -> str:
        return self.module.name

    def component(self, record: Record) -> Component:
        """In a mount namespace of its own, because certificates lie in /tmp."""
        folder = self.folder(record)
        # Bound to another place first: it may itself lie in /tmp, which is hidden then.
        program = folder / self.name
        alone = ("unshare", "--mount", "sh", "-c", _ALONE, "sh")
        binds = (str(added_program(record, self.name)), str(program), str(folder / "tmp"))
        told = (word.replace(FOLDER, str(folder)) for word in self.words)
        variables = (("KUBECONFIG", str(record.kubeconfig)), *self.variables)
        return Component(self.name, (*alone, *binds, str(program), *told), variables)

    def folder(self, record: Record) -> Path:
        return record.machine_folder(CONTROL) / self.name

    def lay_out(self, record: Record) -> None:
        """What it finds when it starts."""
        folder = self.folder(record)
        (folder / "tmp" / CERTIFICATES).mkdir(parents=True, exist_ok=True)
        (folder / self.name).touch()
        for name, content in self.files:
            (folder / name).write_text(content, encoding="utf-8")

    def introduce(self, api: Api, record: Record) -> None:
        """What must be there before it starts: all it is published with, but for what runs it."""
        kinds = list(_PATHS)
        wanted = [one for one in self.installation(record) if one["kind"] in _PATHS]
        for one in sorted(wanted, key=lambda one: kinds.index(one["kind"])):
            api.apply(_path(one), one)
        for one in wanted:
            if one["kind"] == _DEFINITION:
                what = f"the kind {one['spec']['names']['kind']}"
                wait_until(partial(api.answers, _collection(one)), what, timeout_ms=READY_MS)

    def installation(self, record: Record) -> Iterator[dict[str, Any]]:
        """As it is published, with webhooks that are found outside of the cluster."""
        (kept,) = self.module.kept
        place, output = record.program(kept.name) / self.installed_by, self.folder(record) / "installation.yaml"
        command = [str(record.program("kubectl")), "kustomize", str(place), "--output", str(output)]
        done = run(command, timeout_s=RENDER_S)
        if done.code:
            raise KubeTestbedError(f"the installation of {self.name} cannot be read: {done.output.strip()}")
        for one in yaml.safe_load_all(output.read_text(encoding="utf-8")):
            if one["kind"] == "Service":
                # In a cluster they lead to its pods.
                one["spec"] = {"type": "ExternalName", "externalName": "localhost"}
            if one["kind"] in _HOOKS:
                one["webhooks"] = [self._from_outside(each) for each in one["webhooks"] if self._works_on(each)]
            if one["kind"] != _DEFINITION or not self.only or one["spec"]["names"]["plural"] in self.only:
                yield one

    def _works_on(self, webhook: dict[str, Any]) -> bool:
        resources = {resource for rule in webhook["rules"] for resource in rule["resources"]}
        return not self.only or bool(resources & set(self.only))

    def _from_outside(self, webhook: dict[str, Any]) -> dict[str, Any]:
        assert self.webhooks is not None, f"{self.name} has webhooks"
        webhook["clientConfig"]["service"]["port"] = self.webhooks.port
        return webhook

    def wait_ready(self, api: Api, record: Record) -> None:
        """Hand its certificate over, and wait until it works and its webhooks listen."""
        if self.webhooks is not None:
            self._hand_over(self.webhooks, api, record)
        control = str(record.addresses.control)
        wait_for_component(record, self.name, lambda: answers(f"http://{control}:{self.probe}"), READY_MS)
        if self.webhooks is not None:
            port = self.webhooks.port
            wait_for_component(record, self.name, lambda: _listens(control, port), READY_MS)

    def _hand_over(self, webhooks: Webhooks, api: Api, record: Record) -> None:
        path = f"/api/v1/namespaces/{webhooks.namespace}/secrets/{webhooks.secret}"
        wait_for_component(record, self.name, lambda: "tls.key" in api.get(path).get("data", {}), READY_MS)
        content = api.get(path)["data"]
        for name in ("tls.key", "tls.crt"):
            write_private(self.folder(record) / "tmp" / CERTIFICATES / name, b64decode(content[name]), keep=False)


def _path(one: dict[str, Any]) -> str:
    metadata = one["metadata"]
    return _PATHS[one["kind"]].format(name=metadata["name"], namespace=metadata.get("namespace", ""))


def _collection(definition: dict[str, Any]) -> str:
    """Where objects of a new kind are listed."""
    spec = definition["spec"]
    version = next(one["name"] for one in spec["versions"] if one["storage"])
    return f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"


def _listens(address: str, port: int) -> bool:
    try:
        dial(address, port, connect_timeout_s=DIAL_S, silence_timeout_s=DIAL_S).close()
    except OSError:
        return False
    return True
