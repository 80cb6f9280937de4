"""Where gpuyard keeps what is its own on this machine: state, keys, the address of the local server.

Place in the flow: `gpuyard up` writes there, the command line and the agent find it there. Whoever wants another place
sets GPUYARD_HOME.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

HOME_VARIABLE: Final = "GPUYARD_HOME"
ROOT_HOME: Final = Path("/var/lib/gpuyard")

SERVER_FILE: Final = "server.json"
"""In the home while a server runs: {"url": ..., "ca": the path of its authority, or ""}."""

ADMIN_TOKEN_FILE: Final = "admin.token"
"""In the home, mode 0600: the token made at the first start."""

DATABASE_FILE: Final = "state/database"
"""In the home, mode 0600: the address of the database that was named at the last start, if one was."""
DEFAULT_DATABASE: Final = "state/gpuyard.db"
"""In the home: the database where none was ever named."""


def gpuyard_home() -> Path:
    """The folder that holds all local state; it need not exist yet."""
    chosen = os.environ.get(HOME_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return ROOT_HOME
    return _state_folder() / "gpuyard"


def kept_database(home: Path) -> str:
    """Where the state of this home is: as it was last named, or its own file. A home that moves takes that along."""
    try:
        named = (home / DATABASE_FILE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        named = ""
    return named or str(home / DEFAULT_DATABASE)


def markers_of(home: Path) -> Path:
    """The folder for what this machine knows of databases on a server."""
    return (home / DATABASE_FILE).parent


def _state_folder() -> Path:
    """Where programs of this user keep what lasts. A relative XDG_STATE_HOME does not count, as its authors say."""
    given = os.environ.get("XDG_STATE_HOME", "")
    return Path(given) if given.startswith("/") else Path.home() / ".local" / "state"
