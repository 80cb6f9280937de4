"""The documents hold the tables the code is made of. Write them anew with GPUYARD_WRITE_DOCS=1."""

import ast
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuyard.service import certificates, manager
from gpuyard.service.problems import KINDS, ProblemReason
from gpuyard.wire.access import TABLE, Reach, Role
from gpuyard.wire.operations import OPERATIONS
from gpuyard.worlds.standalone import decide

DOCS = Path(__file__).parents[2] / "docs"
WRITE = os.environ.get("GPUYARD_WRITE_DOCS") == "1"


def problems() -> str:
    rows = [f"| `{reason}` | {kind.status} | {kind.title} | {kind.meaning} |" for reason, kind in KINDS.items()]
    return "\n".join(["| reason | status | what | more |", "|---|---|---|---|", *rows])


def operations() -> str:
    rows = [
        f"| `{one.method} {one.path}` | {one.summary} | {one.permission or 'none'} | `{one.name}` |"
        for one in OPERATIONS
    ]
    return "\n".join(["| request | does | permission | name |", "|---|---|---|---|", *rows])


def access() -> str:
    words = {Reach.NONE: "–", Reach.OWN: "own", Reach.TEAM: "team", Reach.ALL: "all"}
    rows = [
        f"| {permission} | {' | '.join(words[reaches[role]] for role in Role)} |"
        for permission, reaches in TABLE.items()
    ]
    return "\n".join([f"| permission | {' | '.join(Role)} |", "|---" * (len(Role) + 1) + "|", *rows])


@pytest.mark.parametrize(
    ("document", "mark", "table"),
    [("api.md", "problems", problems), ("api.md", "operations", operations), ("security.md", "access", access)],
)
def test_a_document_holds_the_table(document: str, mark: str, table: Callable[[], str]) -> None:
    path = DOCS / document
    found = re.compile(rf"(<!-- {mark} -->\n)(.*?)(<!-- end -->)", re.DOTALL)
    if WRITE:
        text = found.sub(lambda match: f"{match[1]}{table()}\n{match[3]}", path.read_text(encoding="utf-8"))
        path.write_text(text, encoding="utf-8")
    match = found.search(path.read_text(encoding="utf-8"))
    assert match is not None
    assert match[2] == f"{table()}\n", "write it anew: GPUYARD_WRITE_DOCS=1"


def test_every_reason_is_described() -> None:
    assert set(KINDS) == set(ProblemReason)
    assert all(kind.title and kind.meaning and 400 <= kind.status < 600 for kind in KINDS.values())


@pytest.mark.parametrize("module", [decide, certificates, manager], ids=lambda module: module.__name__)
def test_whatever_is_refused_below_has_a_word_here(module: object) -> None:
    source = Path(str(module.__file__)).read_text(encoding="utf-8")  # type: ignore[attr-defined]
    words = {
        node.args[0].value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "RefusedError"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    assert words
    assert words <= {str(reason) for reason in ProblemReason}
