"""The three files of the demo: what they bring, and who waits for whom.

Place in the flow: examples/kai-demo ─**files**─▶ play. Invariant: nothing is assumed about sizes, names or numbers of
workloads; other files make another demo.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from gpuyard.errors import InputError, Where

QUEUES: Final = "1-queues.yaml"
INITIAL: Final = "2-initial-state.yaml"
NEW: Final = "3-new-workloads.yaml"
AFTER: Final = "kai-demo/after-"
"""A scheduling gate of this name and a workload's is taken away once that workload has its place."""


class Workload(msgspec.Struct, frozen=True):
    """Something that makes pods, and how many of them."""

    namespace: str
    name: str
    pods: int


def own_folder() -> Path:
    """Where the files lie: beside the installed package, or in the source tree."""
    packaged = Path(__file__).parents[1] / "examples" / "kai-demo"
    return packaged if packaged.exists() else Path(__file__).parents[3] / "examples" / "kai-demo"


def check(folder: Path) -> None:
    for name in (QUEUES, INITIAL, NEW):
        if not (folder / name).is_file():
            fix = f"the demo applies {QUEUES}, {INITIAL} and {NEW}, in this order"
            raise InputError(f"there is no {name}", where=Where(str(folder)), fix=fix)


def workloads(path: Path) -> tuple[Workload, ...]:
    """Those of one file, in its order."""
    found = [body for body in yaml.safe_load_all(path.read_text(encoding="utf-8")) if body]
    return tuple(
        Workload(str(body["metadata"].get("namespace", "default")), str(body["metadata"]["name"]), pods)
        for body in found
        if (pods := _pods(body))
    )


def _pods(body: dict[str, Any]) -> int:
    """How many pods it makes; none for what makes no pods, and for kinds the demo does not know."""
    match body.get("kind"):
        case "Job":
            return int(body["spec"].get("parallelism", 1))
        case "PyTorchJob":
            return sum(int(replicas.get("replicas", 1)) for replicas in body["spec"]["pytorchReplicaSpecs"].values())
        case "Pod":
            return 1
    return 0
