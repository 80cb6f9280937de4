"""Maven and a JDK for the Kotlin client: those of this machine, or Debian's; what it fetches is kept in a cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "clients" / "kotlin"
SETUP = ROOT / "scripts" / "setup_jvm.sh"
TIMEOUT_S = 900
"""The first time, everything is fetched."""
# A build lives for seconds: what pays off later is left out.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx768m"


class Report(NamedTuple):
    """What one class of tests came to."""

    tests: int
    failures: int
    errors: int
    skipped: int


def require_maven() -> str:
    found = _maven()
    if found is None:
        pytest.skip(f"no Maven or no JDK 17 here: as root run {SETUP.relative_to(ROOT)}")
    return found


@cache
def _maven() -> str | None:
    if not _has_all() and os.geteuid() == 0:
        subprocess.run([str(SETUP)], check=False, capture_output=True, timeout=TIMEOUT_S)
    return shutil.which("mvn") if _has_all() else None


def _has_all() -> bool:
    if not (shutil.which("mvn") and shutil.which("javac")):
        return False
    said = subprocess.run(["javac", "-version"], check=False, capture_output=True, text=True)
    words = (said.stdout + said.stderr).split()
    return len(words) > 1 and int(words[1].partition(".")[0]) >= 17


def verify(environment: Mapping[str, str]) -> dict[str, Report]:
    """`mvn verify` of the client; what its tests came to, by class."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuyard" / "maven"
    build = folder / f"build-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]}"
    reports = build / "surefire-reports"
    shutil.rmtree(reports, ignore_errors=True)
    done = subprocess.run(
        [
            require_maven(),
            *("--quiet", "--batch-mode", "--no-transfer-progress", "--file", str(PROJECT / "pom.xml")),
            *(f"-Dmaven.repo.local={folder / 'repository'}", f"-Dgpuyard.build={build}"),
            "verify",
        ],
        env={**os.environ, "MAVEN_OPTS": QUICK, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return dict(_report(path) for path in reports.glob("TEST-*.xml"))


def _report(path: Path) -> tuple[str, Report]:
    suite = ElementTree.parse(path).getroot().attrib
    return suite["name"], Report(*(int(suite[name]) for name in Report._fields))
