"""The Grafana board asks only for what the exporter tells, in queries Prometheus understands."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuyard.fakegpu.metrics import ALL_METRICS
from tests.fakegpu.prometheus import program

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "gpus.json").read_text(encoding="utf-8"))
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def test_every_metric_is_one_of_the_exporter() -> None:
    texts = QUERIES + [variable["query"] for variable in BOARD["templating"]["list"]]
    asked = {name for text in texts for name in re.findall(r"DCGM_\w+", text)}
    assert asked <= {metric.name for metric in ALL_METRICS}


def test_panels_have_their_own_numbers_and_do_not_overlap() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)


def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    plain = [query.replace("$__range", "1h").replace("$node", ".*").replace("$gpu", ".*") for query in QUERIES]
    rules = [{"record": f"board:{number}", "expr": query} for number, query in enumerate(plain)]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    told = subprocess.run([str(program("promtool")), "check", "rules", str(path)], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize("path", sorted((DEPLOY / "prometheus").glob("*.yml")), ids=lambda path: path.name)
def test_prometheus_understands_its_file(path: Path) -> None:
    told = subprocess.run([str(program("promtool")), "check", "config", str(path)], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
