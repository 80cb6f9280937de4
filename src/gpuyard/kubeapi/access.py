"""How to reach an API server, and as whom: a kubeconfig file, or the service account of a pod.

Place in the flow: file or pod ─**access**─▶ Access ─▶ client. Invariants: what a file lacks or says wrong is one
InputError with the file's name; a secret is in no error and no representation.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import yaml

from gpuyard.errors import InputError, Where
from gpuyard.files.suggest import did_you_mean

KUBECONFIG: Final = "KUBECONFIG"
DEFAULT_FILE: Final = "~/.kube/config"
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its service account."""
HOST: Final = "KUBERNETES_SERVICE_HOST"
PORT: Final = "KUBERNETES_SERVICE_PORT"
DEFAULT_NAMESPACE: Final = "default"
MAX_FILE_BYTES: Final = 4 << 20

_ADDRESS: Final = re.compile(r"https?://[^/\s?#]+(/[^\s?#]*)?")


class Program(msgspec.Struct, frozen=True):
    """A program that prints a token, as cloud providers' kubeconfigs have it."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    version: str

    def __repr__(self) -> str:
        return f"Program({self.command[0]!r})"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """One API server and one identity there; of the credentials the first that is set counts."""

    server: str
    namespace: str = DEFAULT_NAMESPACE
    authority_pem: bytes = b""
    """Who signed the server's certificate; empty: those this machine trusts."""
    insecure: bool = False
    server_name: str = ""
    token_file: Path | None = None
    token: str = ""
    program: Program | None = None
    certificate_pem: bytes = b""
    key_pem: bytes = b""

    def __repr__(self) -> str:
        return f"Access({self.server!r}, {self.namespace!r})"


# ------------------------------------------------------------------------------------------------------- the format


class _ClusterSpec(msgspec.Struct, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""


class _Variable(msgspec.Struct):
    name: str
    value: str = ""


class _ExecSpec(msgspec.Struct):
    command: str
    api_version: str = msgspec.field(name="apiVersion", default="")
    args: list[str] | None = None
    env: list[_Variable] | None = None


class _UserSpec(msgspec.Struct, rename="kebab"):
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: _ExecSpec | None = None
    auth_provider: dict[str, Any] | None = None
    username: str = ""


class _ContextSpec(msgspec.Struct):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: _ClusterSpec


class _NamedUser(msgspec.Struct):
    name: str
    user: _UserSpec | None = None


class _NamedContext(msgspec.Struct):
    name: str
    context: _ContextSpec


class _FileSpec(msgspec.Struct, rename="kebab"):
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str = ""


# ----------------------------------------------------------------------------------------------------------- finding


def find_access(kubeconfig: Path | None = None, context: str | None = None, account: Path = ACCOUNT) -> Access:
    """The file that is named, the one of KUBECONFIG, the pod's own account, or the file everybody has."""
    named = kubeconfig or (Path(os.environ[KUBECONFIG]) if os.environ.get(KUBECONFIG) else None)
    if named is not None:
        return read_kubeconfig(named.expanduser(), context)
    if os.environ.get(HOST) and (account / "token").exists():
        return account_access(account, os.environ)
    usual = Path(DEFAULT_FILE).expanduser()
    if not usual.exists():
        fix = f"name a kubeconfig: --kubeconfig FILE or {KUBECONFIG}; in a pod, let it have a service account"
        raise InputError(f"no way to a Kubernetes API server is known: there is no {DEFAULT_FILE}", fix=fix)
    return read_kubeconfig(usual, context)


def account_access(account: Path, environment: Mapping[str, str]) -> Access:
    """What the kubelet gives every pod; the token is read again from its file, because it is renewed there."""
    host, port = environment[HOST], environment.get(PORT, "443")
    namespace = account / "namespace"
    return Access(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.exists() else DEFAULT_NAMESPACE,
        authority_pem=_file(account / "ca.crt", account),
        token_file=account / "token",
    )


def read_kubeconfig(path: Path, context: str | None = None) -> Access:
    """One context of a kubeconfig file; its current one unless another is named."""
    spec = _parsed(path)
    name = context or spec.current_context
    if not name:
        raise _wrong(path, "no current-context is set", "name one: --context NAME, or kubectl config use-context NAME")
    contexts = {each.name: each.context for each in spec.contexts or ()}
    clusters = {each.name: each.cluster for each in spec.clusters or ()}
    users = {each.name: each.user or _UserSpec() for each in spec.users or ()}
    chosen = contexts.get(name) or _missing(path, "context", name, contexts)
    cluster = clusters.get(chosen.cluster) or _missing(path, "cluster", chosen.cluster, clusters)
    user = (users.get(chosen.user) or _missing(path, "user", chosen.user, users)) if chosen.user else _UserSpec()
    return _access(path, cluster, user, chosen.namespace)


def _parsed(path: Path) -> _FileSpec:
    content = _file(path, path)
    if len(content) > MAX_FILE_BYTES:
        raise _wrong(path, f"is larger than {MAX_FILE_BYTES >> 20} MiB", "name a kubeconfig file")
    try:
        return msgspec.convert(yaml.safe_load(content), _FileSpec)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = Where(str(path), mark.line + 1, mark.column + 1) if mark else Where(str(path))
        raise InputError("is not YAML", where=where, fix="name a kubeconfig file") from None
    except msgspec.ValidationError as error:
        raise _wrong(path, f"is no kubeconfig: {error}", "kubectl config view shows how one looks") from None


def _access(path: Path, cluster: _ClusterSpec, user: _UserSpec, namespace: str) -> Access:
    if not _ADDRESS.fullmatch(cluster.server):
        raise _wrong(path, f'"{cluster.server}" is no address of an API server', "write it as https://host:port")
    if user.auth_provider is not None or user.username:
        what = "the user's kind of credential is one Kubernetes no longer has"
        raise _wrong(path, what, "use a token, a client certificate or an exec program")
    return Access(
        server=cluster.server.rstrip("/"),
        namespace=namespace or DEFAULT_NAMESPACE,
        authority_pem=_held(path, cluster.certificate_authority_data, cluster.certificate_authority),
        insecure=cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name,
        token_file=path.parent / user.token_file if user.token_file else None,
        token=user.token,
        program=_program(user.exec),
        certificate_pem=_held(path, user.client_certificate_data, user.client_certificate),
        key_pem=_held(path, user.client_key_data, user.client_key),
    )


def _program(spec: _ExecSpec | None) -> Program | None:
    if spec is None:
        return None
    variables = tuple((each.name, each.value) for each in spec.env or ())
    return Program((spec.command, *(spec.args or ())), variables, spec.api_version)


def _held(path: Path, data: str, file: str) -> bytes:
    """What stands in the file itself, or in another one beside it."""
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise _wrong(path, "a certificate or key in it is not base64", "copy the file again") from None
    return _file(path.parent / file, path) if file else b""


def _file(path: Path, named_by: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        why = error.strerror or str(error)
        raise _wrong(named_by, f"{path} cannot be read: {why}", "name another with --kubeconfig") from None


def _missing(path: Path, kind: str, name: str, known: Mapping[str, object]) -> NoReturn:
    fix = f"there are: {', '.join(known)}" if known else "there is none"
    raise _wrong(path, f'has no {kind} "{name}"{did_you_mean(name, list(known))}', fix)


def _wrong(path: Path, what: str, fix: str) -> InputError:
    return InputError(what, where=Where(str(path)), fix=fix)
