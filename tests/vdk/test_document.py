"""docs/vdk.md is run: every command of it with VDK's own programs, on four machines of ten fake GPUs.

Blocks marked `bash` are run in one shell, one after the other, and must end well; `bash refused` must not. A block
marked `text` says what the one before it writes: each line is there, in this order; `...` stands for anything.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cells import remove_cells
from tests.vdk.programs import environment, require_vdk
from tests.yard import ROOT, Yard, open_folder, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vdk")]

DOCUMENT = ROOT / "docs" / "vdk.md"
TIMEOUT_S = 600
MACHINES = 4
END = "=== end of block"
_BLOCK = re.compile(r"^```(bash|bash refused|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Step(NamedTuple):
    """One block of commands, and what it is to say."""

    commands: str
    refused: bool
    says: tuple[str, ...]


def steps(text: str) -> list[Step]:
    found: list[Step] = []
    for kind, body in _BLOCK.findall(text):
        if kind == "text":
            found[-1] = found[-1]._replace(says=tuple(body.splitlines()))
        else:
            found.append(Step(body, kind == "bash refused", ()))
    return found


def as_script(found: list[Step]) -> str:
    """All blocks in one shell; after each its number and how it ended. One that goes wrong ends it."""
    parts = []
    for number, step in enumerate(found):
        # In the shell itself, because blocks set variables; `set -e` inside would end on the first that is refused.
        wrong = '[ "$code" -ne 0 ]' if step.refused else '[ "$code" -eq 0 ]'
        parts.append(f'{{\n{step.commands}\n}}\ncode=$?\necho "{END} {number} $code"\n{wrong} || exit 1\n')
    return "\n".join(parts)


def missing(said: str, expected: tuple[str, ...]) -> str | None:
    """The first line that is not there after those before it."""
    at = 0
    for line in expected:
        pattern = r"[^\n]*".join(re.escape(part.strip()) for part in line.strip().split("..."))
        match = re.compile(pattern).search(said, at)
        if match is None:
            return line
        at = match.end()
    return None


@contextmanager
def machine(yard: Yard, folder: Path, name: str) -> Iterator[None]:
    home = folder / name
    told = yard.gpuyard("node", "token").stdout.split("--join")[1].split()[0]
    words = ["agent", "--join", told, "--node", name, "--fake-gpus", "10", "--home", str(home)]
    with (folder / f"{name}.log").open("ab") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "gpuyard", *words], stdout=log, stderr=log, env=yard.environment
        )
    try:
        yield
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(30)
        yard.kill_everyone()
        remove_cells(home)


@pytest.fixture
def cluster() -> Iterator[Yard]:
    with open_folder() as folder, ExitStack() as machines:
        options = ("--node", "node-1", "--fake-gpus", "10", "--vdk-command", str(require_vdk() / "vdk"))
        # For whoever is not root: there the teams share a user.
        yard = Yard(folder / "home", *options, "--accept-shared-user")
        try:
            yard.start()
            for number in range(2, MACHINES + 1):
                machines.enter_context(machine(yard, yard.home, f"node-{number}"))
            with yard.client() as client:
                wait_for(lambda: client.status().ready_nodes == MACHINES, 60)
            yield yard
        finally:
            machines.close()
            yard.stop()


def test_every_command_of_the_document_does_what_it_says(cluster: Yard) -> None:
    found = steps(DOCUMENT.read_text(encoding="utf-8"))
    folder = cluster.home.parent
    work = folder / "work"
    work.mkdir()
    commands = folder / "bin"
    commands.mkdir()
    (commands / "gpuyard").write_text(f'#!/bin/sh\nexec {sys.executable} -m gpuyard "$@"\n')
    (commands / "gpuyard").chmod(0o755)
    script = as_script(found).replace("http://127.0.0.1:7400", cluster.url).replace("/tmp/enough", f"{folder}/enough")
    path = f"{commands}:{require_vdk()}:{os.environ['PATH']}"
    told = {**cluster.environment, **environment(cluster.url, folder, {"PATH": path})}
    for name in ("OAUTHLIB_INSECURE_TRANSPORT", "VDK_CONTROL_SERVICE_REST_API_URL"):
        del told[name]  # The document says it itself.
    done = subprocess.run(
        ["bash", "-c", f"exec 2>&1\n{script}"],
        cwd=work,
        env=told,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    said = re.split(rf"{END} \d+ (\d+)\n", done.stdout)
    assert done.returncode == 0, f"it ended in:\n{found[len(said) // 2 - 1].commands}\n{''.join(said[-3:])}"
    for step, text in zip(found, said[::2], strict=False):
        line = missing(text, step.says)
        assert line is None, f"{step.commands}\ndoes not say:\n{line}\nbut:\n{text}"
    assert len(found) == len(said) // 2


def test_lines_are_found_in_their_order_with_anything_in_between() -> None:
    assert missing("one two three\nfour\n", ("one ... three", "four")) is None
    assert missing("four\none two three\n", ("one ... three", "four")) == "four"
    assert missing("one\nthree\n", ("one ... three",)) == "one ... three"


def test_a_block_that_goes_wrong_ends_the_run_and_one_that_must_does_not() -> None:
    good, bad = Step("true", False, ()), Step("false", False, ())
    refused = Step("false", True, ())
    for found, code in (([good, refused, good], 0), ([good, bad, good], 1), ([Step("true", True, ())], 1)):
        done = subprocess.run(["bash", "-c", as_script(found)], capture_output=True, text=True, check=False)
        assert done.returncode == code, found
        assert len(steps("```bash\ntrue\n```\n```text\nx\n```\n```sh\nno\n```\n")) == 1
