"""How to reach an API server, and as whom: kubeconfig files, or the service account of a pod.

Place in the flow: files or pod ─**access**─▶ Access ─▶ client. Invariants: what a file lacks, says wrong or asks for in
vain is one InputError with the file's name; a secret is in no error and no representation.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeVar

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

Entry = TypeVar("Entry")

_FOR_PROGRAMS: Final = "client.authentication.k8s.io/exec"
"""The extension of a cluster that is meant for programs which give tokens."""
_ADDRESS: Final = re.compile(r"https?://[^/\s?#]+(/[^\s?#]*)?")


class Program(msgspec.Struct, frozen=True):
    """A program that prints a token, as cloud providers' kubeconfigs have it."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    version: str
    about_cluster: dict[str, Any] | None = None
    """What it is told of the cluster, where it wants to be."""

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
    proxy_url: str = ""
    extensions: list[_Extension] | None = None


class _Extension(msgspec.Struct):
    name: str
    extension: Any = None


class _Variable(msgspec.Struct):
    name: str
    value: str = ""


class _ExecSpec(msgspec.Struct):
    command: str
    api_version: str = msgspec.field(name="apiVersion", default="")
    args: list[str] | None = None
    env: list[_Variable] | None = None
    interactive_mode: str = msgspec.field(name="interactiveMode", default="")
    provide_cluster_info: bool = msgspec.field(name="provideClusterInfo", default=False)


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
    password: str = ""
    as_: str = msgspec.field(name="as", default="")
    as_uid: str = ""
    as_groups: list[str] | None = None
    as_user_extra: dict[str, Any] | None = None


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


class _Source(NamedTuple, Generic[Entry]):
    """Something a file says, and which file: what it names is looked for beside it."""

    path: Path
    entry: Entry


class _Merged:
    """Several files as one: of each name the first file that has it counts, and so does its current context."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.path = files[0]
        """Of which is told what none of them has."""
        self.current_context = ""
        self.contexts: dict[str, _Source[_ContextSpec]] = {}
        self.clusters: dict[str, _Source[_ClusterSpec]] = {}
        self.users: dict[str, _Source[_UserSpec]] = {}
        for path in files:
            self._add(path, _parsed(path))

    def _add(self, path: Path, spec: _FileSpec) -> None:
        if spec.current_context and not self.current_context:
            self.path, self.current_context = path, spec.current_context
        self.contexts = {each.name: _Source(path, each.context) for each in spec.contexts or ()} | self.contexts
        self.clusters = {each.name: _Source(path, each.cluster) for each in spec.clusters or ()} | self.clusters
        users = {each.name: _Source(path, each.user or _UserSpec()) for each in spec.users or ()}
        self.users = users | self.users


# ----------------------------------------------------------------------------------------------------------- finding


def find_access(kubeconfig: Path | None = None, context: str | None = None, account: Path = ACCOUNT) -> Access:
    """The file that is named, those of KUBECONFIG, the pod's own account, or the file everybody has."""
    if kubeconfig is not None:
        return read_kubeconfig(kubeconfig.expanduser(), context)
    listed = [Path(name).expanduser() for name in os.environ.get(KUBECONFIG, "").split(os.pathsep) if name]
    if listed:
        return read_kubeconfigs(listed, context)
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
    return _chosen(_Merged([path]), context)


def read_kubeconfigs(paths: Sequence[Path], context: str | None = None) -> Access:
    """The same of several files, merged as kubectl does it; those that are not there are passed over."""
    there = [path for path in dict.fromkeys(paths) if path.exists()]
    if not there:
        names = ", ".join(map(str, paths))
        raise InputError(f"{KUBECONFIG} names no file that is there: {names}", fix="correct it, or unset it")
    return _chosen(_Merged(there), context)


def _chosen(files: _Merged, context: str | None) -> Access:
    path, name = files.path, context or files.current_context
    if not name:
        raise _wrong(path, "no current-context is set", "name one: --context NAME, or kubectl config use-context NAME")
    at, chosen = files.contexts.get(name) or _missing(path, "context", name, files.contexts)
    cluster = files.clusters.get(chosen.cluster) or _missing(at, "cluster", chosen.cluster, files.clusters)
    user = _Source(at, _UserSpec())
    if chosen.user:
        user = files.users.get(chosen.user) or _missing(at, "user", chosen.user, files.users)
    return _access(cluster, user, chosen.namespace)


def _parsed(path: Path) -> _FileSpec:
    content = _file(path, path)
    if len(content) > MAX_FILE_BYTES:
        raise _wrong(path, f"is larger than {MAX_FILE_BYTES >> 20} MiB", "name a kubeconfig file")
    try:
        return msgspec.convert(yaml.safe_load(content) or {}, _FileSpec)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = Where(str(path), mark.line + 1, mark.column + 1) if mark else Where(str(path))
        raise InputError("is not YAML", where=where, fix="name a kubeconfig file") from None
    except msgspec.ValidationError as error:
        raise _wrong(path, f"is no kubeconfig: {error}", "kubectl config view shows how one looks") from None


def _access(of_cluster: _Source[_ClusterSpec], of_user: _Source[_UserSpec], namespace: str) -> Access:
    path, cluster = of_cluster
    beside, user = of_user
    _check_cluster(path, cluster)
    _check_user(beside, user)
    authority = _held(path, cluster.certificate_authority_data, cluster.certificate_authority)
    return Access(
        server=cluster.server.rstrip("/"),
        namespace=namespace or DEFAULT_NAMESPACE,
        authority_pem=authority,
        insecure=cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name,
        token_file=beside.parent / user.token_file if user.token_file else None,
        token=user.token,
        program=_program(beside, user.exec, _about(cluster, authority)),
        certificate_pem=_held(beside, user.client_certificate_data, user.client_certificate),
        key_pem=_held(beside, user.client_key_data, user.client_key),
    )


def _check_cluster(path: Path, cluster: _ClusterSpec) -> None:
    if not _ADDRESS.fullmatch(cluster.server):
        raise _wrong(path, f'"{cluster.server}" is no address of an API server', "write it as https://host:port")
    if cluster.proxy_url:
        what = f"proxy-url is set for {cluster.server}, and gpuyard uses no proxy on the way to an API server"
        raise _wrong(path, what, "take it out if the server can be reached without, or run gpuyard where it can")
    if cluster.insecure_skip_tls_verify and (cluster.certificate_authority or cluster.certificate_authority_data):
        what = f"{cluster.server} has both insecure-skip-tls-verify and a certificate-authority"
        raise _wrong(path, what, "take one of them out; kubectl allows no more than one, either")


def _check_user(path: Path, user: _UserSpec) -> None:
    if user.auth_provider is not None or user.username or user.password:
        what = "the user's kind of credential is one Kubernetes no longer has"
        raise _wrong(path, what, "use a token, a client certificate or an exec program")
    if user.as_ or user.as_uid or user.as_groups or user.as_user_extra:
        what = "the user acts as somebody else (as, as-groups), which gpuyard does not"
        raise _wrong(path, what, "name a context whose user has the rights itself")
    has_certificate = bool(user.client_certificate or user.client_certificate_data)
    if has_certificate != bool(user.client_key or user.client_key_data):
        lacks, has = ("key", "certificate") if has_certificate else ("certificate", "key")
        raise _wrong(path, f"the user has a client-{has} and no client-{lacks}", "give both of them, or none")


def _program(path: Path, spec: _ExecSpec | None, about_cluster: dict[str, Any]) -> Program | None:
    if spec is None:
        return None
    if spec.interactive_mode == "Always":
        what = f"{spec.command} asks at a terminal (interactiveMode: Always), and here is none"
        raise _wrong(path, what, "use a program that needs nobody, or a token")
    # As kubectl has it: a path is meant from the file, a bare name from the PATH.
    command = str(path.parent / spec.command) if "/" in spec.command else spec.command
    variables = tuple((each.name, each.value) for each in spec.env or ())
    told = about_cluster if spec.provide_cluster_info else None
    return Program((command, *(spec.args or ())), variables, spec.api_version, told)


def _about(cluster: _ClusterSpec, authority_pem: bytes) -> dict[str, Any]:
    """What a program may ask to be told of the cluster."""
    config = [each.extension for each in cluster.extensions or () if each.name == _FOR_PROGRAMS]
    told = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": base64.b64encode(authority_pem).decode("ascii"),
        "config": config[0] if config else None,
    }
    return {key: value for key, value in told.items() if value}


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
