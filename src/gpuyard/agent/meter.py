"""How busy the GPUs of each task are, and when it last saved its work.

Place in the flow: holdings, NVML ─▶ **meter** ─Sample─▶ reports. Looks at files of jobs, which may lie on a server that
does not answer: run it in a thread. Invariant: where several tasks share a GPU, each is measured by its own processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from gpuyard.agent.attempts import Holding
from gpuyard.model.jobs import DeviceShare
from gpuyard.model.quantities import MILLI
from gpuyard.nvml.library import Nvml
from gpuyard.platform.clock import wall_ms
from gpuyard.platform.processes import descends_from, process_parents


class Sample(msgspec.Struct, frozen=True):
    """One look at one task."""

    gpu_percent: int | None
    saved_at_ms: int


def measure(holdings: tuple[Holding, ...], nvml: Nvml) -> list[Sample]:
    sharing = any(_is_part(share) for holding in holdings for share in holding.shares)
    parents = process_parents() if sharing else {}
    return [Sample(_percent(holding, nvml, parents), _saved_at_ms(holding)) for holding in holdings]


def _percent(holding: Holding, nvml: Nvml, parents: Mapping[int, int]) -> int | None:
    """The mean over its devices; of a part, how much of that part is used."""
    found = [
        percent
        for share, uuid in zip(holding.shares, holding.devices, strict=True)
        if (percent := _of_share(holding.pid, share, uuid, nvml, parents)) is not None
    ]
    return max(0, min(sum(found) // len(found), 100)) if found else None


def _of_share(pid: int, share: DeviceShare, uuid: str, nvml: Nvml, parents: Mapping[int, int]) -> int | None:
    if not _is_part(share):
        return nvml.used_percent(uuid)
    by_process = nvml.used_by_process(uuid)
    if by_process is None:
        return nvml.used_percent(uuid)
    used = sum(percent for process, percent in by_process.items() if descends_from(process, pid, parents))
    return min(used * MILLI // max(share.gpu_milli, 1), 100)


def _is_part(share: DeviceShare) -> bool:
    return share.gpu_milli < MILLI and not share.mig


def _saved_at_ms(holding: Holding) -> int:
    """The file is the job's own, so its time is believed only as far as now."""
    with suppress(OSError, ValueError):
        return max(0, min(Path(holding.checkpoint_file).stat().st_mtime_ns // 1_000_000, wall_ms()))
    return 0
