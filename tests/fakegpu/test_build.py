"""Building the native faces: cached by content, exact when it fails, with a compiler from the registry if need be."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpuyard.errors import FakeGpuError
from gpuyard.fakegpu import build
from gpuyard.fakegpu.launch import build_native
from gpuyard.platform.commands import Finished


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gpuyard" / "native"


BUILDS = 'while [ "$1" != -o ]; do shift; done\necho built > "$2"'


def fake_compiler(place: Path, script: str) -> str:
    """A compiler that does what the script says; its last words are the output and the sources."""
    path = place / "fake-cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_what_was_built_is_not_built_again(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = tmp_path / "count"
    monkeypatch.setenv("CC", fake_compiler(tmp_path, f"echo again >> {count}\n{BUILDS}"))
    first, second = build.library(), build.library()
    assert first == second
    assert first.name == "libnvidia-ml.so.1"
    assert first.is_relative_to(empty_cache)
    assert count.read_text() == "again\n"
    assert build.nvidia_smi().name == "nvidia-smi"


def test_who_waits_for_a_build_is_told_so_first(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", fake_compiler(tmp_path, BUILDS))
    told: list[str] = []
    build_native(told.append)
    assert ["is being built" in line for line in told] == [True, False, True, False]
    told.clear()
    build_native(told.append)
    assert [line.split()[0] for line in told] == ["NVML", "nvidia-smi"]


def test_another_source_is_another_build(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "native"
    sources.mkdir()
    for source in build.SOURCES.iterdir():
        (sources / source.name).write_bytes(source.read_bytes())
    before = build.fingerprint(build.THE_LIBRARY)
    monkeypatch.setattr(build, "SOURCES", sources)
    assert build.fingerprint(build.THE_LIBRARY) == before
    (sources / "state.h").write_text("changed")
    assert build.fingerprint(build.THE_LIBRARY) != before


def test_a_build_that_fails_says_what_was_tried(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = fake_compiler(tmp_path, "echo 'view.c:1:1: error: no such luck'; exit 3")
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(FakeGpuError) as error:
        build.library()
    assert str(error.value) == (
        "libnvidia-ml.so.1 could not be built; tried:\n"
        f"  {compiler} (exit code 3):\n"
        "    view.c:1:1: error: no such luck\n"
        "  install gcc or clang, or name a compiler: CC=/path/to/cc; or: python -m pip install ziglang"
    )
    assert [path for path in empty_cache.rglob("*") if path.is_file()] == []


def test_a_compiler_that_is_not_there(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(FakeGpuError, match="/nowhere/cc: No such file or directory"):
        build.library()


def test_a_compiler_that_cannot_be_fetched_says_why(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Finished(1, "ERROR: No matching distribution found for ziglang")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build, "COMPILERS", ())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(build, "run", lambda command, timeout_s: refused)
    with pytest.raises(FakeGpuError) as error:
        build.library()
    assert "ziglang (exit code 1):\n    ERROR: No matching distribution found for ziglang\n" in str(error.value)


def test_the_next_compiler_is_tried(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    bad = build.Compiler((fake_compiler(tmp_path, "exit 1"),))
    good = build.Compiler((fake_compiler(tmp_path / "other", BUILDS),))
    monkeypatch.setattr(build, "compilers", lambda: iter([bad, good]))
    assert build.library().read_text() == "built\n"


def test_the_library_names_no_c_library() -> None:
    """So that it takes that of the program that loads it, whatever its version."""
    assert b"libc.so" not in build.library().read_bytes()


@pytest.mark.long
@pytest.mark.skipif(not find_spec("ziglang"), reason="ziglang is not installed")
def test_the_compiler_of_the_registry_builds_both(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compilers", lambda: iter([build.zig()]))
    assert build.zig().command[0] == sys.executable
    assert build.library().exists()
    assert build.nvidia_smi().exists()
