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


def packed(files: Mapping[str, str], folder: str = "job") -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as target:
        target.writestr(f"{folder}/", "")
        for path, text in files.items():
            target.writestr(f"{folder}/{path}", text)
    return data.getvalue()


def written(folder: Path, files: Mapping[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        (folder / path).write_text(text)
    return folder
