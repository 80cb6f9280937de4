"""What the documents show works: every example in them is read, and every scenario passes."""

import re
from pathlib import Path

import pytest

from gpuyard.errors import InputError
from gpuyard.files.change import read_change
from gpuyard.files.cluster import read_cluster, read_jobs
from gpuyard.scenarios.golden import judge_golden_file

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OF_FLEETS = ("fake-gpus.md", "fleet-file.md", "fake-gpus-kubernetes.md")
"""Their examples are fleets of fake GPUs, which tests/fakegpu/ reads: test_documents.py there, and in kubernetes/."""
OF_OTHERS = ("job-file.md", "teams-file.md", "recurring-jobs.md")
"""Their examples are read by test_work.py, test_teams.py and test_schedule.py."""
OF_KUBERNETES = ("kube-node.md", "kube-questions.md", "kube-queues.md", "kube-scheduler.md", "kai-demo.md")
"""Their examples are objects of Kubernetes."""
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")

EXAMPLES = [
    pytest.param(block, id=f"{path.relative_to(ROOT)}-{number}")
    for path in DOCUMENTS
    if path.name not in (*OF_FLEETS, *OF_OTHERS, *OF_KUBERNETES)
    for number, block in enumerate(BLOCK.findall(path.read_text(encoding="utf-8")), start=1)
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_works(text: str, tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(text, encoding="utf-8")
    if text.startswith("rule:"):
        assert judge_golden_file(path).passed
    elif text.startswith("job:"):
        assert read_jobs(path, read_cluster(ROOT / "src" / "gpuyard" / "examples" / "cluster.yaml"))
    elif text.startswith("# A change"):
        assert read_change(path, read_cluster(ROOT / "src" / "gpuyard" / "examples" / "cluster.yaml"))
    else:
        assert read_cluster(path).snapshot.nodes


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "docs" / "cluster-file.md"], ids=lambda path: path.name)
def test_the_mistake_they_show_is_told_in_these_words(path: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    above = "\n" * 11
    text = f"{above}queues:\n  research: {{quota: 32, children: {{\n    vision: 40,\n    speech: 8}}}}\n"
    cluster.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_cluster(cluster)
    message = re.sub(r"^.*?: ", "", str(caught.value))
    assert message in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    targets = LINK.findall(path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []
