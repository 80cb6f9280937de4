"""What a testbed takes from the machine it runs on: its rights, its packages, its file systems.

Place in the flow: up ─▶ **system** ─▶ everything else. Invariant: what is missing is found here, before anything is
made, and told with the way out.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from gpuyard.errors import KubeTestbedError
from gpuyard.platform.commands import follow, run
from gpuyard.testbed.golang import Tell
from gpuyard.testbed.node_files import CNI_FOLDERS
from gpuyard.testbed.record import ROOT

SETUP: Final = Path(__file__).with_name("setup.sh")
PROGRAMS: Final = ("containerd", "ctr", "runc", "busybox", "ip", "unshare", "nsenter", "setsid", "hostname")
PLUGINS: Final = ("ptp", "host-local", "loopback")
SHOWN_LINES: Final = 12
TRY_S: Final = 20.0
_TRY_OVERLAY: Final = 'cd "$1" && mkdir l u w m && mount -t overlay -o lowerdir=l,upperdir=u,workdir=w overlay m'


def why_not() -> str:
    """What keeps this machine from having a testbed at all; empty if nothing does."""
    if not sys.platform.startswith("linux"):
        return "a Kubernetes testbed needs Linux"
    if os.geteuid() != 0:
        return "a Kubernetes testbed needs root: it makes namespaces, mounts and interfaces"
    return ""


def prepare(tell: Tell) -> None:
    """Everything the machine must have; packages are installed where they are missing."""
    reason = why_not()
    if reason:
        raise KubeTestbedError(reason, fix="run it as root on a Linux machine, as in a virtual one")
    if not missing():
        return
    tell(f"missing on this machine: {', '.join(missing())}; installing the packages that have them")
    said: list[str] = []
    code = follow(["bash", str(SETUP)], said.append, folder=SETUP.parent)
    left = missing()
    if code or left:
        last = "\n".join(f"  {line}" for line in said[-SHOWN_LINES:])
        fix = "install them yourself: containerd, runc, the CNI plugins, a static busybox, iproute2, util-linux"
        raise KubeTestbedError(f"this machine lacks {', '.join(left) or 'packages'}\n{last}", fix=fix)


def missing() -> list[str]:
    programs = [name for name in PROGRAMS if shutil.which(name) is None]
    return programs if cni_folder() else [*programs, "network plugins"]


def cni_folder() -> Path | None:
    """Where the network plugins lie."""
    complete = (folder for folder in CNI_FOLDERS if all((folder / name).exists() for name in PLUGINS))
    return next(complete, None)


def snapshotter() -> str:
    """Layers over each other where the kernel can do that in the place of testbeds, else copies."""
    scratch = Path(tempfile.mkdtemp(prefix=".overlay-", dir=ROOT))
    try:
        tried = run(["unshare", "--mount", "sh", "-c", _TRY_OVERLAY, "sh", str(scratch)], timeout_s=TRY_S)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return "native" if tried.code else "overlayfs"
