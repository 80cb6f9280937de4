"""The supervisor as a program of its own: what it is made of, and that it runs from the agent's home alone."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.agent import nursery, supervisor
from gpuyard.agent.home import Home, prepare
from gpuyard.wire.agents import Isolation

PACKAGE = supervisor.__name__
SOURCES = sorted(Path(supervisor.__path__[0]).glob("*.py"))
LOADED = f"""
import sys
sys.path.append(sys.argv[1])
import {PACKAGE}.nursery
print(*sorted(module.__file__ for name, module in sys.modules.items() if name.startswith("{PACKAGE}")), sep="\\n")
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return prepare(tmp_path / "home", Isolation.NONE)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_the_supervisor_needs_nothing_but_python(source: Path) -> None:
    tree = ast.parse(source.read_text(encoding="utf-8"))
    asked = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    asked += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    foreign = [name for name in asked if name.partition(".")[0] not in sys.stdlib_module_names]
    assert [name for name in foreign if not name.startswith(f"{PACKAGE}.")] == []


def test_the_supervisor_is_loaded_from_the_home_as_a_whole(home: Home) -> None:
    folder = nursery.program(home)
    command = [sys.executable, "-I", "-S", "-c", LOADED, str(folder)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=home.root)
    inside = folder.joinpath(*PACKAGE.split("."))
    assert told.stdout.split() == sorted(str(inside / f"{source.stem}.pyc") for source in SOURCES)


def test_a_changed_supervisor_lies_beside_the_former_one(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = nursery.program(home)
    assert nursery.program(home) == former
    newer = tmp_path / "newer"
    shutil.copytree(supervisor.__path__[0], newer)
    (newer / "lease.py").write_text((newer / "lease.py").read_text() + "\n# newer\n")
    monkeypatch.setattr(supervisor, "__path__", [str(newer)])
    assert nursery.program(home) not in (former, former.with_name(f"{former.name}.new"))
    assert former.exists()
