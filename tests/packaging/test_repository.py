"""The repository's own hygiene: what must never be committed, and what must agree with what.

The forbidden texts are put together from parts, so that this file does not hold them itself.
"""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES_PER_SOURCE_FILE = 600

REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pypi", "python", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("yarnpkg", "com"),
        ("proxy", "golang", "org"),
        ("static", "crates", "io"),
        ("index", "crates", "io"),
    )
]
REGISTRY_ADDRESS = re.compile("|".join(map(re.escape, REGISTRY_HOSTS)) + r"""|resolved["']?\s*[:=]?\s*["']?https?:""")
# A path counts only where it starts, so that a longer path or an address that has such a part is no finding.
DEVELOPER_PATH = re.compile(r"(?<![\w.~)}>-])/(?:" + "|".join(("home", "root", "work", "Users")) + ")/")
INDEX_OPTION = re.compile(r"^\s*(?:-i|-f|--index-url|--extra-index-url|--find-links|--trusted-host)\b", re.MULTILINE)


def tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def findings(pattern: re.Pattern[str]) -> list[str]:
    """Each match in a tracked file as path:line: text."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), start=1)
        if pattern.search(line)
    ]


def requirement_names(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return sorted(line.strip() for line in lines if line.strip() and not line.startswith(("#", "-")))


def test_no_tracked_file_names_a_package_registry() -> None:
    assert findings(REGISTRY_ADDRESS) == []


def test_no_tracked_file_holds_a_path_of_a_developers_machine() -> None:
    assert findings(DEVELOPER_PATH) == []


def test_no_source_file_is_longer_than_a_reader_takes_in() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "src").rglob("*.py")}
    assert {path: length for path, length in lengths.items() if length > LINES_PER_SOURCE_FILE} == {}


@pytest.mark.parametrize("name", ["runtime.txt", "dev.txt"])
def test_requirements_are_pinned_with_hashes_and_name_no_index(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    entries = [entry for entry in re.split(r"^(?=[A-Za-z])", text, flags=re.MULTILINE) if not entry.startswith("#")]
    assert entries
    assert [entry for entry in entries if not re.match(r"[\w.-]+==\S+.*--hash=sha256:", entry, re.DOTALL)] == []
    assert INDEX_OPTION.search(text) is None


def test_locked_runtime_versions_are_the_ones_we_develop_with() -> None:
    pins = {
        name: set(re.findall(r"^\S+==\S+", (ROOT / "requirements" / name).read_text(encoding="utf-8"), re.MULTILINE))
        for name in ("runtime.txt", "dev.txt")
    }
    assert pins["runtime.txt"] <= pins["dev.txt"]


def test_runtime_requirements_agree_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert requirement_names(ROOT / "requirements" / "runtime.in") == sorted(project["dependencies"])


def test_the_ci_entry_is_executable() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
