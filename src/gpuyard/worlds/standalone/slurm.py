"""What a task is told of itself in Slurm's words, for programs that only know those.

Place in the flow: desired ─variables in our words─▶ **slurm** ─the same in Slurm's─▶ the task. Pure. Only for jobs that
ask for it (`slurm_env`): a program that finds such variables may believe that `srun` is there, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

_ALIASES: Final = {
    "SLURM_JOB_ID": "GPUYARD_JOB_ID",
    "SLURM_JOBID": "GPUYARD_JOB_ID",
    "SLURM_JOB_NAME": "GPUYARD_JOB_NAME",
    "SLURM_JOB_ACCOUNT": "GPUYARD_TEAM",
    "SLURM_JOB_USER": "GPUYARD_USER",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_NPROCS": "WORLD_SIZE",
    "SLURM_PROCID": "RANK",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NODEID": "GPUYARD_NODE_RANK",
    "SLURM_NNODES": "GPUYARD_NODES",
    "SLURM_JOB_NUM_NODES": "GPUYARD_NODES",
    "SLURM_NTASKS_PER_NODE": "GPUYARD_TASKS_PER_NODE",
    "SLURM_GPUS_ON_NODE": "GPUYARD_GPUS_PER_NODE",
    "SLURM_RESTART_COUNT": "GPUYARD_RESTART_COUNT",
    "SLURM_ARRAY_JOB_ID": "GPUYARD_ARRAY_ID",
    "SLURM_ARRAY_TASK_ID": "GPUYARD_ARRAY_INDEX",
}


def slurm_variables(own: Mapping[str, str], nodes: Sequence[str], node: str) -> dict[str, str]:
    """Of those in our words that there are; `nodes` by name, `node` that of the task."""
    known = {name: own[ours] for name, ours in _ALIASES.items() if ours in own}
    listed = ",".join(nodes)
    return {**known, "SLURM_JOB_NODELIST": listed, "SLURM_NODELIST": listed, "SLURMD_NODENAME": node}
