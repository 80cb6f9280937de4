"""The page about fake GPUs on Kubernetes, and the manifests: what they show can be used, and what they say is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuyard import __version__
from gpuyard.fakegpu.config import fleet_of_cluster
from gpuyard.fakegpu.kubernetes import nodewriter, podreports, updater
from gpuyard.fakegpu.kubernetes.names import Scope
from gpuyard.fakegpu.kubernetes.observed import KWOK_NODE, POOL_LABELS, PROFILE, UTILIZATION
from gpuyard.fakegpu.kubernetes.statusmap import MAX_GPUS_IN_ONE
from gpuyard.kubeapi.follow import SILENCE_S

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "fake-gpus-kubernetes.md").read_text(encoding="utf-8")
DEPLOY = ROOT / "deploy" / "fakegpu"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")


def manifests() -> list[dict[str, Any]]:
    named = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["resources"]
    return [each for name in named for each in yaml.safe_load_all((DEPLOY / name).read_text())]


@pytest.mark.parametrize(
    "text", [*EXAMPLES, yaml.safe_load((DEPLOY / "config.yaml").read_text())["data"]["fleet.yaml"]]
)
def test_every_configuration_that_is_shown_can_be_used(text: str) -> None:
    found = fleet_of_cluster(text, "fleet.yaml", {"a100": ["n"], "slices": ["m"], "default": ["k"]})
    assert found.fleet.machines
    assert not found.unplaced


def test_every_word_that_people_need_is_on_the_page() -> None:
    reasons = {podreports.INVALID, podreports.SHORT, podreports.REMOVED}
    sources = [Path(str(module.__file__)).read_text(encoding="utf-8") for module in (updater, nodewriter)]
    reasons |= {word for text in sources for word in re.findall(r'"((?:Invalid|Node|Contested)[A-Z]\w+)"', text)}
    assert len(reasons) >= 5
    told = {podreports.INVALID: "told once, by an event of the pod", podreports.SHORT: "too few are left gets an event"}
    assert [reason for reason in reasons if told.get(reason, f"`{reason}`") not in PAGE] == []
    for word in (*POOL_LABELS, PROFILE, UTILIZATION, KWOK_NODE):
        assert f"`{word}`" in PAGE or f"{word}=" in PAGE
    assert f"up to {MAX_GPUS_IN_ONE:,} GPUs".replace(",", " ") in PAGE
    assert f"within {SILENCE_S} seconds" in PAGE


def test_the_manifests_are_about_one_namespace_one_image_and_one_version() -> None:
    kustomization = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
    assert kustomization["namespace"] == Scope().namespace
    (image,) = kustomization["images"]
    assert image["newTag"] == __version__
    assert f"-t gpuyard-fake:{__version__} ." in CONTAINERFILE
    assert f"-t gpuyard-fake:{__version__} ." in PAGE
    workloads = [each for each in manifests() if each["kind"] in ("DaemonSet", "Deployment")]
    assert len(workloads) == 2
    for workload in workloads:
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        assert container["image"] == image["name"]
        security = container["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]


def test_the_manifests_start_commands_that_there_are() -> None:
    from click.testing import CliRunner

    from gpuyard.cli.main import cli

    for workload in manifests():
        if workload["kind"] in ("DaemonSet", "Deployment"):
            (container,) = workload["spec"]["template"]["spec"]["containers"]
            assert CliRunner().invoke(cli, [*container["args"], "--help"]).exit_code == 0


def test_the_image_is_made_of_what_is_in_the_repository() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINERFILE, re.MULTILINE)
    assert copied
    for names in copied:
        for name in names.split():
            assert (ROOT / name).exists(), name
    assert "--require-hashes" in CONTAINERFILE
    code = re.search(r"python -c '(.+)'", CONTAINERFILE)
    assert code is not None
    compile(code.group(1), "Containerfile", "exec")
