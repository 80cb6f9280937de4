"""What a container gets with its devices: nvidia-smi, the NVML library, and the state of exactly its own GPUs.

Place in the flow: Allocate ─ids─▶ **plugin_grant** ─Grant─▶ kubelet ─▶ the container's mounts and variables.
Invariant: what is mounted lies below the home, in files that are never changed once they have their name, so that
neither a new version nor the end of the plugin takes anything from a running container.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.fakegpu import build
from gpuyard.fakegpu.launch import STATE
from gpuyard.fakegpu.publish import said_plainly

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
CONTAINER_STATE: Final = "/run/gpuyard-fake"
"""Where library and nvidia-smi look without being told."""
CONTAINER_LIST: Final = f"{CONTAINER_STATE}.granted"
"""Where they find which GPUs the container was given: those and no others, whatever its variables say."""
CONTAINER_PROGRAM: Final = f"/usr/bin/{build.NVIDIA_SMI}"
# Loaders look there without a variable: those of Debian and Alpine into the first, those of Fedora and SUSE into the
# second. LD_LIBRARY_PATH would take the place of what the image itself says there.
CONTAINER_LIBRARIES: Final = (f"/usr/lib/{build.LIBRARY}", f"/usr/lib64/{build.LIBRARY}")
INJECTED: Final = "injected"
LISTS: Final = "granted"
DIGEST_LENGTH: Final = 16
KEPT: Final = ".mounted"
"""A file that keeps a state directory: a container that has it mounted shall find the next daemon's state there."""


class Tools(msgspec.Struct, frozen=True):
    """Where the files that containers get lie on the machine."""

    library: Path
    program: Path


class ReadOnlyMount(msgspec.Struct, frozen=True):
    container_path: str
    host_path: str


class Grant(msgspec.Struct, frozen=True):
    """What is added to one container."""

    variables: dict[str, str] = {}
    mounts: tuple[ReadOnlyMount, ...] = ()


NOTHING: Final = Grant()
"""As the design of the GPU mock has it: the devices are booked, and the container is left as it is."""


def grant(ids: Sequence[str], tools: Tools, state: Path, listed: Path) -> Grant:
    """The variables name the GPUs as NVIDIA's plugin does; the tools show those, and no other."""
    mounts = (
        ReadOnlyMount(CONTAINER_STATE, str(state)),
        ReadOnlyMount(CONTAINER_LIST, str(listed)),
        ReadOnlyMount(CONTAINER_PROGRAM, str(tools.program)),
        *(ReadOnlyMount(path, str(tools.library)) for path in CONTAINER_LIBRARIES),
    )
    return Grant({VISIBLE: ",".join(ids), STATE: CONTAINER_STATE}, mounts)


def placed_tools(home: Path) -> Tools:
    """Library and program, copied below the home: a plugin in a container has no other folder the machine knows."""
    return Tools(_placed(build.library(), home), _placed(build.nvidia_smi(), home))


def _placed(built: Path, home: Path) -> Path:
    """Under the name of what it was built from, which the folder in the cache carries."""
    place = home / INJECTED / built.parent.name / built.name
    _put(place, lambda fresh: shutil.copyfile(built, fresh), 0o755)
    return place


def _put(place: Path, write: Callable[[Path], object], mode: int) -> None:
    """Whole or not at all; what is there already is left alone. Plugins of several nodes may share a home."""
    if place.exists():
        return
    with said_plainly(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            fresh = Path(scratch) / place.name
            write(fresh)
            fresh.chmod(mode)
            fresh.replace(place)


def written_list(ids: Sequence[str], home: Path) -> Path:
    """A file that names them. Containers of one pod may be started again much later, so it stays."""
    text = ",".join(ids)
    place = home / LISTS / hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]
    _put(place, lambda fresh: fresh.write_text(f"{text}\n", encoding="utf-8"), 0o644)
    return place


def keep_directory(state: Path) -> None:
    """A daemon that ends takes its state away, and leaves a directory that holds anything else."""
    with said_plainly(state):
        state.mkdir(parents=True, exist_ok=True)
        (state / KEPT).touch()
