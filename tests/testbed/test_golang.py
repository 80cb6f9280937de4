"""Programs built from Go modules: kept whole, built once, found where they are ready."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.errors import KubeTestbedError
from gpuyard.testbed import golang
from gpuyard.testbed.golang import READY_PROGRAMS, GoModule, Program, Tell, built_folder, is_built, programs_of
from gpuyard.testbed.programs import COREDNS, ETCD, KUBERNETES, KWOK, OPERATORS, TRAINING_OPERATOR

SOURCE = 'package main\n\nvar word = "nothing"\n\nfunc main() { println(word) }\n'
CACHE_FOLDER, FETCHED_GO = golang.cache_folder, golang.fetched_go
GO_CACHE = CACHE_FOLDER() / "go" / "build"
SLOW_BUILD = """\
import sys
from pathlib import Path
from gpuyard.testbed import golang
golang.cache_folder = lambda: Path(sys.argv[1])
golang.find_go = lambda tell: Path("go")
golang.compile_in = lambda folder, *rest: (print("compiling", flush=True), sys.stdin.readline())
from tests.testbed.test_golang import small_module
golang.programs_of(small_module(Path(sys.argv[2])), print)
"""


def small_module(folder: Path, source: str = SOURCE) -> GoModule:
    folder.mkdir(exist_ok=True)
    (folder / "go.mod").write_text("module example/small\n\ngo 1.24.0\n")
    (folder / "main.go").write_text(source)
    return GoModule("small", "v1", folder, (Program("little", "example/small"),), (("main.word", "hello"),))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(golang, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.delenv(READY_PROGRAMS, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def go_knows_itself(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Go that had to be fetched, and what it compiled of itself, are kept: they take longer than all the rest."""
    kept = {**golang.go_environment(needs_c=False), "GOCACHE": str(GO_CACHE)}
    monkeypatch.setattr(golang, "go_environment", lambda needs_c: kept)
    monkeypatch.setattr(golang, "fetched_go", fetched_for_all)


def fetched_for_all(tell: Tell) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(golang, "cache_folder", CACHE_FOLDER)
        return FETCHED_GO(tell)


@pytest.mark.slow
@pytest.mark.usefixtures("go_knows_itself")
def test_a_program_is_built_from_its_source_once(tmp_path: Path) -> None:
    module, told = small_module(tmp_path / "source"), list[str]()
    assert not is_built(module)
    program = programs_of(module, told.append)["little"]
    assert subprocess.run([program], capture_output=True, text=True, check=True).stderr == "hello\n"
    assert any(said.startswith("building small v1, this once") for said in told)
    assert is_built(module)
    told.clear()
    assert programs_of(module, told.append)["little"] == program
    assert told == []


@pytest.mark.slow
@pytest.mark.usefixtures("go_knows_itself")
def test_what_does_not_compile_leaves_nothing_that_looks_ready(tmp_path: Path, cache: Path) -> None:
    module = small_module(tmp_path / "source", "package main\n\nfunc main() { nonsense }\n")
    with pytest.raises(KubeTestbedError, match=r"(?s)small v1 could not be built.*undefined: nonsense"):
        programs_of(module, print)
    assert not built_folder(module).exists()
    assert not list((cache / "programs").glob("*.part-*"))


def test_another_source_or_another_flag_is_another_folder(tmp_path: Path) -> None:
    first = small_module(tmp_path / "a")
    second = small_module(tmp_path / "b", SOURCE.replace("nothing", "something"))
    third = GoModule("small", "v1", tmp_path / "a", first.programs, (("main.word", "bye"),))
    assert len({built_folder(module) for module in (first, second, third)}) == 3


def test_ready_programs_are_used_where_they_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = small_module(tmp_path / "source")
    (tmp_path / "ready").mkdir()
    monkeypatch.setenv(READY_PROGRAMS, str(tmp_path / "ready"))
    assert not is_built(module)
    (tmp_path / "ready" / "little").touch()
    assert programs_of(module, print) == {"little": tmp_path / "ready" / "little"}


def builder(cache: Path, source: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-c", SLOW_BUILD, str(cache), str(source)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


ROOT = Path(__file__).parents[2]


def test_two_at_once_build_once_and_one_who_is_killed_leaves_the_other_to_do_it(tmp_path: Path, cache: Path) -> None:
    first = builder(cache, tmp_path / "source")
    assert first.stdout is not None
    assert "building small" in first.stdout.readline()
    assert first.stdout.readline() == "compiling\n"
    second = builder(cache, tmp_path / "source")
    assert second.stdout is not None
    assert second.stdout.readline() == f"waiting for process {first.pid}, which builds {built_name(tmp_path)}\n"
    first.kill()
    first.communicate()
    assert "building small" in second.stdout.readline()
    second.communicate("\n")
    assert second.returncode == 0
    assert [path.name for path in (cache / "programs").iterdir() if not path.name.startswith(".")] == [
        built_name(tmp_path)
    ]


def built_name(tmp_path: Path) -> str:
    return built_folder(small_module(tmp_path / "source")).name


@pytest.mark.parametrize(
    "module",
    [KUBERNETES, ETCD, KWOK, COREDNS, TRAINING_OPERATOR, *OPERATORS.values()],
    ids=lambda module: module.name,
)
def test_everything_a_testbed_is_built_from_is_pinned(module: GoModule) -> None:
    assert module.version in (module.folder / "go.mod").read_text()
    assert "-mod=readonly" in module.flags()


def test_the_name_go_gives_a_program_has_no_version() -> None:
    assert ETCD.programs[0].built_as() == "server"
    assert TRAINING_OPERATOR.programs[0].built_as() == "training-operator.v1"
