"""Who a task runs as on this machine.

Place in the flow: Assignment.run_as ─▶ **users** ─Account─▶ process_runtime ─numbers─▶ supervisor, which takes them on.
Invariant: where tasks are kept apart by users, none runs as root, and none runs as the agent for want of a user.
"""

from __future__ import annotations

import grp
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
    own_group: int = -1
    """A group that only the tasks of one submitting user are in; -1: there is none."""


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
    _check_number(run_as.uid)
    found = _named(run_as.name) if run_as.name else Account(run_as.uid, run_as.uid, (run_as.uid,), str(run_as.uid), "")
    if found.uid == 0:
        raise AgentError("a job may not run as root", fix="map its submitter or its team to another user")
    if not run_as.uid:
        return msgspec.structs.replace(found, own_group=found.gid)
    # Last, because a file server may look at the first sixteen only.
    groups = tuple(dict.fromkeys((*found.groups, run_as.uid)))
    return msgspec.structs.replace(found, groups=groups, own_group=run_as.uid)


def _named(name: str) -> Account:
    try:
        return _of(pwd.getpwnam(name))
    except KeyError:
        raise AgentError(
            f'this machine has no user "{name}"', fix="create it, or map the submitter to another"
        ) from None


def _check_number(uid: int) -> None:
    """It is that of a submitting user, and so must be nobody else's here: neither a person's nor a group's."""
    if not 0 <= uid <= MAX_UID:
        raise AgentError(f"{uid} is not the number of a user", fix=f"it lies between 1 and {MAX_UID}")
    taken = _owner_of(uid) if uid else ""
    if taken:
        fix = "start the manager with a range of numbers that no node uses: --job-uids FIRST-LAST"
        raise AgentError(f"user number {uid} is not free for a job on this node: it is that of {taken}", fix=fix)


def _owner_of(number: int) -> str:
    """The account or group of this node that has the number; empty: none has."""
    try:
        return f'user "{pwd.getpwuid(number).pw_name}"'
    except KeyError:
        pass
    try:
        return f'group "{grp.getgrgid(number).gr_name}"'
    except KeyError:
        return ""


def _of(entry: pwd.struct_passwd) -> Account:
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(entry.pw_uid, entry.pw_gid, groups, entry.pw_name, entry.pw_dir)
