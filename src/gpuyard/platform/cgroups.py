"""The kernel's cgroups as far as they are files: where this process is in them, and what was given to it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

DELEGATION_MARKS: Final = ("trusted.delegate", "user.delegate")
"""Attributes that systemd sets on a folder it has given away (`Delegate=yes`)."""


def own_memberships() -> str:
    """/proc/self/cgroup; empty where the kernel has none."""
    return _text(Path("/proc/self/cgroup"))


def mount_table() -> str:
    return _text(Path("/proc/self/mountinfo"))


def is_marked_delegated(folder: Path) -> bool:
    for mark in DELEGATION_MARKS:
        with suppress(OSError):
            if os.getxattr(folder, mark) == b"1":
                return True
    return False


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
