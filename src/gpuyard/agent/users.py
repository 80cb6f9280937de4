"""Who a task runs as on this machine.

Place in the flow: Assignment.run_as ─▶ **users** ─Account─▶ process_runtime ─numbers─▶ supervisor, which takes them on.
Invariant: where tasks are kept apart by users, none runs as root, and none runs as the agent for want of a user.
"""

from __future__ import annotations

import os
import pwd
from typing import Final

import msgspec

from gpuyard.errors import AgentError
from gpuyard.wire.agents import Isolation, RunAs

MAX_UID: Final = (1 << 32) - 2


class Account(msgspec.Struct, frozen=True):
    """A user of the machine, or a bare number that no user of it has."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    folder: str
    """Its home; empty: it has none."""


def default_isolation() -> Isolation:
    return Isolation.USERS if os.geteuid() == 0 else Isolation.NONE


def own_account() -> Account:
    try:
        return _of(pwd.getpwuid(os.geteuid()))
    except KeyError:
        return Account(os.geteuid(), os.getegid(), (), str(os.geteuid()), os.environ.get("HOME", ""))


def account(run_as: RunAs | None) -> Account:
    """The user that was asked for; AgentError if there is none that will do."""
    if run_as is None:
        raise AgentError("this machine runs each job as a user of its own, and no user was named for this one")
    found = _named(run_as.name) if run_as.name else _numbered(run_as.uid)
    if found.uid == 0:
        raise AgentError("a job may not run as root", fix="map its submitter or its team to another user")
    return found


def _named(name: str) -> Account:
    try:
        return _of(pwd.getpwnam(name))
    except KeyError:
        raise AgentError(
            f'this machine has no user "{name}"', fix="create it, or map the submitter to another"
        ) from None


def _numbered(uid: int) -> Account:
    if not 0 <= uid <= MAX_UID:
        raise AgentError(f"{uid} is not the number of a user", fix=f"it lies between 1 and {MAX_UID}")
    try:
        return _of(pwd.getpwuid(uid))
    except KeyError:
        return Account(uid, uid, (uid,), str(uid), "")


def _of(entry: pwd.struct_passwd) -> Account:
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(entry.pw_uid, entry.pw_gid, groups, entry.pw_name, entry.pw_dir)
