"""The peer, built from its published source: with our small main program, and as it is.

Go and the build are those of the Kubernetes testbed: everything is kept in its cache and made once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from gpuyard.testbed.golang import GoModule, Kept, Program, programs_of

KAI_VERSION: Final = "v0.12.0"
READY_PROGRAM: Final = "GPUYARD_KAI_CYCLE"
"""Names a program that was built already."""
PROGRAM: Final = "kai-cycle"
MODULE: Final = GoModule(
    name="kai",
    version=KAI_VERSION,
    folder=Path(__file__).parent / "kai",
    programs=(Program(PROGRAM, "gpuyard/benchmarks/peers/kai"),),
    minutes=5,
)
_KAI: Final = "github.com/NVIDIA/KAI-scheduler"
KAI_PROGRAMS: Final = GoModule(
    name="kai-programs",
    version=KAI_VERSION,
    folder=Path(__file__).parent / "kai_programs",
    programs=tuple(Program(f"kai-{name}", f"{_KAI}/cmd/{name}") for name in ("scheduler", "binder", "podgrouper")),
    kept=(Kept("kai-crds", _KAI, "deployments/kai-scheduler/crds"),),
    minutes=4,
)
"""KAI as it runs in a cluster, and the kinds of objects it brings."""


def kai_cycle() -> Path:
    """The program that runs KAI's cycle on a snapshot; built if it is not there."""
    if os.environ.get(READY_PROGRAM):
        return Path(os.environ[READY_PROGRAM])
    return programs_of(MODULE, say)[PROGRAM]


def say(message: str) -> None:
    print(f"peers: {message}", flush=True)
