"""The variables a task starts with.

Place in the flow: Assignment, what the machine adds ─▶ **environment** ─▶ the task. Pure. Invariant: which GPUs a task
sees is said by the machine alone; nothing a user wrote reaches the dynamic loader or NVIDIA's own tools.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from gpuyard.agent.users import Account
from gpuyard.errors import AgentError
from gpuyard.model.jobs import DeviceShare
from gpuyard.model.quantities import MILLI

MARK: Final = "GPUYARD_MARK"
NOTICE_FILE: Final = "GPUYARD_PREEMPT_NOTICE_FILE"
CHECKPOINT_FILE: Final = "GPUYARD_CHECKPOINT_FILE"
FAKE_PROFILE: Final = "FAKE_GPU_PROFILE"
"""What a job that runs on fake GPUs does with them, if it says so: per cent, or a profile."""
PARCEL: Final = "GPUYARD_PARCEL"
"""Where a task finds what its job brings along."""
PASSED_ON: Final = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
"""Of the agent's own variables; none of them is a secret."""
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TAKEN_OUT: Final = re.compile(r"LD_.*|NVIDIA_.*|CUDA_VISIBLE_DEVICES|GPUYARD_MARK|GPUYARD_FAKE_.*")
NAME: Final = re.compile(r"[^=\0]+")
NO_GPUS: Final = "void"


class Given(msgspec.Struct, frozen=True):
    """What the machine adds: whose it is, its files, its GPUs, and where those are fake how they are seen."""

    account: Account
    mark: str
    private: str
    notice: str
    devices: tuple[str, ...]
    shares: tuple[DeviceShare, ...]
    fake: Mapping[str, str]


def variables(asked: Mapping[str, str], given: Given, agent: Mapping[str, str]) -> dict[str, str]:
    """Those of the user, over those everybody has, under those of the machine."""
    for name in asked:
        if not NAME.fullmatch(name):
            raise AgentError(f'"{name}" cannot be the name of a variable', fix="leave it out of env")
    users = {name: value for name, value in asked.items() if not TAKEN_OUT.fullmatch(name)}
    everybody = _everybodys(given, agent)
    # The job's own choice of the checkpoint file stands; it is its file.
    everybody[CHECKPOINT_FILE] = f"{given.private}/checkpoint"
    made = {**everybody, **users, **_machines(given)}
    if given.fake:
        made["PATH"] = f"{given.fake['PATH']}:{made['PATH']}"
    return made


def _everybodys(given: Given, agent: Mapping[str, str]) -> dict[str, str]:
    # Another user can often not even look into the folders of the agent's own path.
    names = PASSED_ON if given.account.uid == os.geteuid() else PASSED_ON[1:]
    passed = {name: agent[name] for name in names if name in agent}
    who = {"USER": given.account.name, "LOGNAME": given.account.name, "HOME": given.account.folder or given.private}
    return {"PATH": DEFAULT_PATH, **passed, **who, "SHELL": "/bin/sh"}


def _machines(given: Given) -> dict[str, str]:
    fake = {name: value for name, value in given.fake.items() if name != "PATH"}
    return {**fake, MARK: given.mark, NOTICE_FILE: given.notice, **_gpus(given)}


def _gpus(given: Given) -> dict[str, str]:
    seen = ",".join(given.devices)
    made = {"CUDA_VISIBLE_DEVICES": seen, "NVIDIA_VISIBLE_DEVICES": seen or NO_GPUS}
    parts = [share for share in given.shares if share.gpu_milli < MILLI and not share.mig]
    if parts:
        made["GPUYARD_GPU_MILLI"] = ",".join(str(share.gpu_milli) for share in given.shares)
        made["GPUYARD_GPU_MEMORY_MIB"] = ",".join(str(share.memory_mib) for share in given.shares)
    return made
