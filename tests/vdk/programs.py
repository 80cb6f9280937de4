"""VDK's own programs for tests: installed at their locked versions by scripts/setup_vdk.sh, once per machine."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SETUP = ROOT / "scripts" / "setup_vdk.sh"
SETUP_S = 900
"""The first time, everything is fetched."""
TIMEOUT_S = 120


@cache
def _found() -> tuple[str, str]:
    """The folder of the programs; or empty, and why."""
    done = subprocess.run([str(SETUP)], check=False, capture_output=True, text=True, timeout=SETUP_S)
    return (done.stdout.split()[-1], "") if done.returncode == 0 else ("", done.stderr.strip()[-500:])


def require_vdk() -> Path:
    folder, why = _found()
    if not folder:
        pytest.skip(f"VDK's programs are not here, and {SETUP.relative_to(ROOT)} cannot install them: {why}")
    return Path(folder)


class Vdkcli:
    """The command as a person runs it, with credentials in a folder of its own."""

    def __init__(self, url: str, folder: Path, **more: str) -> None:
        self.url = url
        self.program = require_vdk() / "vdkcli"
        self.environment = environment(url, folder, more)

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(self.program), *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"vdkcli {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def json(self, *words: str) -> Any:
        """What it answers with `-o json`."""
        return json.loads(self.run(*words, "-o", "json").stdout)

    def login(self, token: str) -> None:
        self.run("login", "-t", "api-token", "-u", f"{self.url}/oauth2/token", "-a", token)


def environment(url: str, folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    return {
        **os.environ,
        "VDK_BASE_CONFIG_FOLDER": str(folder),
        "VDK_CONTROL_SERVICE_REST_API_URL": url,
        "OAUTHLIB_INSECURE_TRANSPORT": "1",
        # Its own: a flag of it has one letter twice.
        "PYTHONWARNINGS": "ignore",
        **more,
    }
