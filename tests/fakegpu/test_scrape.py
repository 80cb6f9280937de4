"""A real Prometheus scrapes the exporter of a real daemon."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from tests.fakegpu.daemons import eventually, page, running
from tests.fakegpu.prometheus import program
from tests.ports import free_ports

CONFIG = """\
global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}
scrape_configs:
  - job_name: fake-gpus
    static_configs: [{{targets: ["{target}"]}}]
"""


@pytest.mark.slow
def test_prometheus_scrapes_the_exporter(tmp_path: Path) -> None:
    prometheus = program("prometheus")
    with running(tmp_path / "home", gpus=4, machines=2) as status:
        target = urllib.parse.urlsplit(status.exporter).netloc
        config = tmp_path / "prometheus.yml"
        config.write_text(CONFIG.format(target=target))
        address = f"127.0.0.1:{free_ports(1)[0]}"
        server = subprocess.Popen(
            [
                str(prometheus),
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address={address}",
                "--log.level=error",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert eventually(lambda: len(series(address, "DCGM_FI_DEV_FB_FREE")) == 8, within_s=20)
            found = series(address, 'DCGM_FI_DEV_GPU_UTIL{Hostname="node-2",gpu="3"}')
            assert found[0]["metric"]["modelName"] == "NVIDIA A100-SXM4-80GB"
            assert series(address, "up")[0]["value"][1] == "1"
        finally:
            server.terminate()
            server.wait(timeout=20)


def series(address: str, query: str) -> list[Any]:
    try:
        text = page(f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": query}))
    except OSError:
        return []
    found: list[Any] = json.loads(text)["data"]["result"]
    return found
