"""The images of deploy, built here by their own Containerfiles.

No registry is asked: what it begins with is a Debian that is put together from this machine's own package sources. Both
are kept in the cache, by what they are made of.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard import __version__
from gpuyard.testbed.golang import cache_folder

ROOT = Path(__file__).parents[3]
FAKE_GPUS = ("fakegpu", "gpuyard-fake")
SCHEDULER = ("scheduler", "gpuyard")
"""The folder below deploy, and what its manifests call the image."""
BASE = "localhost/gpuyard-test-base:1"
COPIED = (
    "requirements/runtime.txt",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "NOTICE",
    "proto",
    "examples/kai-demo",
    "src",
)
PACKAGES = ("buildah", "debootstrap")
KNOWN = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt", "/etc/apt/apt.conf.d")
"""Where this machine fetches packages, and whom it trusts."""
MINUTES_30_S = 1800.0


def built_archive(which: tuple[str, str]) -> Path:
    """As `docker save` writes it; built unless it lies in the cache."""
    containerfile, name = ROOT / "deploy" / which[0] / "Containerfile", which[1]
    folder = cache_folder() / "images"
    archive = folder / f"{name}-{fingerprint(containerfile)}.tar"
    if not archive.exists():
        skip_where_it_cannot_be_built()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as scratch:
            base = base_archive(folder, Path(scratch))
            build(Path(scratch), base, containerfile, f"{name}:{__version__}", archive)
    return archive


def fingerprint(containerfile: Path) -> str:
    hashed = hashlib.sha256(containerfile.read_bytes())
    for path in made_of():
        hashed.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return hashed.hexdigest()[:12]


def made_of() -> Iterator[Path]:
    for name in COPIED:
        below = [ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).rglob("*"))
        yield from (path for path in below if path.is_file() and "__pycache__" not in path.parts)


def skip_where_it_cannot_be_built() -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("the image is built as root on a Debian or Ubuntu only")
    missing = [name for name in PACKAGES if shutil.which(name) is None]
    if missing:
        install = ["apt-get", "install", "--quiet", "--yes", "--no-install-recommends", *missing]
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        if subprocess.run(install, capture_output=True, env=environment).returncode:
            pytest.skip(f"{' and '.join(missing)} cannot be installed here")


def base_archive(folder: Path, scratch: Path) -> Path:
    """A small Debian with Python, in which packages come from where they come from here."""
    site, codename = package_source()
    archive = folder / f"base-{codename}.tar"
    if not archive.exists():
        root = scratch / "root"
        must("debootstrap", "--variant=minbase", "--include=python3-venv,ca-certificates", codename, root, site)
        for name in KNOWN:
            if Path(name).exists():
                must("cp", "-r", "--parents", name, root)
        container = buildah(scratch, "from", "scratch").strip()
        buildah(scratch, "add", "--quiet", container, root, "/")
        buildah(scratch, "commit", "--quiet", container, BASE)
        save(scratch, BASE, BASE, archive)
    return archive


def package_source() -> tuple[str, str]:
    release = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines() if "=" in line
    )
    codename = release.get("VERSION_CODENAME", "").strip('"')
    told = must("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)")
    sites = [line.split()[0] for line in told.splitlines() if line.split()[1:] == [codename, "main"]]
    if not sites:
        pytest.skip("no package source of this machine's own system is known")
    return sites[0], codename


def build(scratch: Path, base: Path, containerfile: Path, image: str, archive: Path) -> None:
    buildah(scratch, "pull", "--quiet", f"docker-archive:{base}")
    options = ("--isolation", "chroot", "--network", "host", "--build-arg", f"BASE={BASE}", "--pull-never")
    buildah(scratch, "build", *options, "--file", containerfile, "--tag", f"localhost/{image}", ROOT)
    save(scratch, f"localhost/{image}", f"docker.io/library/{image}", archive)


def save(scratch: Path, image: str, name: str, archive: Path) -> None:
    unfinished = scratch / "archive.tar"
    unfinished.unlink(missing_ok=True)
    buildah(scratch, "push", "--quiet", image, f"docker-archive:{unfinished}:{name}")
    unfinished.rename(archive)


def buildah(scratch: Path, *words: str | Path) -> str:
    """With images of its own, so that nobody else's are touched and nothing is left."""
    places = ("--root", scratch / "storage", "--runroot", scratch / "run", "--storage-driver", "vfs")
    return must("buildah", *places, *words)


def must(*command: str | Path) -> str:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=MINUTES_30_S
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout[-4000:]}"
    return done.stdout
