"""Every way a file can be wrong, and the exact words a person then reads.

Each `malformed/<kind>/<name>.yaml` has its message in `<name>.error`. After a wanted change of words, write them anew
with GPUYARD_WRITE_ERRORS=1 and read the difference.
"""

import os
from pathlib import Path

import pytest

from gpuyard.errors import InputError
from gpuyard.files.change import read_change
from gpuyard.files.cluster import ClusterFile, open_file, read_cluster, read_jobs, surroundings
from gpuyard.files.queues import QueueTree
from gpuyard.files.scenario import read_scenario
from gpuyard.files.teams import read_team_changes, read_teams
from gpuyard.files.work import read_work_file

HERE = Path(__file__).parent
FILES = sorted((HERE / "malformed").glob("*/*.yaml"))
WRITE = os.environ.get("GPUYARD_WRITE_ERRORS") == "1"


def message_of(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read(path)
    return str(caught.value)


def read(path: Path) -> None:
    """Read a file from its own folder, so that the message does not depend on where the tests are."""
    name = Path(path.name)
    match path.parent.name:
        case "cluster":
            read_cluster(name)
        case "job":
            read_jobs(name, valid_cluster())
        case "change":
            read_change(name, valid_cluster())
        case "work":
            read_work_file(name, surroundings(valid_cluster().snapshot))
        case "teams":
            read_teams(open_file(name))
        case "team-changes":
            cluster = valid_cluster()
            tree = QueueTree(cluster.snapshot.queues, (), cluster.summed)
            read_team_changes(open_file(name), tree, frozenset({"vision"}))
        case _:
            read_scenario(name)


def valid_cluster() -> ClusterFile:
    return read_cluster(HERE / "valid" / "cluster.yaml")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_malformed_file_is_refused_in_exact_words(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    message = message_of(path)
    expected = path.with_suffix(".error")
    if WRITE:
        expected.write_text(message + "\n", encoding="utf-8")
    assert message + "\n" == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_message_says_where_and_what_to_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    first, *rest = message_of(path).splitlines()
    assert first.startswith(f"{path.name}:")
    assert rest


def test_there_are_many_ways_to_be_wrong() -> None:
    assert len(FILES) >= 300
