"""Cgroups of an agent whose home goes away with the test: nobody else would remove them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from gpuyard.agent.cgroups import PARENT, TASK, mounts
from gpuyard.agent.supervisor.cell import Cell
from gpuyard.platform.cgroups import mount_table


def remove_cells(agent_home: Path) -> None:
    """Once everything that ran there is dead; as where a machine loses its power."""
    with suppress(FileNotFoundError):
        name = f"{PARENT}{(agent_home / 'incarnation').read_text()}"
        for mount in mounts(mount_table()):
            for folder in (Path(mount.point) / name).glob(f"{TASK}*"):
                Cell([str(folder)]).remove()
