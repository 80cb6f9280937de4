"""Folders of data jobs for tests, on disk and packed as VDK's command line packs them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

STEP = "def run(job_input):\n    print('a step')\n"


def config(team: str, **needs: object) -> str:
    """A config.ini; `needs` are its [gpuyard]."""
    wanted = "".join(f"{key} = {value}\n" for key, value in needs.items())
    return f"[owner]\nteam = {team}\n[job]\nschedule_cron =\n[gpuyard]\n{wanted}"


def wheel(module: str, text: str) -> tuple[str, bytes]:
    """A package of one module, as pip installs it without an index: its file name, and what is in it."""
    info, data = f"{module}-1.0.dist-info", io.BytesIO()
    with zipfile.ZipFile(data, "w") as target:
        target.writestr(f"{module}.py", text)
        target.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        target.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        target.writestr(f"{info}/RECORD", f"{module}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return f"{module}-1.0-py3-none-any.whl", data.getvalue()


def packed(files: Mapping[str, str | bytes], folder: str = "job") -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as target:
        target.writestr(f"{folder}/", "")
        for path, text in files.items():
            target.writestr(f"{folder}/{path}", text)
    return data.getvalue()


def written(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for path, data in files.items():
        (folder / path).write_bytes(data.encode() if isinstance(data, str) else data)
    return folder
