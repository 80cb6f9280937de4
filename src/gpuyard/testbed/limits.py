"""A limit of the machine that many kubelets need raised, for as long as there is a testbed.

Place in the flow: up ─▶ **limits** ◀─ down. Every kubelet watches files through half a dozen inotify instances, and a
machine grants all programs of root together 128.
Invariant: what it was is written down before it is changed, and put back when the last testbed goes; a value that
somebody else has set since is left alone. Both happen under the lock of `choosing_a_slot`.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from gpuyard.errors import KubeTestbedError
from gpuyard.platform.files import write_private
from gpuyard.testbed import record as records

INSTANCES: Final = Path("/proc/sys/fs/inotify/max_user_instances")
WANTED: Final = 4096
KEPT: Final = ".inotify-instances"


def raise_limits() -> None:
    before = int(INSTANCES.read_text(encoding="ascii"))
    if before >= WANTED:
        return
    write_private(_kept(), str(before).encode())
    try:
        INSTANCES.write_text(str(WANTED), encoding="ascii")
    except OSError as error:
        fix = f"set it yourself: sysctl fs.inotify.max_user_instances={WANTED}"
        raise KubeTestbedError(f"{INSTANCES} is {before} and cannot be raised: {error.strerror}", fix=fix) from None


def put_limits_back() -> None:
    """If no testbed is left."""
    if records.names() or not _kept().exists():
        return
    if int(INSTANCES.read_text(encoding="ascii")) == WANTED:
        with suppress(OSError):
            INSTANCES.write_text(_kept().read_text(encoding="ascii"), encoding="ascii")
    _kept().unlink()


def _kept() -> Path:
    return records.ROOT / KEPT
