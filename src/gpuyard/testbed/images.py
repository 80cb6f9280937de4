"""Images of containers, made from folders; no registry is asked.

Place in the flow: a folder, busybox ─**images**─▶ an archive as `docker save` writes it ─▶ containerd of each node.
Invariant: the same files give the same archive.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuyard.errors import KubeTestbedError
from gpuyard.platform.commands import run
from gpuyard.testbed.node_files import BUSYBOX_IMAGE, PAUSE_IMAGE

LIST_S: Final = 20.0
FOLDERS: Final = ("bin", "dev", "etc", "proc", "sys", "tmp", "var")
PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Image(msgspec.Struct, frozen=True):
    """What an image is called, what is in it, and what it runs."""

    reference: str
    command: tuple[str, ...] = ("sh",)
    folder: Path | None = None
    """The files at its root; None: busybox alone."""
    busybox: bool = True


PAUSE: Final = Image(PAUSE_IMAGE, ("sleep", "infinity"))
BUSYBOX: Final = Image(BUSYBOX_IMAGE)


def write_archive(image: Image, path: Path) -> None:
    layer = _layer(image)
    configuration = msgspec.json.encode(_configuration(image, hashlib.sha256(layer).hexdigest()))
    manifest = [{"Config": "config.json", "RepoTags": [image.reference], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        _add(archive, "layer.tar", layer)
        _add(archive, "config.json", configuration)
        _add(archive, "manifest.json", msgspec.json.encode(manifest))


def _configuration(image: Image, layer_digest: str) -> dict[str, Any]:
    return {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"Cmd": list(image.command), "Env": [PATH]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
    }


def _architecture() -> str:
    import platform

    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def _layer(image: Image) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as layer:
        for name in FOLDERS:
            _add_folder(layer, name)
        if image.busybox:
            _add_busybox(layer)
        if image.folder is not None:
            _add_files(layer, image.folder)
    return content.getvalue()


def _add_busybox(layer: tarfile.TarFile) -> None:
    program = find_busybox()
    _add(layer, "bin/busybox", program.read_bytes(), mode=0o755)
    for name in run([str(program), "--list"], timeout_s=LIST_S).output.split():
        if name != "busybox":
            _add_link(layer, f"bin/{name}", "/bin/busybox")


def find_busybox() -> Path:
    found = shutil.which("busybox")
    if found is None:
        raise KubeTestbedError("busybox is missing", fix="install busybox-static")
    return Path(found).resolve()


def _add_files(layer: tarfile.TarFile, folder: Path) -> None:
    for path in _sorted_below(folder):
        layer.add(path, str(path.relative_to(folder)), recursive=False, filter=_anonymous)


def _sorted_below(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise KubeTestbedError(f"{folder} is no folder", fix="name the folder that holds the image's files")
    yield from sorted(folder.rglob("*"))


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    archive.addfile(member, io.BytesIO(content))


def _add_folder(layer: tarfile.TarFile, name: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
    layer.addfile(member)


def _add_link(layer: tarfile.TarFile, name: str, target: str) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = tarfile.SYMTYPE, target, 0o777
    layer.addfile(member)
