"""Who holds what, for people: all ConfigMaps together, and what is wrong with the configuration."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpuyard.cli.show_fake import show_cluster
from gpuyard.fakegpu.config import fleet_of
from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.kubernetes.names import Scope
from gpuyard.fakegpu.kubernetes.overview import ClusterView, overview, views_of
from gpuyard.fakegpu.kubernetes.statusmap import document, node_text
from gpuyard.fakegpu.reading import Holder
from tests.kubeapi.scripted import Answer, Script, serving

FLEET = """
mig-strategy: mixed
nodes:
  b: {gpu-product: T4, gpus: [{id: whole}]}
  a: {gpu-product: A100, gpus: [{id: cut, mig: [1g.10gb]}]}
"""


def texts() -> list[str]:
    """A document for each node."""
    engine = Engine(fleet_of(FLEET))
    engine.start("b", 0, "t", holder=Holder("ns", "pod", "main"))
    engine.start("a", 0, "t", holder=Holder("ns", "other", "main"), mig=0)
    return [document("mixed", [node_text(reading, "mixed")]) for reading in engine.readings()]


def a_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


def seen(*maps: dict[str, Any]) -> ClusterView:
    node = {"metadata": {"name": "n", "labels": {"gpuyard.io/gpu-pool": "p"}}}
    answers = [Answer(200, {"metadata": {}, "items": items}) for items in ([*maps], [node])]

    async def look() -> ClusterView:
        async with serving(Script(*answers)) as client:
            return await overview(client, Scope())

    return asyncio.run(look())


def test_nodes_of_all_documents_by_name_with_instances_below_their_gpu() -> None:
    first, second = views_of(texts())
    assert (first.name, second.name) == ("a", "b")
    assert [(gpu.product, gpu.holder) for gpu in first.gpus] == [
        ("NVIDIA-A100-SXM4-80GB", ""),
        ("MIG 1g.10gb", "ns/other/main"),
    ]
    (gpu,) = second.gpus
    assert (gpu.id, gpu.utilization_percent, gpu.memory_mib, gpu.holder) == ("whole", 100, 15360, "ns/pod/main")


@pytest.mark.parametrize(
    ("maps", "words"),
    [
        ([], "there is no ConfigMap fake-gpus in the namespace gpuyard-fake"),
        ([a_map("fake-gpus")], 'has no "fleet.yaml"'),
        ([a_map("fake-gpus", **{"fleet.yaml": "pools: ["})], "fake-gpus/fleet.yaml"),
        ([a_map("fake-gpus", **{"fleet.yaml": "pools: {p: {product: T4}}"})], None),
    ],
)
def test_what_is_wrong_with_the_configuration(maps: list[dict[str, Any]], words: str | None) -> None:
    error = seen(*maps).config_error
    assert error is None if words is None else words in str(error)


def test_a_table_has_a_line_for_every_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    maps = [a_map(f"m{at}", **{"status.yaml": text}) for at, text in enumerate(texts())]
    show_cluster(seen(a_map("fake-gpus", **{"fleet.yaml": "nonsense"}), *maps))
    told = capsys.readouterr().out
    assert "not in force" in told
    assert "ns/pod/main" in told
    assert len([line for line in told.splitlines() if line.startswith(("a ", "b "))]) == 3
