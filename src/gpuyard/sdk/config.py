"""Which server, which team, which token: settings from all the places that may say so, each with its origin.

Place in the flow: flags, environment, files ─**config**─Settings─▶ make_client. The highest place that says something
wins: flags, environment, ./.gpuyard.yaml (found upward), the user's file, the machine's file, the server of this
machine. A context counts where it is chosen.
A context is a server, or a Kubernetes cluster whose questions are answered from its API server.
Invariants: a token is only ever sent to the server it was kept for; no file that comes with somebody's project can name
a server, a cluster or a token; of a server and a cluster only the nearer holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from gpuyard.errors import InputError, NotSignedInError, UnreachableError, Where
from gpuyard.files.suggest import did_you_mean
from gpuyard.platform.home import ADMIN_TOKEN_FILE, SERVER_FILE, gpuyard_home

if TYPE_CHECKING:
    from gpuyard.sdk.client import Client

PROJECT_FILE: Final = ".gpuyard.yaml"
MACHINE_FILE: Final = Path("/etc/gpuyard/config.toml")
MAX_CONFIG_BYTES: Final = 1 << 20
MAX_FOLDERS_UP: Final = 64

VARIABLES: Final = {
    "url": "GPUYARD_URL",
    "team": "GPUYARD_TEAM",
    "context": "GPUYARD_CONTEXT",
    "output": "GPUYARD_OUTPUT",
    "token": "GPUYARD_TOKEN",
    "token_file": "GPUYARD_TOKEN_FILE",
}
CONFIG_VARIABLE: Final = "GPUYARD_CONFIG"
CLUSTER: Final = ("kubernetes", "kubeconfig", "kube_context", "namespace", "system_namespace")
"""What is said of a Kubernetes cluster."""
SHOWN: Final = ("context", "url", *CLUSTER, "team", "ca", "token", "token_file", "output")
YES: Final = "yes"
ANSWERED: Final = "explain, what-if, team ls, team tree, gpu ls, node ls, doctor"
"""The questions a Kubernetes cluster can be asked."""


class ContextEntry(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A server and how to speak to it, or a Kubernetes cluster and how to reach it."""

    url: str = ""
    team: str = ""
    ca: str = ""
    token_file: str = ""
    kubernetes: bool = False
    kubeconfig: str = ""
    """Empty: as kubectl finds it."""
    kube_context: str = ""
    """Which context of that file; empty: its current one."""
    namespace: str = ""
    """Where pods are looked for; empty: the one of that context."""
    system_namespace: str = ""
    """Where the scheduler's own objects are."""

    @property
    def on_kubernetes(self) -> bool:
        return self.kubernetes or bool(self.kubeconfig or self.kube_context)

    def __str__(self) -> str:
        if not self.on_kubernetes:
            return self.url
        named = f"context {self.kube_context}" if self.kube_context else "the current context"
        return f"Kubernetes, {named} of {self.kubeconfig or 'your kubeconfig'}"


class ConfigFile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A config.toml."""

    context: str = ""
    """The one in use."""
    team: str = ""
    output: str = ""
    contexts: dict[str, ContextEntry] = {}


class ProjectFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A .gpuyard.yaml: it may choose among what the user has, and no more."""

    context: str = ""
    team: str = ""
    output: str = ""


class Flags(msgspec.Struct, frozen=True):
    """What was said on the command line."""

    context: str = ""
    url: str = ""
    team: str = ""
    token_file: str = ""
    output: str = ""
    kubernetes: str = ""
    """YES: a Kubernetes cluster is asked."""
    kubeconfig: str = ""
    kube_context: str = ""
    namespace: str = ""
    system_namespace: str = ""


class Setting(msgspec.Struct, frozen=True):
    """A value, and who says so."""

    value: str
    origin: str


class Settings(msgspec.Struct, frozen=True):
    """What holds. Names that nobody has set are missing."""

    values: dict[str, Setting]
    contexts: dict[str, ContextEntry]

    def get(self, name: str) -> str:
        found = self.values.get(name)
        return found.value if found else ""

    @property
    def url(self) -> str:
        """The server's address; an error that says what to do where there is none."""
        if self.on_kubernetes:
            what = f"this asks a server, and {self._chosen_by()} chooses a Kubernetes cluster"
            raise InputError(what, fix=f"from a cluster: {ANSWERED}; a server: --url URL, or --context of one")
        if not self.get("url"):
            fix = "start one here with: gpuyard up; or sign in to one elsewhere: gpuyard login URL"
            raise UnreachableError("no server runs on this machine, and none is named", fix=fix)
        return self.get("url")

    @property
    def on_kubernetes(self) -> bool:
        """Whether a Kubernetes cluster is to be asked, and no server."""
        return self.get("kubernetes") == YES

    def _chosen_by(self) -> str:
        return self.values["kubernetes"].origin

    def secret(self) -> str:
        """The token; empty where there is none."""
        return self.get("token") or (read_token(Path(self.get("token_file"))) if self.get("token_file") else "")


class _Layer(msgspec.Struct, frozen=True):
    """What one place says."""

    values: dict[str, str]
    origin: str
    origins: dict[str, str] = {}


# ------------------------------------------------------------------------------------------------------------ settings


def resolve(flags: Flags = Flags(), environment: Mapping[str, str] = os.environ) -> Settings:  # noqa: B008 - frozen
    """What holds here and now."""
    machine = read_config(MACHINE_FILE)
    user_path = user_config_path(environment)
    user = read_config(user_path)
    contexts = {**machine.contexts, **user.contexts}
    layers = [
        _Layer({name: getattr(flags, name) for name in Flags.__struct_fields__}, "a flag"),
        _environment(environment),
        _project(),
        _Layer({"context": user.context, "team": user.team, "output": user.output}, str(user_path)),
        _Layer({"context": machine.context, "team": machine.team, "output": machine.output}, str(MACHINE_FILE)),
        _local(),
    ]
    return Settings(_merged(list(_with_context(layers, contexts))), contexts)


def _environment(environment: Mapping[str, str]) -> _Layer:
    values = {name: environment.get(variable, "").strip() for name, variable in VARIABLES.items()}
    return _Layer(values, "the environment", VARIABLES)


def _with_context(layers: list[_Layer], contexts: dict[str, ContextEntry]) -> Iterator[_Layer]:
    """The layers, and behind the one that chooses a context what that context says."""
    chosen = ""
    for layer in layers:
        yield layer
        name = layer.values.get("context", "")
        if name and not chosen:
            chosen = name
            yield _Layer(_of_context(name, contexts, layer), f"context {name}")


def _of_context(name: str, contexts: dict[str, ContextEntry], layer: _Layer) -> dict[str, str]:
    if name not in contexts:
        known = f"contexts: {', '.join(contexts)}" if contexts else "there is none yet"
        raise InputError(
            f'there is no context "{name}"{did_you_mean(name, contexts)} ({_origin(layer, "context")} chooses it)',
            fix=f"{known}; make one: gpuyard login URL --context {name}",
        )
    said = msgspec.structs.asdict(contexts[name])
    return {**said, "kubernetes": YES if contexts[name].on_kubernetes else ""}


def _merged(layers: list[_Layer]) -> dict[str, Setting]:
    """The highest word about everything. What is about a server comes only from who names that server."""
    values: dict[str, Setting] = {}
    known = ""
    for layer in layers:
        named = layer.values.get("url") or layer.values.get("kubernetes", "")
        other_server = bool(named) and bool(known) and named != known
        known = known or named
        has_credential = "token" in values or "token_file" in values
        elsewhere = _of_another_cluster(values)
        for name, value in layer.values.items():
            taken = name in values or name in elsewhere or (name in ("token", "token_file") and has_credential)
            if value and not taken and not other_server:
                values[name] = Setting(value, _origin(layer, name))
                has_credential = has_credential or name in ("token", "token_file")
    return values


def _of_another_cluster(values: Mapping[str, Setting]) -> tuple[str, ...]:
    """What places below cannot know of a Kubernetes cluster that a nearer one has named."""
    if "kubeconfig" in values:
        return ("kube_context", "namespace", "system_namespace")
    return ("namespace", "system_namespace") if "kube_context" in values else ()


def _origin(layer: _Layer, name: str) -> str:
    return layer.origins.get(name, layer.origin)


def _local() -> _Layer:
    """The server of this machine, if one runs."""
    home = gpuyard_home()
    path = home / SERVER_FILE
    try:
        told = msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return _Layer({}, str(path))
    except (msgspec.DecodeError, OSError) as error:
        raise InputError(f"cannot be used: {error}", where=Where(str(path)), fix="start the server again") from None
    token = str(home / ADMIN_TOKEN_FILE)
    return _Layer({"url": told.get("url", ""), "ca": told.get("ca", ""), "token_file": token}, str(path))


# --------------------------------------------------------------------------------------------------------------- files


def user_config_path(environment: Mapping[str, str] = os.environ) -> Path:
    """The user's file; it need not exist."""
    chosen = environment.get(CONFIG_VARIABLE, "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    folder = environment.get("XDG_CONFIG_HOME", "")
    base = Path(folder) if folder.startswith("/") else Path.home() / ".config"
    return base / "gpuyard" / "config.toml"


def read_config(path: Path) -> ConfigFile:
    """A config.toml; an empty one where there is none."""
    text = _read(path)
    if text is None:
        return ConfigFile()
    import tomllib

    try:
        file = msgspec.convert(tomllib.loads(text), ConfigFile)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        fix = (
            "it holds context, team, output, and [contexts.NAME] with url, team, ca, token_file, or with kubernetes, "
            "kubeconfig, kube_context, namespace, system_namespace (docs/cli.md)"
        )
        raise InputError(str(error), where=Where(str(path)), fix=fix) from None
    for name, entry in file.contexts.items():
        refuse_both(name, entry, Where(str(path)))
    contexts = {name: _with_paths(entry, path.parent) for name, entry in file.contexts.items()}
    return msgspec.structs.replace(file, contexts=contexts)


def refuse_both(name: str, entry: ContextEntry, where: Where | None = None) -> None:
    """What is asked must be certain."""
    if entry.url and entry.on_kubernetes:
        fix = "take one of the two away, or make two contexts of it"
        raise InputError(f'context "{name}" is a server and a Kubernetes cluster at once', where=where, fix=fix)


def _with_paths(entry: ContextEntry, folder: Path) -> ContextEntry:
    """Paths in a file count from where it lies."""
    paths = {name: _path(getattr(entry, name), folder) for name in ("ca", "token_file", "kubeconfig")}
    return msgspec.structs.replace(entry, **paths)


def _path(text: str, folder: Path) -> str:
    return str(folder / Path(text).expanduser()) if text else ""


def _project() -> _Layer:
    path = _project_path()
    text = _read(path) if path else None
    if path is None or text is None:
        return _Layer({}, PROJECT_FILE)
    try:
        file = msgspec.yaml.decode(text, type=ProjectFile | None, strict=True) or ProjectFile()
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        fix = "it may hold context, team and output; servers and tokens belong in a context: gpuyard login URL"
        raise InputError(str(error), where=Where(str(path)), fix=fix) from None
    return _Layer(dict(msgspec.structs.asdict(file)), str(path))


def _project_path() -> Path | None:
    try:
        here = Path.cwd()
    except OSError:
        return None
    folders = [here, *here.parents][:MAX_FOLDERS_UP]
    return next((folder / PROJECT_FILE for folder in folders if (folder / PROJECT_FILE).is_file()), None)


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=Where(str(path))) from None
    if len(content) > MAX_CONFIG_BYTES:
        raise InputError("is far too large for a file of settings", where=Where(str(path)))
    return content.decode(errors="replace")


def read_token(path: Path) -> str:
    """The token in a file."""
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            return file.read(MAX_CONFIG_BYTES).strip()
    except FileNotFoundError:
        fix = "sign in: gpuyard login"
        raise NotSignedInError(f"there is no token: {path} does not exist", fix=fix) from None
    except OSError as error:
        fix = "it may be another user's (root's: use sudo); or get a token of your own and: gpuyard login"
        raise NotSignedInError(f"the token {path} cannot be read: {error.strerror}", fix=fix) from None


# ------------------------------------------------------------------------------------------------------------- writing


def write_config(path: Path, file: ConfigFile) -> None:
    """The whole file anew, or not at all."""
    save_private(path, _toml(file))


def _toml(file: ConfigFile) -> str:
    lines = [
        f"{name} = {_quoted(getattr(file, name))}" for name in ("context", "team", "output") if getattr(file, name)
    ]
    for name, entry in file.contexts.items():
        lines += ["", f"[contexts.{_quoted(name)}]"]
        lines += [f"{key} = {_quoted(value)}" for key, value in msgspec.structs.asdict(entry).items() if value]
    return "\n".join(lines).lstrip("\n") + "\n"


def _quoted(value: str | bool) -> str:
    # What JSON escapes, TOML reads the same way.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def save_private(path: Path, text: str) -> None:
    """A file only its owner can read; an InputError if it cannot be."""
    from gpuyard.platform.files import write_private

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, text.encode())
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=Where(str(path))) from None


# ------------------------------------------------------------------------------------------------------------ a client


def make_client(settings: Settings, *, timeout_ms: int | None = None) -> Client:
    """A client for the server the settings name."""
    from gpuyard.sdk.client import Client
    from gpuyard.sdk.transport import TIMEOUT_MS

    url = settings.url
    return Client(url, settings.secret(), ca=settings.get("ca"), timeout_ms=timeout_ms or TIMEOUT_MS)
