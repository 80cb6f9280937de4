"""A real Prometheus for the tests: found on the machine, or unpacked from the distribution's package into the cache.

Nothing is installed: the package is only downloaded and unpacked. GPUYARD_PROMETHEUS names a folder with the programs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

FOLDER = "GPUYARD_PROMETHEUS"
PACKAGE = "prometheus"


def program(name: str) -> Path:
    """`prometheus` or `promtool`; the test is skipped, and says so, where there is no way to have them."""
    found = _found(name)
    if found is None:
        pytest.skip(f"no {name} here: neither on the PATH, nor as a package of this distribution, nor in ${FOLDER}")
    return found


@cache
def _found(name: str) -> Path | None:
    if os.environ.get(FOLDER):
        return Path(os.environ[FOLDER]) / name
    on_path = shutil.which(name)
    if on_path:
        return Path(on_path)
    folder = _unpacked()
    return folder / "usr" / "bin" / name if folder else None


@cache
def _unpacked() -> Path | None:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuyard"
    kept = home / "prometheus-debian"
    if kept.exists():
        return kept
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    home.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="prometheus-", dir=home))
    try:
        _run(["apt-get", "download", "--quiet", PACKAGE], unfinished)
        (package,) = unfinished.glob("*.deb")
        _run(["dpkg-deb", "-x", str(package), "."], unfinished)
        package.unlink()
        # A folder that has its name is whole; another test may have been faster.
        if not kept.exists():
            unfinished.rename(kept)
    except (OSError, ValueError, subprocess.SubprocessError):
        return kept if kept.exists() else None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return kept


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
