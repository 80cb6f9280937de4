"""The native faces, built on demand: libnvidia-ml.so.1 and nvidia-smi.

Place in the flow: native/*.c ─**build**─▶ the user's cache ─▶ LD_LIBRARY_PATH, PATH, or a container's mounts.
Invariant: what lies in the cache was built whole, from exactly these sources with exactly these flags; its directory is
named by their hash. The compiler is the machine's own (CC, gcc, cc, clang), else `ziglang` from the package registry.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.errors import FakeGpuError
from gpuyard.platform.commands import Finished, run

SOURCES: Final = Path(__file__).with_name("native")
LIBRARY: Final = "libnvidia-ml.so.1"
NVIDIA_SMI: Final = "nvidia-smi"
COMPILERS: Final = ("gcc", "cc", "clang", "musl-gcc")
COMPILE_S: Final = 300.0
INSTALL_S: Final = 600.0
SHOWN_LINES: Final = 12

COMMON_FLAGS: Final = (
    *("-std=gnu11", "-O2", "-Wall", "-Wextra", "-fno-strict-aliasing", "-fvisibility=hidden"),
    *("-fno-stack-protector", "-U_FORTIFY_SOURCE", "-s"),
)
# The library names no C library: it takes that of the program that loads it, whatever its version.
LIBRARY_FLAGS: Final = ("-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libnvidia-ml.so.1")
PROGRAM_FLAGS: Final = ("-static",)


class Target(msgspec.Struct, frozen=True):
    """One file to build: its name, the start of its sources' names, its flags."""

    name: str
    prefix: str
    flags: tuple[str, ...]

    def sources(self) -> list[Path]:
        return sorted([*SOURCES.glob(f"{self.prefix}*.c"), SOURCES / "view.c"])


THE_LIBRARY: Final = Target(LIBRARY, "nvml", LIBRARY_FLAGS)
THE_PROGRAM: Final = Target(NVIDIA_SMI, "smi", PROGRAM_FLAGS)


class Compiler(msgspec.Struct, frozen=True):
    """A command that compiles C, and what it needs beside the flags to build a program without a C library.

    One that could not be fetched carries the `problem` instead of being run.
    """

    command: tuple[str, ...]
    static_flags: tuple[str, ...] = ()
    problem: Finished | None = None


def library() -> Path:
    """The path of libnvidia-ml.so.1, built if need be. Its directory belongs on LD_LIBRARY_PATH."""
    return built(THE_LIBRARY)


def nvidia_smi() -> Path:
    """The path of the static nvidia-smi, built if need be. Its directory belongs on PATH."""
    return built(THE_PROGRAM)


def place_of(target: Target) -> Path:
    """Where it lies once it is built."""
    return cache_directory() / f"{target.name}-{fingerprint(target)}" / target.name


def built(target: Target) -> Path:
    path = place_of(target)
    if not path.exists():
        build(target, path)
    return path


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gpuyard" / "native"


def fingerprint(target: Target) -> str:
    """A name for what is built: the sources and headers, the flags, the machine, the compiler that was asked for."""
    hashed = hashlib.sha256()
    for source in sorted([*target.sources(), *SOURCES.glob("*.h")]):
        hashed.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    told = (*COMMON_FLAGS, *target.flags, platform.machine(), os.environ.get("CC", ""))
    hashed.update("\0".join(told).encode())
    return hashed.hexdigest()[:16]


def build(target: Target, path: Path) -> None:
    """Try each compiler in turn; the first that succeeds is enough, and only the whole file gets its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    failures: list[str] = []
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / target.name
        for compiler in compilers():
            done = compile_with(compiler, target, made)
            if done.code == 0:
                made.replace(path)
                return
            failures.append(failure_text(compiler, done))
    raise FakeGpuError(
        f"{target.name} could not be built; tried:\n" + "\n".join(failures or ["  no C compiler was found"]),
        fix="install gcc or clang, or name a compiler: CC=/path/to/cc; or: python -m pip install ziglang",
    )


def compile_with(compiler: Compiler, target: Target, made: Path) -> Finished:
    if compiler.problem:
        return compiler.problem
    static = compiler.static_flags if target.flags == PROGRAM_FLAGS else ()
    sources = [str(source) for source in target.sources()]
    command = [*compiler.command, *static, *COMMON_FLAGS, *target.flags, "-o", str(made), *sources]
    return run(command, timeout_s=COMPILE_S)


def failure_text(compiler: Compiler, done: Finished) -> str:
    lines = done.output.strip().splitlines()
    cut = [f"    ... {len(lines) - SHOWN_LINES} more lines"] if len(lines) > SHOWN_LINES else []
    said = [f"    {line}" for line in lines[:SHOWN_LINES]] + cut
    return "\n".join([f"  {shlex.join(compiler.command)} (exit code {done.code}):", *said])


def compilers() -> Iterator[Compiler]:
    """The compilers worth trying, best first. The last one is only fetched when all before it failed."""
    asked = os.environ.get("CC")
    if asked:
        yield Compiler(tuple(shlex.split(asked)))
        return
    yield from (Compiler((found,)) for name in COMPILERS if (found := shutil.which(name)))
    yield zig()


def zig() -> Compiler:
    """The compiler of the `ziglang` package, which brings a C library that links statically."""
    static = ("-target", f"{platform.machine()}-linux-musl")
    if importlib.util.find_spec("ziglang"):
        return Compiler((sys.executable, "-m", "ziglang", "cc"), static)
    place = cache_directory() / "ziglang"
    program = place / "ziglang" / "zig"
    if program.exists():
        return Compiler((str(program), "cc"), static)
    fetch = (sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place), "ziglang")
    done = run(fetch, timeout_s=INSTALL_S)
    return Compiler(fetch, problem=done) if done.code else Compiler((str(program), "cc"), static)
