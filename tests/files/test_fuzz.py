"""Whatever is done to a file, its reader gives a value or an InputError, never anything else."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.errors import InputError
from gpuyard.files.change import read_change
from gpuyard.files.cluster import open_file, read_cluster, read_jobs, surroundings
from gpuyard.files.queues import QueueTree
from gpuyard.files.scenario import read_scenario
from gpuyard.files.teams import read_team_changes, read_teams
from gpuyard.files.work import read_work_file

VALID = Path(__file__).parent / "valid"
EXAMPLES = Path(__file__).parents[2] / "src" / "gpuyard" / "examples"
CLUSTER = read_cluster(VALID / "cluster.yaml")
TREE = QueueTree(CLUSTER.snapshot.queues, (), CLUSTER.summed)

READERS: dict[str, Callable[[Path], object]] = {
    "cluster": read_cluster,
    "job": lambda path: read_jobs(path, CLUSTER),
    "change": lambda path: read_change(path, CLUSTER),
    "work": lambda path: read_work_file(path, surroundings(CLUSTER.snapshot)),
    "teams": lambda path: read_teams(open_file(path)),
    "team-changes": lambda path: read_team_changes(open_file(path), TREE, frozenset()),
    "scenario": read_scenario,
}
SEEDS = [
    *(path.read_bytes() for path in sorted([*VALID.glob("*.yaml"), *EXAMPLES.glob("*.yaml")])),
    *(path.read_bytes() for path in sorted(VALID.parent.glob("malformed/*/*.yaml"))),
]
WORDS = """
    { } [ ] : , - ~ ' " # | > % ... << no .nan -1 0 1e400 0.0001 99999999999999999999 0x1 1_0 1:30 node-[1-9] *a
"""
TOKENS = [
    *(word.encode() for word in WORDS.split()),
    *(b"&a ", b"!!int ", b"\t", b"\n", b"---\n", b"groups: ", b"children: ", b"on: ", b"parent: "),
    *(b"\xff", b"\x00", b"\xef\xbb\xbf", b"\xe2\x80\xa8"),
]

edits = st.lists(
    st.tuples(
        st.sampled_from(["cut", "repeat", "swap-lines", "repeat-line", "insert", "flip", "truncate"]),
        st.integers(0, 10**6),
        st.integers(0, 10**6),
    ),
    min_size=1,
    max_size=6,
)


def edited(content: bytes, edit: tuple[str, int, int]) -> bytes:
    """One small accident."""
    kind, a, b = edit
    start = a % (len(content) + 1)
    end = min(len(content), start + b % 20)
    lines = content.splitlines(keepends=True) or [b""]
    match kind:
        case "cut":
            return content[:start] + content[end:]
        case "repeat":
            return content[:end] + content[start:]
        case "swap-lines":
            i, j = a % len(lines), b % len(lines)
            lines[i], lines[j] = lines[j], lines[i]
            return b"".join(lines)
        case "repeat-line":
            return b"".join([*lines, lines[a % len(lines)]])
        case "insert":
            return content[:start] + TOKENS[b % len(TOKENS)] + content[start:]
        case "flip":
            return content[:start] + bytes([b % 256]) + content[start + 1 :]
        case _:
            return content[:start]


@pytest.mark.parametrize("kind", READERS)
@given(seed=st.sampled_from(SEEDS), accidents=edits)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_read_or_refused(
    kind: str, seed: bytes, accidents: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    content = seed
    for accident in accidents:
        content = edited(content, accident)
    refused_or_read(kind, content, tmp_path)


@pytest.mark.parametrize("kind", READERS)
@given(content=st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_bytes_are_read_or_refused(kind: str, content: bytes, tmp_path: Path) -> None:
    refused_or_read(kind, content, tmp_path)


def refused_or_read(kind: str, content: bytes, folder: Path) -> None:
    path = folder / "file.yaml"
    path.write_bytes(content)
    message = str(path)
    try:
        READERS[kind](path)
    except InputError as error:
        message = str(error)
    assert message.startswith(str(path))
